//! `memfit plan`.

use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

use memfit_patch::patch;
use memfit_plan::{
    Answer, Candidate, Expected, Host, Limits, Machines, MadeFor, Outcome, Plan, Room, Setting, Trial as _,
    Tried, Verdict, framework_call, loader, padding, search, search_carried, search_spread, sha256,
};
use memfit_report::text::{Growth, milliseconds, size};
use memfit_report::wire::{
    CardKind, DeviceInfo, Peak, PlanLever, PlanLimit, PlanRank, PlanReport, PlanRun, PlanVerdict,
    ProblemKind, RejectedLever, schema,
};
use memfit_report::{plan_page, text};
use memfit_run::{Card, Home, Machine, Rehearsal, RunError};
use memfit_vocabulary::{Framework, Label, Lever, Parallel, Value};

use super::{brief_problem, catalogue, conclude, seconds_since};
use crate::args::{CardsArgs, CommandArgs, GpuChoice, Margin, PlanArgs, SHOWN};
use crate::confidential::shared;
use crate::plan::{Tries, patched, patched_for_ranks, smallest_card};
use crate::request;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Maximum runs of the script: on one GPU, and in all ways to spread it over several.
const MAX_RUNS: u64 = 80;
const MAX_SPREAD_RUNS: u64 = 240;

/// Searches for the fastest plan that fits.
pub(crate) fn plan(args: PlanArgs, settings: &Settings, home: &Home, printer: &Printer) -> Exit {
    let started = Instant::now();
    let (out, confidential) = (args.out.clone(), args.script.confidential);
    let page = args.html.clone();
    let mut report = blank(&args);
    let mut found = find(args, settings, home, printer, &mut report, true);
    report.wall_s = seconds_since(started);
    if let (Ok(()), Some(page)) = (&found, &page) {
        found = write_page(&report, confidential, page);
    }
    if let Err(error) = &found {
        report.problem = Some(brief_problem(error));
    }
    let shown = || text::plan(&report, printer.canvas());
    match conclude(found, &report, confidential, shown, &out, settings, printer) {
        Err(error) => printer.error(&error),
        Ok(()) => match report.verdict {
            Some(PlanVerdict::FitsAsIs | PlanVerdict::FitsWithPlan) => Exit::Good,
            Some(PlanVerdict::DoesNotFit) => Exit::BadNews,
            None => Exit::NoAnswer,
        },
    }
}

/// Writes the page, without the user's names if it is confidential. It does not show the patch, which is
/// source of the user's.
fn write_page(report: &PlanReport, confidential: bool, page: &Path) -> Result<(), CliError> {
    let report = PlanReport { patch: None, ..report.clone() };
    let text = plan_page(&shared(&report, confidential)?);
    std::fs::write(page, text).map_err(CliError::io("write", page))
}

/// Searches for a plan for a row of `memfit cards`.
pub(super) fn plan_for(
    gpu: &str,
    count: u32,
    args: &CardsArgs,
    command: Vec<OsString>,
    settings: &Settings,
    home: &Home,
    printer: &Printer,
) -> Result<PlanReport, CliError> {
    let args = PlanArgs {
        gpu: Some(GpuChoice { name: gpu.to_owned(), count }),
        nodes: 1,
        link: Vec::new(),
        memory: None,
        global_batch: None,
        allow: args.allow,
        without: Vec::new(),
        compile: false,
        margin: Margin::DEFAULT,
        timeout: args.timeout,
        output: None,
        html: None,
        diff: None,
        script: args.script.clone(),
        out: args.out.clone(),
        command: CommandArgs { words: command },
    };
    let mut report = blank(&args);
    find(args, settings, home, printer, &mut report, false)?;
    Ok(report)
}

fn blank(args: &PlanArgs) -> PlanReport {
    PlanReport {
        schema: schema::PLAN.to_owned(),
        verdict: None,
        device: DeviceInfo {
            name: args.gpu.as_ref().map(|gpu| gpu.name.clone()).unwrap_or_default(),
            capacity: 0,
            count: args.gpu.as_ref().map_or(1, |gpu| gpu.count),
            kind: CardKind::Virtual,
        },
        budget: 0,
        margin: args.margin.0,
        allow: args.allow.into(),
        baseline: None,
        chosen: None,
        limit: None,
        pareto: Vec::new(),
        rejected: Vec::new(),
        advice: Vec::new(),
        smallest_card: None,
        coverage: None,
        fewest_gpus: None,
        nodes: args.nodes,
        links: args.link.clone(),
        evaluations: 0,
        wall_s: 0.0,
        interrupted: false,
        notes: Vec::new(),
        torch: None,
        command: memfit_run::without_secrets(args.command.text()),
        plan: None,
        patch: None,
        problem: None,
    }
}

