//! `memfit calibrate`.

use memfit_devices::Catalogue;
use memfit_report::text;
use memfit_report::wire::{CalibrateReport, CalibrationList};
use memfit_run::Home;

use super::{answer, plain_catalogue};
use crate::args::CalibrateArgs;
use crate::calibrate::store::Kept;
use crate::calibrate::{self, store};
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Measures the GPU and stores the result; or shows or removes stored calibrations.
pub(crate) fn calibrate(
    args: &CalibrateArgs,
    settings: &Settings,
    home: &Home,
    printer: &Printer,
) -> Result<Exit, CliError> {
    let catalogue = plain_catalogue(args.catalogue.as_deref(), settings)?;
    if let Some(name) = &args.show {
        return show(args, name, &catalogue, settings, printer);
    }
    if let Some(name) = &args.forget {
        return forget(args, name, &catalogue, settings, printer);
    }
    let measured = calibrate::perform(args.python.as_deref(), &catalogue, home, printer)?;
    let calibration = measured.calibration;
    let path = match &args.output {
        Some(path) => {
            store::write(path, &calibration)?;
            Some(path.clone())
        }
        // A virtual GPU is not part of this machine.
        None if calibration.card.is_virtual => None,
        None => Some(store::keep(&calibration)?),
    };
    let stored = path.map(|path| path.display().to_string());
    let report = CalibrateReport::new(calibration, &measured.known, stored);
    let canvas = printer.canvas();
    answer(&report, || text::calibration(&report, canvas), &args.out, settings, printer)?;
    Ok(Exit::Good)
}

/// Stored calibrations of the GPU with this name; without a name, of all GPUs.
fn chosen(name: &str, catalogue: &Catalogue) -> Result<Vec<Kept>, CliError> {
    let kept = store::stored();
    if name.is_empty() {
        return if kept.is_empty() { Err(CliError::NotCalibrated { name: None }) } else { Ok(kept) };
    }
    let id = &catalogue.find(name)?.id;
    let file = format!("{id}.json");
    let found: Vec<_> =
        kept.into_iter().filter(|(path, _)| path.file_name().is_some_and(|name| *name == *file)).collect();
    if found.is_empty() { Err(CliError::NotCalibrated { name: Some(id.clone()) }) } else { Ok(found) }
}

fn show(
    args: &CalibrateArgs,
    name: &str,
    catalogue: &Catalogue,
    settings: &Settings,
    printer: &Printer,
) -> Result<Exit, CliError> {
    let mut reports = Vec::new();
    for (path, calibration) in chosen(name, catalogue)? {
        let calibration = calibration?;
        let known = catalogue
            .find(&calibration.card.id)
            .map_err(|_| CliError::UnknownCard { name: calibration.card.name.clone() })?;
        reports.push(CalibrateReport::new(calibration, known, Some(path.display().to_string())));
    }
    let list = CalibrationList::new(reports);
    let canvas = printer.canvas();
    let text = || {
        let texts: Vec<_> =
            list.calibrations.iter().map(|report| text::calibration(report, canvas)).collect();
        texts.join("\n")
    };
    answer(&list, text, &args.out, settings, printer)?;
    Ok(Exit::Good)
}

fn forget(
    args: &CalibrateArgs,
    name: &str,
    catalogue: &Catalogue,
    settings: &Settings,
    printer: &Printer,
) -> Result<Exit, CliError> {
    let mut gone = Vec::new();
    for (path, _) in chosen(name, catalogue)? {
        std::fs::remove_file(&path).map_err(CliError::io("remove", &path))?;
        gone.push(path.display().to_string());
    }
    let list = CalibrationList::forgotten(gone);
    let text = || {
        let lines: Vec<_> = list.forgotten.iter().map(|path| format!("forgot `{path}`\n")).collect();
        lines.concat()
    };
    answer(&list, text, &args.out, settings, printer)?;
    Ok(Exit::Good)
}
