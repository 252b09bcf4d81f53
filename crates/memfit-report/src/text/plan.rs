//! Text output of `memfit plan`.

use std::fmt::Write as _;

use anstyle::Style;
use memfit_vocabulary::{Category, Framework, Label, Lever, Moved, Parallel, Value, counted, shell_line};

use super::canvas::{ADVICE, BAD, BOLD, Canvas, DIM, DOUBT, GOOD};
use super::coverage::{coverable, not_covered, not_run, what_ran};
use super::{milliseconds, size};
use crate::wire::{PatchNumbers, PlanLever, PlanPatch, PlanReport, PlanRun, PlanVerdict, Verdict};

/// Maximum rows of the Pareto front.
const MAX_ROWS: usize = 12;
/// Maximum categories.
const MAX_CATEGORIES: usize = 8;

/// The report of a search.
pub fn plan(report: &PlanReport, canvas: Canvas) -> String {
    let mut out = String::new();
    headline(&mut out, report, canvas);
    if let Some(problem) = &report.problem {
        out.push_str(&canvas.problem(problem));
    }
    if let (Some(chosen), Some(PlanVerdict::FitsWithPlan)) = (&report.chosen, report.verdict) {
        the_plan(&mut out, report, chosen, canvas);
    }
    if let Some(baseline) = &report.baseline {
        before_and_after(&mut out, baseline, report);
    }
    front(&mut out, report, canvas);
    if !report.rejected.is_empty() {
        out.push_str("\nNot in the plan\n");
        for rejected in &report.rejected {
            out.push_str(&canvas.wrapped(&format!("  {}: ", rejected.lever), BOLD, &rejected.why));
        }
    }
    out.push('\n');
    if let Some(coverage) = report.coverage.as_ref().filter(|_| report.verdict.is_some()) {
        if let Some(missing) = not_covered(coverage) {
            let what = format!("{missing}: the plan's memory is that of training steps");
            out.push_str(&canvas.wrapped("not covered: ", DOUBT, &what));
        }
        let lines = not_run(coverage);
        if !lines.is_empty() {
            out.push_str(&canvas.wrapped("not run: ", DIM, &lines.join("; ")));
        }
    }
    for note in &report.notes {
        out.push_str(&canvas.wrapped("note: ", DIM, note));
    }
    let tried = format!(
        "{} runs in {:.1} s{}",
        report.evaluations,
        report.wall_s,
        if report.interrupted { "; ended early, so there may be a better plan" } else { "" }
    );
    out.push_str(&canvas.wrapped("tried: ", DIM, &tried));
    for line in next(report) {
        out.push_str(&canvas.wrapped("next: ", ADVICE, &line));
    }
    if let Some(patch) = &report.patch {
        change(&mut out, patch, report.chosen.as_ref(), canvas);
    }
    out
}

/// The plan as a patch of the script. Remarks come first, so that the patch ends the text and `git apply`
/// accepts it.
fn change(out: &mut String, patch: &PlanPatch, chosen: Option<&PlanRun>, canvas: Canvas) {
    let _ = writeln!(out, "\nAs a change of `{}`", patch.file);
    if let Some(proof) = &patch.proof {
        let (style, sentence) = match proof.verdict {
            Verdict::Fits => {
                (GOOD, format!("the changed script was run, and fits: {}", size(proof.peak.device_upper)))
            }
            Verdict::Oom => (BAD, "the changed script was run, and does not fit".to_owned()),
            Verdict::Unknown => (
                DOUBT,
                format!(
                    "the changed script was run, and used {}; it is not certain that it fits",
                    size(proof.peak.device_upper)
                ),
            ),
            Verdict::Error => {
                (BAD, "the changed script was run, and failed for a reason other than memory".to_owned())
            }
        };
        out.push_str(&canvas.wrapped("  ", style, &sentence));
    }
    if let Some(numbers) = &patch.numbers {
        for (style, sentence) in in_numbers(numbers, &uncompared(numbers, chosen)) {
            out.push_str(&canvas.wrapped("  ", style, &sentence));
        }
    }
    for left in &patch.left {
        out.push_str(&canvas.wrapped(&format!("  without {}: ", left.lever), BOLD, &left.why));
    }
    for remark in &patch.remarks {
        out.push_str(&canvas.wrapped("  note: ", DIM, remark));
    }
    match &patch.written {
        Some(file) => {
            let text = format!("written to `{file}`, for `git apply` or `patch -p1`");
            out.push_str(&canvas.wrapped("  ", Style::new(), &text));
        }
        None if !patch.diff.is_empty() => {
            out.push('\n');
            out.push_str(&patch.diff);
        }
        None => {}
    }
}