fn find(
    args: PlanArgs,
    settings: &Settings,
    home: &Home,
    printer: &Printer,
    report: &mut PlanReport,
    asks_for_smallest: bool,
) -> Result<(), CliError> {
    let catalogue = catalogue(args.script.catalogue.as_deref(), settings)?;
    let (allow, margin, global_batch) = (Label::from(args.allow), args.margin.0, args.global_batch);
    let output = args.output.clone();
    let (diff, compiles, without) = (args.diff.clone(), args.compile, args.without.clone());
    let request = request::to_plan(args, settings, &catalogue)?;
    report.device = request.card.info();
    let Card::Virtual(device, _) = request.card.clone() else { return Err(CliError::PlanForLocal) };
    report.budget = (device.memory.get() as f64 * (1.0 - margin)) as u64;
    printer.remark("starting the script, up to its first use of the GPU");
    let rehearsal = Rehearsal::open(&request, home, printer).map_err(|error| match error {
        RunError::Interrupted => {
            CliError::NothingToPlan { why: error.to_string(), hint: error.hints().concat() }
        }
        other => other.into(),
    })?;
    let script = rehearsal.script();
    if !rehearsal.forks() {
        report.notes.push("the script trains in several processes, or its own process never uses the GPU: each candidate was started from scratch, which takes longer".to_owned());
    }
    let limits = Limits {
        allow,
        budget: report.budget,
        global_batch,
        has_bf16: device.rates.bf16.is_some(),
        has_tf32: device.rates.tf32.is_some(),
        cards: report.device.count,
        compiles,
        link: Some(device.host_link.bandwidth as f64),
        without,
        unwritable: Vec::new(),
        unsuited: Vec::new(),
        most_runs: MAX_RUNS,
    };
    let mut tries = Tries::new(rehearsal, request.clone(), report.budget, printer);
    let found = search_all(&mut tries, &limits, report)?;
    let found = match tries.stands_for() {
        Some(processes) => run_by_all(processes, found, &mut tries, &limits)?,
        None => found,
    };
    report.torch.clone_from(&tries.torch);
    report.coverage.clone_from(&tries.coverage);
    let Some(found) = found else {
        report.interrupted = true;
        return Err(CliError::NothingToPlan {
            why: "interrupted before the first run of the script had ended".to_owned(),
            hint: "allow more time with `--timeout`".to_owned(),
        });
    };
    let is_spread = found.chosen.as_ref().is_some_and(|chosen| chosen.candidate.parallel.is_some());
    let found = match &script {
        Some(script) if diff.is_some() && !is_spread && found.verdict == Verdict::FitsWithPlan => {
            writable(found, &mut tries, &limits, script, report)?
        }
        _ => found,
    };
    // If every run starts the script again, it is searched only if nothing else helps.
    let cheap = tries.forks() && found.verdict == Verdict::FitsWithPlan && !is_spread;
    if asks_for_smallest && (found.verdict == Verdict::DoesNotFit || cheap) && !found.interrupted {
        report.smallest_card = smallest_card(&mut tries, &found, &catalogue, margin, printer)?;
    }
    let unsettled = match &found.chosen {
        _ if found.interrupted => None,
        Some(chosen) => tries.unsettled(&chosen.candidate)?,
        // With other values, the script may fit without a plan.
        None => tries
            .unsettled(&Candidate::as_is())?
            .filter(|problem| problem.kind == ProblemKind::NumberReadBack),
    };
    tries.done();
    fill_report(&found, &tries, report);
    if let Some(limit) = found.run_limit {
        report.notes.push(format!("the search ended at its limit of {limit} runs"));
    }
    if let Some(problem) = unsettled {
        report.verdict = None;
        return Err(CliError::PlanUnsettled(problem));
    }
    let step_ms = found.chosen.as_ref().and_then(|chosen| chosen.outcome.peak.step_ms);
    if let (Some(loading), Some(step_ms)) = (&found.training.loading, step_ms)
        && let Some(wanted) = loader(loading, found.training.batch, step_ms, &host())
    {
        report.advice.push(format!(
            "`DataLoader(…, num_workers={}, prefetch_factor={}, pin_memory=True)`: {}",
            wanted.workers, wanted.prefetch, wanted.why
        ));
    }
    report.advice.extend(of_padding(&found));
    let Some(chosen) = &found.chosen else { return Ok(()) };
    let plan = file(chosen, &found, report, script.as_deref());
    report.advice.extend(of_framework(&found, &plan));
    report.advice.extend(of_ignored(&found, chosen));
    if let Some(path) = &output {
        if found.verdict == Verdict::FitsAsIs {
            report
                .notes
                .push(format!("nothing was written to `{}`: the script needs no plan", path.display()));
        } else {
            plan.write(path)?;
            report.plan = Some(path.display().to_string());
        }
    }
    if let Some(wanted) = diff.filter(|_| found.verdict == Verdict::FitsWithPlan) {
        let into = Some(wanted.as_path()).filter(|path| *path != Path::new(SHOWN));
        change(&plan, &found, script.as_deref(), into, &mut tries, report, printer)?;
    }
    Ok(())
}

