//! `memfit doctor`: the installed software, and whether memfit works with it.

use std::path::Path;

use memfit_loader::Backend;
use memfit_report::text;
use memfit_report::wire::{Check, DoctorReport, Health};
use memfit_run::releases::{self, Support};
use memfit_run::{Home, Library, LocalGpu, RunError, environment, free_shared_memory, preflight};

use super::{answer, catalogue};
use crate::args::DoctorArgs;
use crate::calibrate::store;
use crate::contained::Image;
use crate::settings::Settings;
use crate::{CliError, Exit, Hint as _, Printer};

/// Looks around.
pub(crate) fn doctor(
    args: &DoctorArgs,
    settings: &Settings,
    home: &Home,
    printer: &Printer,
) -> Result<Exit, CliError> {
    let mut checks = vec![good("memfit", crate::VERSION.to_owned())];
    match preflight::system() {
        Ok(system) => {
            checks.push(good("system", system));
            checks.extend(everything_here(settings, home));
        }
        // Scripts run in a container, whose own doctor sees the rest.
        Err(RunError::UnsupportedSystem { system }) => {
            checks.push(good("system", format!("{system}: scripts run in a container")));
            checks.push(container(settings));
        }
        Err(error) => checks.push(broken("system", &error.into())),
    }
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
    let mut found = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        found = format!("{found}: {error}");
        cause = error.source();
    }
    Check {
        name: name.to_owned(),
        health: Health::Broken,
        found,
        hint: (!hints.is_empty()).then(|| hints.join("\n")),
    }
}

/// What `memfit run` needs of this machine.
fn everything_here(settings: &Settings, home: &Home) -> Vec<Check> {
    let mut checks: Vec<Check> = Library::ALL
        .map(|library| match library.find(home) {
            Ok(path) => good(library.soname(), path.display().to_string()),
            Err(error) => broken(library.soname(), &error.into()),
        })
        .into();
    checks.push(match catalogue(None, settings) {
        Ok(catalogue) => good("catalogue", format!("{} GPUs", catalogue.devices().len())),
        Err(error) => broken("catalogue", &error),
    });
    checks.extend(python(home));
    checks.push(jpeg());
    checks.push(real_gpu());
    checks.extend(calibrations());
    checks.push(temporary_files());
    checks.push(shared_memory());
    checks.push(own_folder());
    checks.extend(preloaded());
    checks
}

/// The engine and the image in which scripts run.
fn container(settings: &Settings) -> Check {
    let image = Image::named(None, settings);
    match image.engine() {
        Ok(engine) => good("container", format!("{engine} has the image `{}`", image.name)),
        Err(error) => broken("container", &error.into()),
    }
}

/// The interpreter that `python` refers to, and its torch.
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
    if let Err(error) = preflight::supported(&interpreter) {
        return vec![broken("python", &error.into())];
    }
    let torch = match preflight::torch(&interpreter) {
        Ok(torch) => release_of(&torch),
        Err(error) => broken("torch", &error.into()),
    };
    vec![good("python", found), torch]
}

fn release_of(torch: &preflight::Torch) -> Check {
    let check = good("torch", format!("{} for CUDA {}", torch.version, torch.cuda));
    let hint = match releases::support_of(&torch.version) {
        Support::Tested => return check,
        Support::Older => "older than the releases that memfit was tested with",
        Support::Newer => "newer than the releases that memfit was tested with",
    };
    let hint = format!("{hint} ({}): reports say so", releases::tested_releases());
    Check { health: Health::Absent, hint: Some(hint), ..check }
}

