//! `memfit doctor`: what is installed, and what would and would not work here.

use std::path::Path;

use memfit_loader::Backend;
use memfit_report::text;
use memfit_report::wire::{Check, DoctorReport, Health};
use memfit_run::{Home, Library, LocalGpu, environment, preflight};

use super::{answer, catalogue};
use crate::args::DoctorArgs;
use crate::calibrate::store;
use crate::settings::Settings;
use crate::{CliError, Exit, Hint as _, Printer};

/// Looks around.
pub(crate) fn doctor(
    args: &DoctorArgs,
    settings: &Settings,
    home: &Home,
    printer: &Printer,
) -> Result<Exit, CliError> {
    let mut checks = vec![good("memfit", crate::VERSION.to_owned()), system()];
    checks.extend(Library::ALL.map(|library| match library.find(home) {
        Ok(path) => good(library.soname(), path.display().to_string()),
        Err(error) => broken(library.soname(), &error.into()),
    }));
    checks.push(match catalogue(None, settings) {
        Ok(catalogue) => good("catalogue", format!("{} GPUs", catalogue.devices().len())),
        Err(error) => broken("catalogue", &error),
    });
    checks.extend(python(home));
    checks.push(jpeg());
    checks.push(real_gpu());
    checks.extend(calibrations());
    checks.push(temporary_files());
    let report = DoctorReport::new(checks);
    let canvas = printer.canvas();
    answer(&report, || text::doctor(&report, canvas), &args.out, settings, printer)?;
    Ok(if report.ready { Exit::Good } else { Exit::NoAnswer })
}

fn good(name: &str, found: String) -> Check {
    Check { name: name.to_owned(), health: Health::Good, found, hint: None }
}

fn broken(name: &str, error: &CliError) -> Check {
    let hints = error.hints();
    Check {
        name: name.to_owned(),
        health: Health::Broken,
        found: error.to_string(),
        hint: (!hints.is_empty()).then(|| hints.join("\n")),
    }
}

fn system() -> Check {
    match preflight::system() {
        Ok(system) => good("system", system),
        Err(error) => broken("system", &error.into()),
    }
}

/// The interpreter that `python` would mean, and its torch.
fn python(home: &Home) -> Vec<Check> {
    let command = match environment::resolve(&["python".into()], home) {
        Ok(command) => command,
        Err(error) => return vec![broken("python", &error.into())],
    };
    let interpreter = match preflight::interpreter(&command.program) {
        Ok(interpreter) => interpreter,
        Err(error) => return vec![broken("python", &error.into())],
    };
    let found = format!("{} at {}", interpreter.version, interpreter.executable.display());
    let torch = match preflight::torch(&interpreter) {
        Ok(torch) => good("torch", format!("{} for CUDA {}", torch.version, torch.cuda)),
        Err(error) => broken("torch", &error.into()),
    };
    vec![good("python", found), torch]
}

/// The JPEG decoder of `memfit.data`.
fn jpeg() -> Check {
    let backend = Backend::BEST;
    let (health, hint) = match backend {
        Backend::Turbo => (Health::Good, None),
        Backend::Rust => (
            Health::Absent,
            Some(
                "always decodes in full, which takes more time and memory; `pip install .` builds libjpeg-turbo with cmake, which it brings along"
                    .to_owned(),
            ),
        ),
    };
    Check { name: "JPEG".to_owned(), health, found: backend.name().to_owned(), hint }
}

fn real_gpu() -> Check {
    let name = "real GPU".to_owned();
    if let Some(reading) = LocalGpu::find().and_then(|gpu| gpu.read()) {
        let found = format!(
            "{}, {} of {} in use; `--gpu local` means it",
            reading.name,
            text::size(reading.used),
            text::size(reading.total)
        );
        Check { name, health: Health::Good, found, hint: None }
    } else {
        let found = "none, and none is needed; `--gpu local` does not work".to_owned();
        Check { name, health: Health::Absent, found, hint: None }
    }
}

/// Calibrations of this machine.
fn calibrations() -> Vec<Check> {
    let name = "calibration";
    let kept = store::stored();
    if kept.is_empty() {
        let found = "none: `memfit run` takes the catalogue's figures".to_owned();
        return vec![Check { name: name.to_owned(), health: Health::Absent, found, hint: None }];
    }
    let tell = |(_, calibration): store::Kept| match calibration {
        Ok(calibration) => good(name, format!("{}: {}", calibration.card.id, calibration.source())),
        // It keeps nobody from working: the catalogue's figures are taken.
        Err(error) => Check { health: Health::Absent, ..broken(name, &error) },
    };
    kept.into_iter().map(tell).collect()
}

fn temporary_files() -> Check {
    let folder = std::env::temp_dir();
    match probe_folder(&folder) {
        Ok(()) => good("temporary files", folder.display().to_string()),
        Err(error) => broken("temporary files", &error),
    }
}

fn probe_folder(folder: &Path) -> Result<(), CliError> {
    tempfile::tempdir_in(folder).map(drop).map_err(CliError::io("write to", folder))
}