/// Searches for one GPU, or for all GPUs if the script is one process that memfit can spread.
fn search_all(
    tries: &mut Tries<'_>,
    limits: &Limits,
    report: &PlanReport,
) -> Result<Option<Answer>, CliError> {
    let machines = Machines { gpus: limits.cards, count: report.nodes };
    if machines.gpus.saturating_mul(machines.count) < 2 || tries.stands_for().is_some() {
        return search(tries, limits);
    }
    // The run of the unchanged script is the first run of either search.
    if tries.run(&Candidate::as_is(), Room::Budget)?.is_none() {
        return Ok(None);
    }
    if tries.is_plain() {
        tries.hide_other_gpus();
        let limits = Limits { most_runs: MAX_SPREAD_RUNS, ..limits.clone() };
        search_spread(tries, &limits, machines)
    } else {
        search(tries, limits)
    }
}

/// The best plan that a patch of the script can contain completely, with a remark on a better one that it
/// cannot; the plan itself if no such plan fits.
fn writable(
    best: Answer,
    tries: &mut Tries<'_>,
    limits: &Limits,
    script: &Path,
    report: &mut PlanReport,
) -> Result<Answer, CliError> {
    let text = std::fs::read_to_string(script).map_err(CliError::io("read", script))?;
    let left_out = |found: &Answer| match &found.chosen {
        Some(chosen) => {
            let left = patch(&text, &file(chosen, found, report, Some(script))).left;
            left.into_iter().map(|left| (left.lever, left.why)).collect()
        }
        None => Vec::new(),
    };
    let found = search_carried(tries, limits, &best, left_out)?;
    let Some(found) = found else {
        report.notes.push(
            "no plan that fits can be written completely as a change of the script: the change lacks part of this one"
                .to_owned(),
        );
        return Ok(best);
    };
    let (Some(chosen), Some(better)) = (&found.chosen, &best.chosen) else { return Ok(best) };
    if chosen.candidate != better.candidate {
        let figures = |tried: &Tried| {
            let time = tried.outcome.peak.step_ms.map(|time| format!("{} per step, ", milliseconds(time)));
            format!("{}{}", time.unwrap_or_default(), size(tried.outcome.peak.device_upper))
        };
        report.advice.push(format!(
            "a better plan ({}, instead of {}) cannot be written as a change of the script: {}. `memfit plan -o memfit.plan.toml` without `--diff` writes it for `memfit.Step` and `memfit run --plan`",
            figures(better),
            figures(chosen),
            better.candidate.describe(),
        ));
    }
    Ok(found)
}

/// The resources of this machine, for the advice on data loaders.
fn host() -> Host {
    let Machine { processors, shared_memory, memory } = Machine::current();
    Host { processors, shared_memory, memory }
}

/// The plan was found with the first of several processes: runs it with all of them. If it does not fit,
/// searches again with all of them.
fn run_by_all(
    processes: u32,
    found: Option<Answer>,
    tries: &mut Tries<'_>,
    limits: &Limits,
) -> Result<Option<Answer>, CliError> {
    let alone = format!("{processes} processes train: each candidate ran the first one, which stood for all");
    let Some(mut found) = found else { return Ok(None) };
    let Some(chosen) = &mut found.chosen else {
        tries.notes.push(alone);
        return Ok(Some(found));
    };
    let whole = if found.interrupted { None } else { tries.with_all(&chosen.candidate)? };
    found.evaluations += u64::from(whole.is_some());
    match whole {
        Some(whole) if whole.fits && whole.refused.is_empty() => {
            tries.notes.push(format!("{alone}; the plan was then confirmed with all of them"));
            let training = chosen.outcome.training.take();
            chosen.outcome = Outcome { training, ..whole };
            if found.verdict == Verdict::FitsAsIs {
                found.baseline = chosen.clone();
            }
            Ok(Some(found))
        }
        Some(_) => {
            tries.notes.push(format!(
                "{alone}; with all of them it did not fit, so each candidate was then run with all"
            ));
            tries.run_all();
            search(tries, limits)
        }
        None => {
            tries.notes.push(format!("{alone}; the plan was not run with all of them"));
            Ok(Some(found))
        }
    }
}

