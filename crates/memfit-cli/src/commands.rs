//! The verbs, one file each: they compute the answer from the arguments.

mod calibrate;
mod cards;
mod check;
mod ci;
mod completions;
mod convert;
mod data;
mod data_loader;
mod doctor;
mod explain;
mod gpus;
mod launch;
mod plan;
mod replay;
mod rule;
mod run;
mod server;
mod shrink;
mod view;
mod watch;

use std::path::Path;
use std::time::Instant;

use memfit_devices::Catalogue;
use memfit_report::wire::Problem;
use serde::Serialize;

pub(crate) use calibrate::calibrate;
pub(crate) use cards::cards;
pub(crate) use check::check;
pub(crate) use ci::ci;
pub(crate) use completions::completions;
pub(crate) use convert::convert;
pub(crate) use data::data;
pub(crate) use data_loader::data_loader;
pub(crate) use doctor::doctor;
pub(crate) use explain::explain;
pub(crate) use gpus::gpus;
pub(crate) use launch::launch;
pub(crate) use plan::plan;
pub(crate) use replay::replay;
pub(crate) use rule::rule;
pub(crate) use run::run;
pub(crate) use server::server;
pub(crate) use shrink::shrink;
pub(crate) use view::view;
pub(crate) use watch::watch;

use crate::args::{Format, OutputArgs};
use crate::calibrate::store;
use crate::printer::{Printer, to_json};
use crate::settings::Settings;
use crate::{CliError, Hint as _};

/// The catalogue with the user's own GPUs and this machine's calibrations.
fn catalogue(named: Option<&Path>, settings: &Settings) -> Result<Catalogue, CliError> {
    calibrated_catalogue(named, None, settings)
}

/// The same; a calibration from a file takes precedence over this machine's.
fn calibrated_catalogue(
    named: Option<&Path>,
    calibration: Option<&Path>,
    settings: &Settings,
) -> Result<Catalogue, CliError> {
    let mut catalogue = plain_catalogue(named, settings)?;
    let calibration = calibration.or(settings.calibration.as_deref());
    store::apply(&mut catalogue, calibration, !settings.isolated)?;
    Ok(catalogue)
}

/// The uncalibrated catalogue, with the user's own GPUs if there are any.
fn plain_catalogue(named: Option<&Path>, settings: &Settings) -> Result<Catalogue, CliError> {
    let file = named.or(settings.catalogue.as_deref());
    Ok(match file {
        Some(file) => Catalogue::with_user_file(file)?,
        None => Catalogue::builtin()?,
    })
}

/// Seconds since `started`, to the millisecond.
fn seconds_since(started: Instant) -> f64 {
    (started.elapsed().as_secs_f64() * 1000.0).round() / 1000.0
}

/// Converts an error with its causes to a report's problem.
fn problem(error: &CliError) -> Problem {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    Problem { message, ..brief_problem(error) }
}

/// Converts an error without its causes to a report's problem.
fn brief_problem(error: &CliError) -> Problem {
    let hints = error.hints();
    Problem {
        kind: error.kind(),
        message: error.to_string(),
        hint: (!hints.is_empty()).then(|| hints.join("; ")),
    }
}

/// Ends a verb: prints its report. Returns the error if there is no report, or if printing fails.
fn conclude(
    found: Result<(), CliError>,
    report: &impl Serialize,
    confidential: bool,
    text: impl FnOnce() -> String,
    out: &OutputArgs,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), CliError> {
    let text_alone = out.format.or(settings.format).unwrap_or_default() == Format::Text;
    match &found {
        // For people, the error is enough; programs always get a document.
        Err(_) if text_alone && out.json.is_none() => {}
        Err(_) => answer_shared(report, confidential, String::new, out, settings, printer)?,
        Ok(()) => answer_shared(report, confidential, text, out, settings, printer)?,
    }
    found
}

/// Prints the answer in the requested form; `confidential` removes the user's names from JSON.
fn answer_shared(
    value: &impl Serialize,
    confidential: bool,
    text: impl FnOnce() -> String,
    out: &OutputArgs,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), CliError> {
    if confidential {
        return answer(&crate::confidential::redacted(value)?, text, out, settings, printer);
    }
    answer(value, text, out, settings, printer)
}

/// Prints the answer in the requested form.
fn answer(
    value: &impl Serialize,
    text: impl FnOnce() -> String,
    out: &OutputArgs,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), CliError> {
    if let Some(file) = &out.json {
        std::fs::write(file, to_json(value)?).map_err(CliError::io("write", file))?;
    }
    match out.format.or(settings.format).unwrap_or_default() {
        Format::Text => printer.answer(&text()),
        Format::Json => printer.json(value)?,
    }
    Ok(())
}
