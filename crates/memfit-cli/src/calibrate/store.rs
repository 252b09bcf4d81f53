//! The store of calibrations: one file per GPU, in a folder named after this machine, since machines may
//! share home directories.

use std::path::{Path, PathBuf};

use memfit_devices::{Calibration, Catalogue};

use super::conclude::machine;
use crate::CliError;
use crate::printer::to_json;

/// The folder of this machine's calibrations; `None` if the home directory is unknown.
pub(crate) fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG Base Directory Specification says that a relative path is invalid and to be ignored.
    let config = set("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let config = config.or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(config.join("memfit").join("calibration").join(machine().replace('/', "-")))
}

/// Stores a calibration. It replaces an earlier one of the same GPU.
pub(crate) fn keep(calibration: &Calibration) -> Result<PathBuf, CliError> {
    let folder = folder().ok_or(CliError::NoHome)?;
    std::fs::create_dir_all(&folder).map_err(CliError::io("make the folder", &folder))?;
    let path = folder.join(format!("{}.json", calibration.card.id));
    write(&path, calibration)?;
    Ok(path)
}

/// Writes a calibration atomically, so that a reader never sees a part of it.
pub(crate) fn write(path: &Path, calibration: &Calibration) -> Result<(), CliError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(parent).map_err(CliError::io("write to", parent))?;
    let text = to_json(calibration)?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(CliError::io("write", path))?;
    file.persist(path).map_err(|error| CliError::io("write", path)(error.error))?;
    Ok(())
}

/// Reads a calibration from a file.
pub(crate) fn read(path: &Path) -> Result<Calibration, CliError> {
    let text = std::fs::read_to_string(path).map_err(CliError::io("read", path))?;
    let invalid = |why: String| CliError::BrokenCalibration { path: path.to_owned(), why };
    let calibration: Calibration = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    if calibration.schema == Calibration::SCHEMA {
        Ok(calibration)
    } else {
        Err(invalid(format!("its schema is `{}`, and not `{}`", calibration.schema, Calibration::SCHEMA)))
    }
}

/// A stored file, with its content or the reason why it cannot be read.
pub(crate) type Kept = (PathBuf, Result<Calibration, CliError>);

/// Stored calibrations: each file with its content, or the reason why it cannot be read.
pub(crate) fn stored() -> Vec<Kept> {
    let entries = folder().and_then(|folder| std::fs::read_dir(folder).ok());
    let mut paths: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

/// Adds this machine's stored calibrations, and one from a named file, to a catalogue.
pub(crate) fn apply(
    catalogue: &mut Catalogue,
    named: Option<&Path>,
    with_kept: bool,
) -> Result<(), CliError> {
    for (_, calibration) in if with_kept { stored() } else { Vec::new() } {
        // An unreadable file is reported by `memfit doctor`, and does not stop other verbs.
        if let Ok(calibration) = calibration {
            catalogue.calibrate(&calibration);
        }
    }
    if let Some(path) = named {
        let calibration = read(path)?;
        if !catalogue.calibrate(&calibration) {
            return Err(CliError::UnknownCard { name: calibration.card.name });
        }
    }
    Ok(())
}
