//! `memfit run`.

use memfit_plan::{Here, Plan, sha256};
use memfit_report::remarks::Note;
use memfit_report::text;
use memfit_report::wire::{CardKind, DeviceInfo, RunReport, Verdict};
use memfit_run::{Home, Outcome, Request, failure};
use memfit_vocabulary::Remark;

use super::{answer_shared, calibrated_catalogue, problem};
use crate::args::{Format, OutputArgs, RunArgs};
use crate::request;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Number of last output lines shown for a failed script.
const LAST_LINES: usize = 30;

/// Runs a command on a GPU, and reports whether it fits.
pub(crate) fn run(args: RunArgs, settings: &Settings, home: &Home, printer: &Printer) -> Exit {
    let (out, confidential) = (args.out.clone(), args.script.confidential);
    let command = args.command.text();
    let mut device = DeviceInfo {
        name: args.gpu.as_ref().map(|gpu| gpu.name.clone()).unwrap_or_default(),
        capacity: 0,
        count: args.gpu.as_ref().map_or(1, |gpu| gpu.count),
        kind: CardKind::Virtual,
    };
    let file = args.plan.clone();
    let outcome = request(args, settings).and_then(|request| {
        device = request.card.info();
        let plan = file.as_deref().map(Plan::read).transpose()?;
        let outcome = memfit_run::perform(&request, home, printer)?;
        show_failure(&request, &outcome, printer);
        let mut report = memfit_run::report(&request, &outcome);
        if let (Some(plan), Some(file)) = (plan, &file) {
            report.plan = Some(format!("{}: {}", file.display(), plan.describe()));
            let differences = plan.made_for.differs(&here(&report, &plan));
            for difference in &differences {
                report
                    .fidelity
                    .add(&Note::new(Remark::PlanDiffers).with_value("difference", difference.to_string()));
            }
        }
        Ok(report)
    });
    let printed = match outcome {
        Ok(report) => {
            print_report(&report, confidential, &out, settings, printer).map(|()| Exit::from(report.verdict))
        }
        Err(error) => {
            let failure = failure(problem(&error), device, command);
            print_failure(&failure, confidential, &out, settings, printer).map(|()| printer.error(&error))
        }
    };
    printed.unwrap_or_else(|error| printer.error(&error))
}

fn request(args: RunArgs, settings: &Settings) -> Result<Request, CliError> {
    let catalogue =
        calibrated_catalogue(args.script.catalogue.as_deref(), args.calibration.as_deref(), settings)?;
    request::to_run(args, settings, &catalogue)
}

/// The environment of a run under a plan.
fn here(report: &RunReport, plan: &Plan) -> Here {
    let script = plan.made_for.script.as_deref().and_then(|script| std::fs::read(script).ok());
    Here {
        torch: report.torch.clone(),
        gpu: Some(report.device.name.clone()),
        capacity: Some(report.device.capacity),
        script_sha256: script.map(|text| sha256(&text)),
    }
}

fn print_report(
    report: &RunReport,
    confidential: bool,
    out: &OutputArgs,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), CliError> {
    let canvas = printer.canvas();
    answer_shared(report, confidential, || text::run(report, canvas), out, settings, printer)
}

/// For people, the error is enough; programs always get a document.
fn print_failure(
    report: &RunReport,
    confidential: bool,
    out: &OutputArgs,
    settings: &Settings,
    printer: &Printer,
) -> Result<(), CliError> {
    let text = out.format.or(settings.format).unwrap_or_default() == Format::Text;
    if text && out.json.is_none() {
        return Ok(());
    }
    answer_shared(report, confidential, String::new, out, settings, printer)
}

/// Shows the last output of a script that failed.
fn show_failure(request: &Request, outcome: &Outcome, printer: &Printer) {
    let facts = &outcome.facts;
    let failed = memfit_run::report(request, outcome).verdict == Verdict::Error;
    if !failed || request.show_output || facts.last_output.trim().is_empty() {
        return;
    }
    let lines: Vec<&str> = facts.last_output.trim_end().lines().collect();
    let shown = &lines[lines.len().saturating_sub(LAST_LINES)..];
    printer.remark("the script's last output:");
    for line in shown {
        printer.remark(&format!("  {line}"));
    }
}