/// The plan's levers that lower the precision, with which nothing could be equal.
fn uncompared<'a>(numbers: &PatchNumbers, chosen: Option<&'a PlanRun>) -> Vec<&'a str> {
    let levers = chosen.map(|chosen| chosen.levers.iter()).into_iter().flatten();
    levers
        .filter(|lever| lever.label >= Label::Precision)
        .map(|lever| lever.lever.name())
        .filter(|name| !numbers.levers.iter().any(|compared| compared == name))
        .collect()
}

/// Result of comparing the training of both scripts.
fn in_numbers(numbers: &PatchNumbers, uncompared: &[&str]) -> Vec<(Style, String)> {
    let Some(equal) = numbers.equal else {
        let why = numbers.why.as_deref().unwrap_or("it was not tried");
        let sentence =
            format!("its gradients and buffers were not compared with the original script's: {why}");
        return vec![(DOUBT, sentence)];
    };
    let parts = numbers.part.map_or(String::new(), |part| format!(", split into micro-batches of {part}"));
    // Batches that are split say it.
    let split = numbers.part.is_some().then_some(Lever::MicroBatch.name());
    let others: Vec<&str> =
        numbers.levers.iter().map(String::as_str).filter(|name| Some(*name) != split).collect();
    let with = if others.is_empty() { String::new() } else { format!("; with {}", others.join(", ")) };
    let without = if uncompared.is_empty() {
        String::new()
    } else {
        format!(", without {}, which lowers the precision", uncompared.join(" and "))
    };
    let how = format!(
        "compared on this machine's CPU ({} steps, batches of {} samples{parts}{with}){without}",
        numbers.steps, numbers.batch,
    );
    let mut phrases = vec![if equal {
        let apart = numbers.difference.filter(|share| *share > 0.0).map_or_else(
            || "equal".to_owned(),
            |share| format!("equal within rounding ({share:.0e} at most)"),
        );
        (GOOD, format!("its gradients, updates, buffers and optimizer settings are {apart}, {how}"))
    } else {
        (BAD, format!("it trains differently from the original script: {}, {how}", numbers.difference_told()))
    }];
    if let Some((now, before)) = &numbers.printed {
        let told_then = if before.is_empty() { "nothing".to_owned() } else { format!("`{}`", before.trim()) };
        phrases.push((DOUBT, format!("it prints `{}` where the script prints {told_then}", now.trim())));
    }
    phrases
}

fn headline(out: &mut String, report: &PlanReport, canvas: Canvas) {
    let name = report.device.name.strip_prefix("NVIDIA ").unwrap_or(&report.device.name);
    let gpus = report.device.count.saturating_mul(report.nodes);
    let run = match report.verdict {
        Some(PlanVerdict::FitsAsIs) => report.baseline.as_ref(),
        _ => report.chosen.as_ref(),
    };
    let uses_one = gpus > 1 && run.is_some_and(|run| run.parallel.is_none() && run.gpus_used == 1);
    let many = match (gpus, report.nodes) {
        (1, _) => "a virtual".to_owned(),
        (gpus, _) if uses_one => format!("one of {gpus} virtual"),
        (gpus, 1) => format!("{gpus} virtual"),
        (gpus, nodes) => format!("{gpus} virtual ({nodes} machines)"),
    };
    let place = format!("{many} {name} ({} usable of {})", size(report.budget), size(report.device.capacity));
    let each = if gpus > 1 && !uses_one { " on each" } else { "" };
    let used = |run: &Option<PlanRun>| {
        run.as_ref()
            .map_or_else(String::new, |run| format!(": at most {} used{each}", size(run.peak.device_upper)))
    };
    let of = report.coverage.as_ref().map_or_else(String::new, |ran| format!("for {}, ", what_ran(ran)));
    let (style, badge, sentence) = match report.verdict {
        Some(PlanVerdict::FitsAsIs) => {
            (GOOD, "FITS AS IS", format!("{of}on {place}{}", used(&report.baseline)))
        }
        Some(PlanVerdict::FitsWithPlan) => {
            (GOOD, "FITS WITH A PLAN", format!("{of}on {place}{}", used(&report.chosen)))
        }
        Some(PlanVerdict::DoesNotFit) => {
            (BAD, "DOES NOT FIT", format!("on {place}, with any plan labelled up to `{}`", report.allow))
        }
        None if report.interrupted && report.problem.is_none() => {
            (DOUBT, "NO PLAN YET", format!("for {place}: the search ended early"))
        }
        None => (BAD, "NO ANSWER", format!("for {place}")),
    };
    out.push_str(&canvas.wrapped(&format!("{badge}  "), style, &sentence));
}

