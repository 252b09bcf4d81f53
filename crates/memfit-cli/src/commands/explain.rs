//! `memfit explain FILE`.

use std::path::Path;

use memfit_devices::Bytes;
use memfit_explain::{ExplainOverrides, explain_source};
use memfit_recording::Source;
use memfit_report::text;
use memfit_report::wire::ExplainReport;
use memfit_run::read_source;

use super::answer_shared;
use crate::args::ExplainArgs;
use crate::cause_pages::page;
use crate::input;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Explains why memory ran out.
pub(crate) fn explain(args: &ExplainArgs, settings: &Settings, printer: &Printer) -> Result<Exit, CliError> {
    if let Some(cause) = args.cause {
        printer.answer(page(cause));
        return Ok(Exit::Good);
    }
    // The argument parser ensures that there is a file or a cause.
    let file = args.file.clone().unwrap_or_default();
    let (input, problems) = input::read(&file)?;
    let report = report(args, &input, problems)?;
    let canvas = printer.canvas();
    answer_shared(
        &report,
        args.confidential,
        || text::explain(&report, canvas),
        &args.out,
        settings,
        printer,
    )?;
    Ok(Exit::Good)
}

/// Builds the report on a file.
pub(super) fn report(
    args: &ExplainArgs,
    input: &Source,
    problems: Vec<String>,
) -> Result<ExplainReport, CliError> {
    let overrides =
        ExplainOverrides { limit: args.capacity.map(Bytes::get), device: args.device, torch: args.torch };
    let file = args.file.as_deref().unwrap_or(Path::new(""));
    let explanation = explain_source(&overrides, input, &read_source)?;
    Ok(ExplainReport::new(file.display().to_string(), explanation, problems))
}
