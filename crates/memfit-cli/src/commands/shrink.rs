//! `memfit shrink`.

use std::time::Instant;

use memfit_channel::{Part, Planned};
use memfit_devices::Bytes;
use memfit_report::text;
use memfit_report::wire::{Peak, ShrinkBytes, ShrinkReport, schema};
use memfit_run::{Ended, Home, Interrupt, Progress as _, Rehearsal, Request, report};
use memfit_shrink::{Bench, Measured, Pass, TECHNIQUES, Technique, find, table};
use memfit_vocabulary::{Lever, Value};

use super::{brief_problem, catalogue, conclude, seconds_since};
use crate::args::ShrinkArgs;
use crate::plan::{failure_reason, training};
use crate::printer::ProgressLine;
use crate::request::{self, lever_setup};
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Measures techniques that reduce the size of a command's model.
pub(crate) fn shrink(args: &ShrinkArgs, settings: &Settings, home: &Home, printer: &Printer) -> Exit {
    let started = Instant::now();
    let mut report = blank(args);
    let found = measure(args, settings, home, printer, &mut report);
    report.wall_s = seconds_since(started);
    report.problem = found.as_ref().err().map(brief_problem);
    let shown = || text::shrink(&report, printer.canvas());
    let confidential = args.script.confidential;
    match conclude(found, &report, confidential, shown, &args.out, settings, printer) {
        Err(error) => printer.error(&error),
        Ok(()) => Exit::Good,
    }
}

fn blank(args: &ShrinkArgs) -> ShrinkReport {
    ShrinkReport {
        schema: schema::SHRINK.to_owned(),
        device: None,
        baseline: None,
        rows: Vec::new(),
        runs: 0,
        wall_s: 0.0,
        steps: 0,
        torch: None,
        command: memfit_run::without_secrets(args.command.text()),
        notes: Vec::new(),
        problem: None,
    }
}

fn measure(
    args: &ShrinkArgs,
    settings: &Settings,
    home: &Home,
    printer: &Printer,
    report: &mut ShrinkReport,
) -> Result<(), CliError> {
    let catalogue = catalogue(args.script.catalogue.as_deref(), settings)?;
    let request = request::to_shrink(args, settings, &catalogue)?;
    let device = request.card.info();
    report.device = Some(device.clone());
    let chosen: Vec<&Technique> = if args.only.is_empty() {
        TECHNIQUES.iter().collect()
    } else {
        args.only.iter().filter_map(|name| find(name)).collect()
    };
    printer.remark("starting the script, up to its first use of the GPU");
    let mut runs = Runs {
        rehearsal: Rehearsal::open(&request, home, printer)?,
        request,
        progress: printer.progress(),
        interrupt: Interrupt::listen(),
        count: 0,
        steps: 0,
        torch: None,
    };
    let found = table(&mut runs, &chosen, device.capacity);
    runs.progress.clear();
    (report.runs, report.steps, report.torch) = (runs.count, runs.steps, runs.torch.take());
    let Some(found) = found? else { return Err(memfit_run::RunError::Interrupted.into()) };
    report.baseline = Some(found.baseline);
    report.rows = found.rows;
    if found.interrupted {
        report.notes.push("interrupted, so some techniques were not measured".to_owned());
    }
    Ok(())
}

/// Runs of the script with different levers, on the GPU with unlimited memory.
struct Runs<'a> {
    rehearsal: Rehearsal<'a>,
    request: Request,
    progress: ProgressLine,
    interrupt: Interrupt,
    count: u64,
    /// Steps that the original completed.
    steps: u64,
    /// `torch.__version__`.
    torch: Option<String>,
}