fn the_plan(out: &mut String, report: &PlanReport, chosen: &PlanRun, canvas: Canvas) {
    out.push_str("\nThe plan\n");
    if let Some(parallel) = &chosen.parallel {
        let label = chosen.parallel_label.unwrap_or(Label::Rounding);
        let text = format!("{} ({label}: {})", spread_in_words(parallel, chosen.library), label.meaning());
        out.push_str(&canvas.wrapped("  - ", Style::new(), &text));
    }
    let limit = of_limit(report, chosen);
    for lever in &chosen.levers {
        let text = format!("{} ({})", in_words(lever, chosen), meaning(lever));
        out.push_str(&canvas.wrapped("  - ", Style::new(), &text));
        if let Some(limit) = limit.as_ref().filter(|_| lever.lever == Lever::MicroBatch) {
            out.push_str(&canvas.wrapped("    ", DIM, limit));
        }
    }
}

/// Size of the largest micro-batch that fits, and why the plan's is another.
fn of_limit(report: &PlanReport, chosen: &PlanRun) -> Option<String> {
    let (limit, micro_batch) = (report.limit?, chosen.micro_batch?);
    let batch = report.baseline.as_ref().and_then(|baseline| baseline.micro_batch).unwrap_or_default();
    let pieces = batch.div_ceil(micro_batch.max(1));
    Some(match limit.refuted {
        Some(refuted) if limit.largest > micro_batch => {
            let why = if batch.div_ceil(limit.largest.max(1)) == pieces {
                format!("{micro_batch} also makes {pieces} micro-batches, and leaves more memory free")
            } else {
                "a step is hardly faster with more samples".to_owned()
            };
            format!("{} samples fit, and {refuted} do not; {why}", limit.largest)
        }
        Some(refuted) => format!("{refuted} samples do not fit: confirmed by a run"),
        None => "the whole batch fits with these levers, and is no faster".to_owned(),
    })
}

/// Describes how training is spread over several GPUs.
fn spread_in_words(parallel: &Parallel, library: Option<Framework>) -> String {
    let mut parts = Vec::new();
    // Lightning's strategy for any model is the older FSDP.
    let sharded = if library == Some(Framework::Lightning) { "FSDP" } else { "FSDP2" };
    match (parallel.replicate, parallel.shard) {
        (1, 1) => {}
        (replicas, 1) => parts.push(format!("{replicas} replicas, each with its share of the batch (DDP)")),
        (1, ranks) => parts.push(format!(
            "parameters, gradients and optimizer state sharded over {ranks} GPUs, each with its share of the batch ({sharded})"
        )),
        (replicas, ranks) => parts.push(format!(
            "{replicas} replicas, each sharded over {ranks} GPUs; each GPU has its share of the batch (HSDP)"
        )),
    }
    if parallel.tensor > 1 {
        parts.push(format!(
            "the matrices of each layer divided over {} GPUs (tensor parallelism)",
            parallel.tensor
        ));
    }
    if parallel.shard > 1 && !parallel.reshard_after_forward {
        parts.push("gathered parameters kept until the backward pass".to_owned());
    }
    parts.join("; ")
}

/// A lever in plain words.
pub(crate) fn in_words(lever: &PlanLever, chosen: &PlanRun) -> String {
    let PlanLever { lever, value, label, .. } = lever;
    lever.sentence(Moved { value, label: *label, passes: chosen.micro_batches_per_step })
}

/// Effect of a lever on the training, or the reason why it is unverified.
pub(crate) fn meaning(lever: &PlanLever) -> String {
    let declared = || format!("{}: {}", lever.label, lever.label.meaning());
    lever.unverified.clone().unwrap_or_else(declared)
}

