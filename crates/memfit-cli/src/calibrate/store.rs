//! The store of calibrations: one file per GPU, in a folder named for this machine, since home
//! directories are shared between machines.

use std::path::{Path, PathBuf};

use memfit_devices::{Calibration, Catalogue};

use super::conclude::machine;
use crate::CliError;
use crate::printer::to_json;

/// The folder of this machine's calibrations; nothing where no home is known.
pub(crate) fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A relative path there is invalid and to be ignored, says the XDG Base Directory Specification.
    let config = set("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let config = config.or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(config.join("memfit").join("calibration").join(machine().replace('/', "-")))
}

/// Keeps a calibration, in the place of an earlier one of the same GPU.
pub(crate) fn keep(calibration: &Calibration) -> Result<PathBuf, CliError> {
    let folder = folder().ok_or(CliError::NoHome)?;
    std::fs::create_dir_all(&folder).map_err(CliError::io("make the folder", &folder))?;
    let path = folder.join(format!("{}.json", calibration.card.id));
    write(&path, calibration)?;
    Ok(path)
}

/// Writes a calibration, so that a reader sees all of it or none.
pub(crate) fn write(path: &Path, calibration: &Calibration) -> Result<(), CliError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(parent).map_err(CliError::io("write to", parent))?;
    let text = to_json(calibration)?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(CliError::io("write", path))?;
    file.persist(path).map_err(|error| CliError::io("write", path)(error.error))?;
    Ok(())
}

/// A calibration in a file.
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

/// A file that is kept, and what it holds or why it cannot be read.
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

/// Puts what is kept for this machine, and what is in a file that was named, into a catalogue.
pub(crate) fn apply(
    catalogue: &mut Catalogue,
    named: Option<&Path>,
    with_kept: bool,
) -> Result<(), CliError> {
    for (_, calibration) in if with_kept { stored() } else { Vec::new() } {
        // One that cannot be read says so in `memfit doctor`; it keeps nobody from working.
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