/// The JPEG decoder of `memfit.data`.
fn jpeg() -> Check {
    let backend = Backend::BEST;
    let (health, hint) = match backend {
        Backend::Turbo if backend.is_slow_in_full() => (
            Health::Good,
            Some("a build with SIMD code is faster: install `nasm` and build memfit again".to_owned()),
        ),
        Backend::Turbo => (Health::Good, None),
        Backend::Rust => (
            Health::Absent,
            Some(
                "always decodes in full, which takes more time and memory; `pip install .` builds libjpeg-turbo, and installs cmake for the build"
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
            "{}, {} of {} in use; `--gpu local` uses it",
            reading.name,
            text::size(reading.used),
            text::size(reading.total)
        );
        Check { name, health: Health::Good, found, hint: None }
    } else {
        let found = "none; only `--gpu local` and `memfit calibrate` need one".to_owned();
        Check { name, health: Health::Absent, found, hint: None }
    }
}

/// Calibrations of this machine.
fn calibrations() -> Vec<Check> {
    let name = "calibration";
    let kept = store::stored();
    if kept.is_empty() {
        let found =
            "none; only needed to use this machine's GPU as measured by `memfit calibrate`".to_owned();
        return vec![Check { name: name.to_owned(), health: Health::Absent, found, hint: None }];
    }
    let tell = |(_, calibration): store::Kept| match calibration {
        Ok(calibration) => good(name, format!("{}: {}", calibration.card.id, calibration.source())),
        // It does not prevent anything: the catalogue's figures are used instead.
        Err(error) => Check { health: Health::Absent, ..broken(name, &error) },
    };
    kept.into_iter().map(tell).collect()
}

fn temporary_files() -> Check {
    let folder = std::env::temp_dir();
    match probe_folder(&folder) {
        Ok(()) => good("temporary files", folder.display().to_string()),
        Err(error) => {
            let hint = "name a folder that you can write to: `TMPDIR=FOLDER memfit run …`".to_owned();
            Check { hint: Some(hint), ..broken("temporary files", &error) }
        }
    }
}

/// Shared memory, through which PyTorch's loaders pass batches, and NCCL its messages.
fn shared_memory() -> Check {
    const LITTLE: u64 = 64 << 20;
    let name = "shared memory".to_owned();
    let hint = |remedy: &str| Some(format!("loaders with workers need it: {remedy}"));
    match free_shared_memory() {
        Some(free) if free > LITTLE => {
            good("shared memory", format!("{} free in /dev/shm", text::size(free)))
        }
        Some(free) => {
            let found = format!("{} free in /dev/shm", text::size(free));
            let hint = hint("`docker run --shm-size 2g`, or remove what fills it");
            Check { name, health: Health::Absent, found, hint }
        }
        None => {
            let hint = hint("`mount -t tmpfs tmpfs /dev/shm`, or `num_workers=0`");
            Check { name, health: Health::Absent, found: "there is no /dev/shm".to_owned(), hint }
        }
    }
}

/// The folder for this machine's measurements; nothing else is written there.
fn own_folder() -> Check {
    let folder = store::folder().ok_or(CliError::NoHome).and_then(|folder| {
        let there = folder.ancestors().find(|folder| folder.is_dir()).map(Path::to_owned);
        match there {
            Some(there) => probe_folder(&there).map(|()| folder),
            None => Ok(folder),
        }
    });
    match folder {
        Ok(folder) => good("calibration folder", format!("{}, named after this host", folder.display())),
        Err(error) => {
            let hint = "only `memfit calibrate` writes there: `XDG_CONFIG_HOME=FOLDER` names another folder";
            Check {
                health: Health::Absent,
                hint: Some(hint.to_owned()),
                ..broken("calibration folder", &error)
            }
        }
    }
}

/// Libraries that are already preloaded into every program. They are kept, after memfit's own.
fn preloaded() -> Option<Check> {
    let given = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty())?.into_string().ok()?;
    let name = "LD_PRELOAD".to_owned();
    let missing: Vec<&str> = given
        .split([' ', ':'])
        .filter(|library| library.contains('/') && !Path::new(library).exists())
        .collect();
    Some(if missing.is_empty() {
        good("LD_PRELOAD", format!("{given}, which comes after memfit's own libraries"))
    } else {
        let found = format!("{} does not exist, so the dynamic loader prints a warning", missing.join(", "));
        let hint = Some("`unset LD_PRELOAD`".to_owned());
        Check { name, health: Health::Absent, found, hint }
    })
}

fn probe_folder(folder: &Path) -> Result<(), CliError> {
    tempfile::tempdir_in(folder).map(drop).map_err(CliError::io("write to", folder))
}
