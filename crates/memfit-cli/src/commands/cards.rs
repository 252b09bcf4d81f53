//! `memfit cards`.

use std::path::Path;
use std::time::Instant;

use memfit_cards::{Found, Prices, Question, apply_plan, arrange, price_rows, sweep, to_plan};
use memfit_devices::{Catalogue, Device};
use memfit_report::wire::{CardRow, CardSort, CardVerdict, CardsReport, PricedWork, schema};
use memfit_report::{cards_page, text};
use memfit_run::{Home, LOCAL};

use super::plan::plan_for;
use super::{brief_problem, catalogue, conclude, seconds_since};
use crate::args::CardsArgs;
use crate::confidential::shared;
use crate::request;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Samples that are priced if neither samples nor epochs are given and the data set's length is unknown.
const DEFAULT_SAMPLES: u64 = 1_000_000;

/// Compares the GPUs of the catalogue for a command.
pub(crate) fn cards(args: &CardsArgs, settings: &Settings, home: &Home, printer: &Printer) -> Exit {
    let started = Instant::now();
    let (out, confidential, page) = (args.out.clone(), args.script.confidential, args.output.clone());
    let mut report = blank(args);
    let mut found = compare(args, settings, home, printer, &mut report);
    report.wall_s = seconds_since(started);
    if let (Ok(()), Some(page)) = (&found, &page) {
        found = write_page(&report, confidential, page);
    }
    if let Err(error) = &found {
        report.problem = Some(brief_problem(error));
    }
    let shown = || text::cards(&report, printer.canvas());
    match conclude(found, &report, confidential, shown, &out, settings, printer) {
        Err(error) => printer.error(&error),
        Ok(()) => exit(&report.rows),
    }
}

/// Writes the page, without the user's names if it is confidential.
fn write_page(report: &CardsReport, confidential: bool, page: &Path) -> Result<(), CliError> {
    let text = cards_page(&shared(report, confidential)?);
    std::fs::write(page, text).map_err(CliError::io("write", page))
}

/// Exit status: success if any row fits, failure if no row fits for certain.
fn exit(rows: &[CardRow]) -> Exit {
    if rows.iter().any(|row| row.verdict.fits()) {
        Exit::Good
    } else if !rows.is_empty() && rows.iter().all(|row| row.verdict == CardVerdict::DoesNotFit) {
        Exit::BadNews
    } else {
        Exit::NoAnswer
    }
}

fn blank(args: &CardsArgs) -> CardsReport {
    let sort = if args.prices.is_some() { CardSort::Price } else { CardSort::Memory };
    CardsReport {
        schema: schema::CARDS.to_owned(),
        rows: Vec::new(),
        sort: args.sort.map_or(sort, CardSort::from),
        priced: None,
        runs: 0,
        first_run_s: None,
        wall_s: 0.0,
        steps: 0,
        torch: None,
        command: memfit_run::without_secrets(args.command.text()),
        notes: Vec::new(),
        problem: None,
    }
}

/// Options with which `memfit run` and `memfit plan` start the script as this table does.
fn options(args: &CardsArgs) -> Vec<String> {
    let mut options = args.script.words();
    options.extend(args.steps.map(|steps| format!("--steps={steps}")));
    options
}

fn compare(
    args: &CardsArgs,
    settings: &Settings,
    home: &Home,
    printer: &Printer,
    report: &mut CardsReport,
) -> Result<(), CliError> {
    let catalogue = catalogue(args.script.catalogue.as_deref(), settings)?;
    let devices = chosen(args, &catalogue)?;
    let prices = args.prices.as_deref().map(|path| Prices::read(path, &catalogue)).transpose()?;
    let question = Question {
        devices,
        counts: args.count.clone(),
        batches: args.batch.clone(),
        proves_all: args.prove,
        request: request::to_compare(args, settings, &catalogue)?,
        options: options(args),
    };
    report.steps = question.request.steps;
    let mut found = sweep(&question, home, printer)?;
    report.rows = std::mem::take(&mut found.rows);
    report.runs = found.runs;
    report.first_run_s = found.first_run_s.map(|seconds| (seconds * 1000.0).round() / 1000.0);
    report.torch = found.torch.take();
    report.notes = std::mem::take(&mut found.notes);
    report.steps = found.steps.unwrap_or(report.steps);
    report.problem = found.problem.take();
    report.priced = if let Some(prices) = &prices {
        Some(priced_work(args, prices, &found, report)?)
    } else {
        let options = [("--samples", args.samples.is_some()), ("--epochs", args.epochs.is_some())];
        for (option, _) in options.into_iter().filter(|(_, given)| *given) {
            report
                .notes
                .push(format!("`{option}` had no effect: without `--prices` there is no price to compute"));
        }
        None
    };
    let arrange_all = |report: &mut CardsReport| {
        let work = prices.as_ref().zip(report.priced.as_ref());
        price_rows(&mut report.rows, |row| found.samples_per_step(row), work);
        arrange(&mut report.rows, report.sort);
    };
    arrange_all(report);
    if args.plan > 0 {
        let wanted = to_plan(&report.rows, report.sort, prices.as_ref(), found.launches, args.plan);
        plan_some(args, &wanted, found.launches, settings, home, printer, report);
        arrange_all(report);
    }
    Ok(())
}