impl Bench for Runs<'_> {
    type Error = CliError;

    fn measure(&mut self, settings: &[(Lever, Value)], pass: Pass) -> Result<Option<Measured>, CliError> {
        if self.interrupt.happened() {
            return Ok(None);
        }
        self.count += 1;
        self.progress.draw(&format!("run {}: {}", self.count, described(settings, pass)));
        let request = self.request(settings, pass);
        let outcome = self.rehearsal.run(&request)?;
        self.progress.clear();
        if outcome.facts.ended == Ended::Interrupted {
            return Ok(None);
        }
        let report = report(&request, &outcome);
        self.torch = self.torch.take().or_else(|| report.torch.clone());
        let fullest = outcome.facts.fullest();
        let reported = fullest.and_then(|rank| rank.training.as_ref());
        let facts = reported.map(training).unwrap_or_default();
        let completed = matches!(outcome.facts.ended, Ended::Complete | Ended::Exited(0));
        let mut problem = (!completed || outcome.facts.oom.is_some()).then(|| {
            failure_reason(&outcome.facts, report.problem.as_ref()).unwrap_or("it did not finish".to_owned())
        });
        if settings.is_empty() && pass == Pass::Training {
            self.steps = report.steps;
        }
        let mut peak = report.peak;
        let held = reported.map(|reported| reported.holdings).unwrap_or_default();
        match reported.and_then(|reported| reported.peaks.as_ref()) {
            _ if problem.is_some() => {}
            _ if pass == Pass::Training && (!facts.optimizes || report.steps == 0) => {
                problem = Some("no step of an optimizer ran".to_owned());
            }
            Some(part) if part.error.is_empty() => peak = within(peak, part.allocated, part.reserved),
            Some(part) => problem = Some(part.error.clone()),
            None if reported.is_none() => {
                problem = Some("memfit could not tell what the script trains".to_owned());
            }
            None => problem = Some("the script called no model that its optimizers train".to_owned()),
        }
        if settings.is_empty()
            && pass == Pass::Training
            && let Some(why) = problem
        {
            let hint = report.problem.and_then(|problem| problem.hint);
            return Err(CliError::NothingToShrink {
                why,
                hint: hint.unwrap_or("`memfit run` shows how it runs".to_owned()),
            });
        }
        Ok(Some(Measured {
            peak: problem.is_none().then_some(peak),
            parameters: (held.parameters, held.trained),
            bytes: ShrinkBytes {
                weights: held.weights,
                gradients: held.gradients,
                optimizer: held.optimizer,
            },
            step_ms: report.time.step_ms_estimate,
            training: facts,
            refused: fullest.map(|rank| rank.refused.clone()).unwrap_or_default(),
            problem,
        }))
    }
}

impl Runs<'_> {
    fn request(&self, settings: &[(Lever, Value)], pass: Pass) -> Request {
        let levers = settings.iter().map(|(lever, value)| lever_setup(*lever, value)).collect();
        let card = self.request.card.with_memory(Bytes::UNLIMITED);
        let part = match pass {
            Pass::Training => Part::Training,
            Pass::Inference => Part::Inference,
        };
        let planned = Planned { levers, part: Some(part), ..Planned::default() };
        Request { card, planned: Some(planned), ..self.request.clone() }
    }
}

/// Peaks of a part of a run; memory outside the allocator is that of the whole run.
fn within(run: Peak, allocated: u64, reserved: u64) -> Peak {
    Peak {
        allocated,
        reserved,
        device: reserved + run.device.saturating_sub(run.reserved),
        device_upper: reserved + run.device_upper.saturating_sub(run.reserved),
    }
}

fn described(settings: &[(Lever, Value)], pass: Pass) -> String {
    let levers: Vec<String> = settings.iter().map(|(lever, value)| format!("{lever}: {value}")).collect();
    let what = match pass {
        Pass::Training => "training",
        Pass::Inference => "inference",
    };
    if levers.is_empty() { format!("{what} as it is") } else { format!("{what} with {}", levers.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_the_allocator_a_part_takes_what_the_run_took() {
        let run = Peak { allocated: 50, reserved: 60, device: 160, device_upper: 190 };
        let part = Peak { allocated: 10, reserved: 20, device: 120, device_upper: 150 };
        assert_eq!(within(run, 10, 20), part);
    }
}