fn before_and_after(out: &mut String, baseline: &PlanRun, report: &PlanReport) {
    let after = report.chosen.as_ref().filter(|_| report.verdict == Some(PlanVerdict::FitsWithPlan));
    let time = |run: &PlanRun| run.step_ms_estimate.map_or("?".to_owned(), milliseconds);
    let head = format!("{:<16}{:>12}{:>14}", "", "as is", after.map_or("", |_| "with plan"));
    let _ = writeln!(out, "\n{}", head.trim_end());
    let mut row = |name: &str, of: &dyn Fn(&PlanRun) -> String| {
        let line = format!("  {name:<14}{:>12}{:>14}", of(baseline), after.map_or(String::new(), of));
        let _ = writeln!(out, "{}", line.trim_end());
    };
    row("step", &time);
    if after.is_some_and(|run| run.parallel.is_some()) {
        row("bound by", &|run| run.bound_by.map_or("?".to_owned(), |bound| bound.name().to_owned()));
    }
    row("device at most", &|run| size(run.peak.device_upper));
    row("reserved", &|run| size(run.peak.reserved));
    row("allocated", &|run| size(run.peak.allocated));
    let categories = categories(baseline, after);
    if !categories.is_empty() {
        // Categories are those of one moment; what is reserved may be highest at another.
        row("at that moment", &|_| String::new());
    }
    for category in categories {
        row(category.name(), &|run| {
            run.at_peak.as_ref().map_or("?".to_owned(), |at_peak| size(at_peak.by_category.get(category)))
        });
    }
}

/// The largest categories of one run or the other, by their size without the plan and then with it.
fn categories(baseline: &PlanRun, after: Option<&PlanRun>) -> Vec<Category> {
    let peaks = [Some(baseline), after];
    let mut found: Vec<Category> = Vec::new();
    for peak in peaks.into_iter().flatten().filter_map(|run| run.at_peak.as_ref()) {
        for (category, _) in peak.by_category.by_size().into_iter().take(MAX_CATEGORIES) {
            if !found.contains(&category) {
                found.push(category);
            }
        }
    }
    found
}

fn front(out: &mut String, report: &PlanReport, canvas: Canvas) {
    // Where memory is short, what needs more of it than the script as it is helps nobody.
    let own = report.baseline.as_ref().map_or(u64::MAX, |own| own.peak.device_upper);
    let helps = |run: &&PlanRun| run.fits || run.peak.device_upper <= own;
    let rows: Vec<&PlanRun> = report.pareto.iter().filter(helps).take(MAX_ROWS).collect();
    if rows.len() < 2 {
        return;
    }
    out.push_str("\nTime against memory: the best trade-offs found\n");
    for run in &rows {
        let chosen = report.chosen.as_ref().is_some_and(|chosen| {
            chosen.levers == run.levers
                && chosen.accumulate == run.accumulate
                && chosen.parallel == run.parallel
        });
        let mark = if chosen { ">" } else { " " };
        let figures = format!(
            "{mark} {:>10} {:>11}  {:<7}  ",
            run.step_ms_estimate.map_or("?".to_owned(), milliseconds),
            size(run.peak.device_upper),
            match (run.fits, is_too_big(run, report)) {
                (true, _) => "fits",
                (false, true) => "too big",
                (false, false) => "not run",
            }
        );
        let style = if chosen {
            BOLD
        } else if run.fits {
            Style::new()
        } else {
            DIM
        };
        out.push_str(&canvas.wrapped(&figures, style, &in_short(run)));
    }
    if rows.iter().any(|run| !run.fits && !is_too_big(run, report)) {
        out.push_str(&canvas.wrapped(
            "  ",
            DIM,
            "not run: no run with this GPU's memory confirms the figures",
        ));
    }
}

fn is_too_big(run: &PlanRun, report: &PlanReport) -> bool {
    run.refuted || run.peak.device_upper > report.budget
}

/// A plan in few words.
pub(crate) fn in_short(run: &PlanRun) -> String {
    if run.levers.is_empty() && run.parallel.is_none() {
        return "as is".to_owned();
    }
    let spread = run.parallel.iter().map(ToString::to_string);
    let parts = spread.chain(run.levers.iter().map(|lever| match &lever.value {
        Value::Names(names) => format!("{} of {}", lever.lever, counted(names.len() as u64, "block")),
        Value::Switch(true) => lever.lever.name().to_owned(),
        value => format!("{} {value}", lever.lever),
    }));
    parts.collect::<Vec<_>>().join(", ")
}