/// Minimum share of computation that padding must take for another order of the samples to be suggested.
const PADDING_WORTH: f64 = 0.05;

/// Remark on the savings of batches of similar length.
fn of_padding(found: &Answer) -> Option<String> {
    let training = &found.training;
    let padding = padding(&training.lengths, training.batch)?;
    let saved = padding.random_batches - padding.bucketed;
    let lever = Lever::LengthBuckets;
    (saved > PADDING_WORTH).then(|| {
        format!(
            "samples differ in length: {:.0} % of a batch of {} is padding, and {:.0} % with batches of similar length (`{lever}`, `{}`, which a plan file may name); the largest batch stays as large",
            padding.random_batches * 100.0,
            training.batch,
            padding.bucketed * 100.0,
            lever.label()
        )
    })
}

/// Remark on a mean over labels with ignored ones, in micro-batches. Transformers' Trainer averages over all
/// of them where its own settings make the micro-batches, which they can where all have the same size.
fn of_ignored(found: &Answer, chosen: &Tried) -> Option<String> {
    let training = &found.training;
    let share = chosen.candidate.parallel.unwrap_or_default().share(training.batch);
    let size = chosen.candidate.micro_batch.filter(|_| training.ignores)?;
    let by_trainer = training.framework == Some(Framework::Transformers) && share.is_multiple_of(size);
    (!by_trainer).then(|| {
        "the loss ignores labels of -100, and micro-batches are weighted by their number of samples: if they have different numbers of \
         labels that count, the result is not exactly the mean over the batch. `memfit.Step` weights by labels if its loss returns \
         `(sum of losses, count)`"
            .to_owned()
    })
}

/// The plan in the settings of the library whose loop trains.
fn of_framework(found: &Answer, plan: &Plan) -> Option<String> {
    let framework = found.training.framework.filter(|_| found.verdict == Verdict::FitsWithPlan)?;
    let call = framework_call(framework, plan)?;
    Some(format!("the same in the library's own settings, as far as it has them: {call}"))
}

/// The plan as a patch of the script.
fn change(
    plan: &Plan,
    found: &Answer,
    script: Option<&Path>,
    into: Option<&Path>,
    tries: &mut Tries<'_>,
    report: &mut PlanReport,
    printer: &Printer,
) -> Result<(), CliError> {
    let Some(script) = script else {
        report.notes.push("no change is shown: the command names no script file".to_owned());
        return Ok(());
    };
    let divides_alike = report.chosen.as_ref().is_some_and(|chosen| {
        let micro_batch = chosen.levers.iter().find(|lever| lever.lever == Lever::MicroBatch);
        micro_batch.is_some_and(|lever| lever.label == Label::Rounding && lever.unverified.is_none())
    });
    let mut patch = if plan.parallel.is_some_and(|parallel| parallel.is_spread()) {
        let blocks: Vec<String> = found.training.blocks.iter().map(|block| block.name.clone()).collect();
        patched_for_ranks(tries, plan, &found.ranks, &blocks, script, printer)?
    } else {
        patched(tries, plan, divides_alike, script, printer)?
    };
    if let Some(into) = into.filter(|_| !patch.diff.is_empty()) {
        std::fs::write(into, &patch.diff).map_err(CliError::io("write", into))?;
        patch.written = Some(into.display().to_string());
    }
    report.patch = Some(patch);
    Ok(())
}

fn fill_report(found: &Answer, tries: &Tries<'_>, report: &mut PlanReport) {
    report.verdict = match found.verdict {
        Verdict::FitsAsIs => Some(PlanVerdict::FitsAsIs),
        Verdict::FitsWithPlan => Some(PlanVerdict::FitsWithPlan),
        // A plan that was not tried yet may fit.
        Verdict::DoesNotFit if found.interrupted => None,
        Verdict::DoesNotFit => Some(PlanVerdict::DoesNotFit),
    };
    let run = |tried: &Tried, composed: bool| plan_run(tried, found, composed.then_some(tries));
    report.baseline = Some(run(&found.baseline, true));
    report.chosen = found.chosen.as_ref().map(|chosen| run(chosen, true));
    report.limit = found.limit.map(|limit| PlanLimit { largest: limit.largest, refuted: limit.refuted });
    // What is not allowed would contradict the verdict; what it would save is in the advice.
    let allowed = |run: &PlanRun| run.levers.iter().all(|lever| lever.label <= report.allow);
    let tried = found.front().into_iter().map(|tried| run(tried, false));
    report.pareto = tried.filter(allowed).collect();
    report.rejected = found
        .rejected
        .iter()
        .map(|rejected| RejectedLever { lever: rejected.lever.clone(), why: rejected.why.clone() })
        .collect();
    report.advice.extend(found.advice.iter().cloned());
    report.fewest_gpus = found.fewest;
    if let Some(chosen) = &mut report.chosen {
        chosen.ranks =
            found.ranks.iter().map(|(rank, peak)| PlanRank { rank: *rank, peak: wire_peak(peak) }).collect();
    }
    report.evaluations = found.evaluations;
    report.interrupted = found.interrupted;
    report.notes.extend(tries.notes.iter().cloned());
    let shown = found.chosen.as_ref().unwrap_or(&found.baseline);
    report.notes.extend(tries.growth(&shown.candidate).map(Growth::with_advice));
}