/// The requested GPUs.
fn chosen(args: &CardsArgs, catalogue: &Catalogue) -> Result<Vec<Device>, CliError> {
    let mut devices: Vec<Device> = Vec::new();
    for name in &args.gpu {
        let device = catalogue.find(name).map_err(|error| match name.split_once(':') {
            Some((kind, count)) if catalogue.find(kind).is_ok() => {
                CliError::CardWithCount { name: kind.to_owned(), count: count.to_owned() }
            }
            _ if name.eq_ignore_ascii_case(LOCAL) => CliError::CardsOfLocal,
            _ => error.into(),
        })?;
        if !devices.contains(device) {
            devices.push(device.clone());
        }
    }
    if args.gpu.is_empty() {
        devices = catalogue.devices().to_vec();
    }
    let is_of = |device: &Device| {
        args.architecture.is_empty()
            || args.architecture.iter().any(|wanted| {
                let generation = device.architecture.to_lowercase();
                generation.starts_with(&wanted.to_lowercase())
                    || device.compute_capability.to_string() == *wanted
            })
    };
    devices.retain(|device| {
        is_of(device)
            && args.min_memory.is_none_or(|least| device.box_memory >= least)
            && args.max_memory.is_none_or(|most| device.box_memory <= most)
    });
    if devices.is_empty() { Err(CliError::NoCardLeft) } else { Ok(devices) }
}

/// The work that the prices refer to.
fn priced_work(
    args: &CardsArgs,
    prices: &Prices,
    found: &Found,
    report: &mut CardsReport,
) -> Result<PricedWork, CliError> {
    let epoch = found.workloads.iter().find_map(|(_, workload)| workload.epoch);
    let (samples, epochs) = match (args.samples, args.epochs, epoch) {
        (Some(samples), ..) => (samples, None),
        (None, Some(epochs), Some(epoch)) => (epochs.saturating_mul(epoch), Some(epochs)),
        (None, Some(_), None) if report.problem.is_none() => return Err(CliError::UnknownEpoch),
        (None, None, Some(epoch)) => (epoch, Some(1)),
        (None, _, None) => (DEFAULT_SAMPLES, None),
    };
    if !report.rows.iter().any(|row| prices.cheapest(&row.gpu, row.count).is_some()) {
        report.notes.push("the price file has no offer for any of these GPUs and counts".to_owned());
    }
    if report.problem.is_none() && found.workloads.iter().all(|(_, workload)| workload.batch.is_none()) {
        report.notes.push("the size of a batch is not known, so neither samples a second nor prices are: `--batch` gives it where an argument of the command holds it".to_owned());
    }
    Ok(PricedWork { samples, epochs, currency: prices.currency.clone() })
}

/// Searches for plans for some rows.
fn plan_some(
    args: &CardsArgs,
    wanted: &[usize],
    launches: bool,
    settings: &Settings,
    home: &Home,
    printer: &Printer,
    report: &mut CardsReport,
) {
    for place in wanted {
        let row = &report.rows[*place];
        let several = if row.count > 1 { format!("{} of ", row.count) } else { String::new() };
        printer.remark(&format!("searching for a plan for {several}{}", row.name));
        let command = row.command.iter().skip_while(|word| *word != "--").skip(1).map(Into::into).collect();
        let plan = plan_for(&row.gpu, row.count, args, command, settings, home, printer);
        let row = &mut report.rows[*place];
        match plan {
            Ok(plan) => {
                report.runs += plan.evaluations;
                apply_plan(row, plan, launches);
            }
            Err(error) => row.note = Some(format!("there is no plan: {error}")),
        }
    }
}