fn next(report: &PlanReport) -> Vec<String> {
    let mut lines = report.advice.clone();
    match report.verdict {
        Some(PlanVerdict::FitsWithPlan) => match &report.plan {
            Some(plan) if let Some(library) = report.chosen.as_ref().and_then(|chosen| chosen.library) => {
                lines.push(format!(
                    "`memfit launch {plan} -- {}` prints the command that starts it; {} trains with the settings above",
                    shell_line(&report.command),
                    library.title()
                ));
            }
            Some(plan) if report.chosen.as_ref().is_some_and(|chosen| chosen.parallel.is_some()) => {
                lines.push(format!(
                    "train with `memfit.Step(model, optimizer, loss=fn, plan=\"{plan}\")`; `memfit launch {plan} -- {}` prints the command that starts it",
                    shell_line(&report.command)
                ));
            }
            Some(plan) => {
                let full = report.coverage.as_ref().and_then(coverable);
                let (cover, more) = full
                    .map_or(("", String::new()), |parts| ("--cover full ", format!(", and also {parts}")));
                lines.push(format!(
                    "train with `memfit.Step(model, optimizer, loss=fn, plan=\"{plan}\")`; `memfit run {cover}--plan {plan} -- {}`, with the same `--gpu`, runs the unmodified script with it{more}",
                    shell_line(&report.command)
                ));
                let mut levers = report.chosen.iter().flat_map(|chosen| &chosen.levers);
                if let Some((name, value)) = levers.find_map(|lever| lever.lever.environment()) {
                    lines.push(format!(
                        "start the training with {name}={value}: the plan's setting of the allocator has to be known before PyTorch starts"
                    ));
                }
            }
            None => lines.push("`-o memfit.plan.toml` writes the plan to a file".to_owned()),
        },
        Some(PlanVerdict::DoesNotFit | PlanVerdict::FitsAsIs) | None => {}
    }
    if let Some(card) = &report.smallest_card {
        lines.push(format!(
            "the smallest GPU on which the unmodified script fits{} is {} with {}",
            report.coverage.as_ref().map_or_else(String::new, |ran| format!(", for {},", what_ran(ran))),
            card.name,
            size(card.capacity)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(numbers: &PatchNumbers) -> String {
        in_numbers(numbers, &[]).into_iter().map(|(_, sentence)| sentence).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn gradients_that_were_compared_are_told_with_how() {
        let compared = PatchNumbers {
            equal: Some(true),
            levers: vec!["micro-batch".to_owned(), "checkpointing".to_owned()],
            steps: 4,
            batch: 5,
            part: Some(2),
            difference: Some(7e-5),
            ..PatchNumbers::default()
        };
        assert_eq!(
            sentences(&compared),
            "its gradients, updates, buffers and optimizer settings are equal within rounding (7e-5 at most), compared on this machine's CPU (4 steps, batches of 5 samples, split into micro-batches of 2; with checkpointing)"
        );
        let exact = PatchNumbers { difference: Some(0.0), part: None, ..compared.clone() };
        assert!(
            sentences(&exact)
                .starts_with("its gradients, updates, buffers and optimizer settings are equal, compared"),
            "{}",
            sentences(&exact)
        );
        let other = PatchNumbers {
            equal: Some(false),
            difference: Some(0.25),
            parameter: Some("0.weight".to_owned()),
            printed: Some(("loss 1".to_owned(), "loss 2".to_owned())),
            ..compared.clone()
        };
        let text = sentences(&other);
        assert!(
            text.contains(
                "trains differently from the original script: gradients of `0.weight` differ by 25.000 %"
            ),
            "{text}"
        );
        assert!(text.ends_with("it prints `loss 1` where the script prints `loss 2`"), "{text}");
        let state = PatchNumbers {
            state: Some("1.running_mean".to_owned()),
            parameter: None,
            printed: None,
            ..other.clone()
        };
        let text = sentences(&state);
        assert!(text.contains("original script: `1.running_mean` differs by 25.000 %"), "{text}");
        let none = PatchNumbers {
            why: Some("the script trains in several processes".to_owned()),
            ..PatchNumbers::default()
        };
        assert_eq!(
            sentences(&none),
            "its gradients and buffers were not compared with the original script's: the script trains in several processes"
        );
    }
}