fn plan_run(tried: &Tried, found: &Answer, tries: Option<&Tries<'_>>) -> PlanRun {
    let candidate = &tried.candidate;
    let parallel = candidate.parallel.filter(Parallel::is_spread);
    let batch = parallel.unwrap_or_default().share(found.training.batch);
    let mut levers: Vec<PlanLever> = candidate
        .micro_batch
        .map(|micro_batch| PlanLever {
            lever: Lever::MicroBatch,
            value: Value::Count(micro_batch),
            label: found.label_of_micro_batches(),
            unverified: found.training.unverified(),
        })
        .into_iter()
        .collect();
    levers.extend(candidate.settings.iter().map(|Setting { lever, value, label }| PlanLever {
        lever: *lever,
        value: value.clone(),
        label: *label,
        unverified: None,
    }));
    let peak = tried.outcome.peak;
    PlanRun {
        levers,
        micro_batch: candidate.micro_batch.or((batch > 0).then_some(batch)),
        micro_batches_per_step: candidate.pieces
            * candidate.accumulate
            * found.training.own_accumulation.max(1),
        accumulate: candidate.accumulate * found.training.own_accumulation.max(1),
        parallel,
        parallel_label: parallel.map(|parallel| match parallel.batches() {
            1 => Label::Rounding,
            _ => found.label_of_micro_batches().max(Label::Rounding),
        }),
        library: found.training.framework.filter(|_| parallel.is_some()),
        ranks: Vec::new(),
        gpus_used: tried.outcome.gpus_used,
        bound_by: peak.step_ms.and_then(|step_ms| tried.outcome.busy.bound(step_ms)),
        peak: wire_peak(&peak),
        step_ms_estimate: peak.step_ms,
        step_ms_low: tried.outcome.step_ms_low,
        step_ms_high: tried.outcome.step_ms_high,
        fits: tried.fits(),
        refuted: found
            .tried
            .iter()
            .any(|other| other.on_card && !other.outcome.fits && other.candidate == *candidate),
        at_peak: tries.and_then(|tries| tries.at_peak(candidate, tried.on_card)),
    }
}

const fn wire_peak(peak: &Expected) -> Peak {
    Peak {
        allocated: peak.allocated,
        reserved: peak.reserved,
        device: peak.device,
        device_upper: peak.device_upper,
    }
}

/// The plan file of the chosen candidate.
fn file(chosen: &Tried, found: &Answer, report: &PlanReport, script: Option<&Path>) -> Plan {
    let run = plan_run(chosen, found, None);
    Plan {
        micro_batch: chosen.candidate.micro_batch,
        micro_batches_per_step: Some(run.micro_batches_per_step),
        accumulate: run.accumulate,
        parallel: run.parallel,
        levers: chosen.candidate.settings.clone(),
        made_for: MadeFor {
            memfit: crate::VERSION.to_owned(),
            torch: report.torch.clone(),
            gpu: report.device.name.clone(),
            capacity: report.device.capacity,
            count: u64::from(report.device.count),
            nodes: (report.nodes > 1).then(|| u64::from(report.nodes)),
            links: report.links.clone(),
            command: report.command.clone(),
            batch: Some(found.training.batch).filter(|batch| *batch > 0),
            own_accumulation: found.training.own_accumulation.max(1),
            batch_names: found.training.names.clone(),
            models: found.training.models.clone(),
            framework: run.library,
            block_classes: found
                .training
                .block_classes
                .iter()
                .filter(|_| run.library.is_some())
                .cloned()
                .collect(),
            inference: !found.training.optimizes,
            script: script.map(|script| script.display().to_string()),
            script_sha256: script.and_then(|script| std::fs::read(script).ok()).map(|text| sha256(&text)),
        },
        expected: Some(chosen.outcome.peak),
    }
}
