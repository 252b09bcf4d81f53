//! What a search for the fastest plan found, for people.

use std::fmt::Write as _;

use anstyle::Style;
use memfit_vocabulary::Label;

use super::canvas::{ADVICE, BAD, BOLD, Canvas, DIM, DOUBT, GOOD};
use super::size;
use crate::wire::{PlanLever, PlanPatch, PlanReport, PlanRun, PlanVerdict, Verdict};

/// How many rows of the front are shown.
const ROWS: usize = 12;
/// How many categories are shown.
const CATEGORIES: usize = 8;

/// The report of a search.
pub fn plan(report: &PlanReport, canvas: Canvas) -> String {
    let mut out = String::new();
    headline(&mut out, report, canvas);
    if let Some(problem) = &report.problem {
        out.push_str(&canvas.wrapped("  ", Style::new(), &problem.message));
        if let Some(hint) = &problem.hint {
            out.push_str(&canvas.wrapped("hint: ", ADVICE, hint));
        }
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
        change(&mut out, patch, canvas);
    }
    out
}

/// The plan as a change of the script: what is said of it first, so that the change itself ends the text, as
/// `git apply` takes it.
fn change(out: &mut String, patch: &PlanPatch, canvas: Canvas) {
    let _ = writeln!(out, "\nAs a change of `{}`", patch.file);
    if let Some(proof) = &patch.proof {
        let (style, sentence) = match proof.verdict {
            Verdict::Fits => {
                (GOOD, format!("the changed script was run, and fits: {}", size(proof.peak.device_upper)))
            }
            Verdict::Oom => (BAD, "the changed script was run, and does not fit".to_owned()),
            Verdict::Unknown | Verdict::Error => {
                (BAD, "the changed script was run, and fails otherwise than by its memory".to_owned())
            }
        };
        out.push_str(&canvas.wrapped("  ", style, &sentence));
    }
    for left in &patch.left {
        out.push_str(&canvas.wrapped(&format!("  without {}: ", left.lever), BOLD, &left.why));
    }
    for remark in &patch.remarks {
        out.push_str(&canvas.wrapped("  note: ", DIM, remark));
    }
    match &patch.written {
        Some(file) => {
            let text = format!("it is in `{file}`; `git apply` and `patch -p1` take it");
            out.push_str(&canvas.wrapped("  ", Style::new(), &text));
        }
        None if !patch.diff.is_empty() => {
            out.push('\n');
            out.push_str(&patch.diff);
        }
        None => {}
    }
}

fn headline(out: &mut String, report: &PlanReport, canvas: Canvas) {
    let name = report.device.name.strip_prefix("NVIDIA ").unwrap_or(&report.device.name);
    let place = format!(
        "a virtual {name} ({}, of which {} may be taken)",
        size(report.device.capacity),
        size(report.budget)
    );
    let (style, badge, sentence) = match report.verdict {
        Some(PlanVerdict::FitsAsIs) => (GOOD, "FITS AS IT IS", format!("on {place}")),
        Some(PlanVerdict::FitsWithPlan) => (GOOD, "FITS WITH A PLAN", format!("on {place}")),
        Some(PlanVerdict::DoesNotFit) if report.interrupted => {
            (DOUBT, "NO PLAN YET", format!("for {place}: the search was ended early"))
        }
        Some(PlanVerdict::DoesNotFit) => {
            (BAD, "DOES NOT FIT", format!("on {place}, with anything up to `{}`", report.allow))
        }
        None => (BAD, "NO ANSWER", format!("for {place}")),
    };
    out.push_str(&canvas.wrapped(&format!("{badge}  "), style, &sentence));
}

fn the_plan(out: &mut String, report: &PlanReport, chosen: &PlanRun, canvas: Canvas) {
    out.push_str("\nThe plan\n");
    for lever in &chosen.levers {
        let text = format!("{} ({})", in_words(lever, chosen), meaning(lever.label));
        out.push_str(&canvas.wrapped("  - ", Style::new(), &text));
    }
    if let (Some(limit), Some(micro_batch)) = (report.limit, chosen.micro_batch) {
        let batch = report.baseline.as_ref().and_then(|baseline| baseline.micro_batch).unwrap_or_default();
        let as_many = batch.div_ceil(limit.largest.max(1)) == batch.div_ceil(micro_batch.max(1));
        let text = match limit.refuted {
            Some(refuted) if limit.largest > micro_batch => format!(
                "up to {} samples together fit and {refuted} do not; {}",
                limit.largest,
                if as_many {
                    format!("with {micro_batch} there are no more passes")
                } else {
                    "a step is hardly faster with them".to_owned()
                }
            ),
            Some(refuted) => format!("{refuted} samples together do not fit: that was run"),
            None => "the whole batch fits at once with these levers, and is no faster".to_owned(),
        };
        out.push_str(&canvas.wrapped("    ", DIM, &text));
    }
}

/// A lever in plain words.
pub(crate) fn in_words(lever: &PlanLever, chosen: &PlanRun) -> String {
    let names = || lever.value.as_array().map_or(0, Vec::len);
    match lever.name.as_str() {
        // Where there is no training, nothing is added up, and the label says so.
        "micro-batch" if lever.label == Label::Exact => format!(
            "{} at a time, {} passes for each batch",
            samples(chosen.micro_batch.unwrap_or_default()),
            chosen.micro_batches_per_step
        ),
        "micro-batch" => format!(
            "{} at a time, {} times a step, gradients added up",
            samples(chosen.micro_batch.unwrap_or_default()),
            chosen.micro_batches_per_step
        ),
        "checkpointing" => {
            format!("{} computed again in the backward: {}", blocks(names()), told(&lever.value))
        }
        "activation-offload" => {
            let waits = if names() == 1 { "waits" } else { "wait" };
            format!(
                "{} {waits} for the backward in the host's memory: {}",
                blocks(names()),
                told(&lever.value)
            )
        }
        "autocast-bf16" => "most operations in bf16 (autocast)".to_owned(),
        "autocast-fp16" => "most operations in fp16 (autocast), the loss scaled".to_owned(),
        "fused-optimizer" => "the optimizer's fused kernel, which needs no temporaries".to_owned(),
        "foreach-off" => "the optimizer updates one parameter at a time".to_owned(),
        "chunked-loss" => "the loss in pieces, so that the logits are never there as a whole".to_owned(),
        "sdpa" => "attention without its matrix (SDPA)".to_owned(),
        "expandable-segments" => {
            "PYTORCH_ALLOC_CONF=expandable_segments:True, against fragmentation".to_owned()
        }
        "tf32" => "products of fp32 matrices in tf32".to_owned(),
        "pure-bf16" => "weights, gradients and the optimizer's state in bf16".to_owned(),
        "compile" if lever.value == true => {
            "kernels that torch.compile fuses, the model compiled as a whole".to_owned()
        }
        "compile" if lever.value.is_array() => {
            format!("kernels that torch.compile fuses, each block compiled by itself: {}", told(&lever.value))
        }
        "compile" => "kernels that torch.compile fuses".to_owned(),
        "activation-budget" => format!(
            "compiled graphs keep {} % of what they would keep for the backward, and compute the rest again",
            lever.value
        ),
        "optimizer-in-backward" => {
            "each parameter is updated as soon as its gradient is there, which is then let go".to_owned()
        }
        "8-bit-optimizer" => "the optimizer's state in 8 bits".to_owned(),
        "bf16-optimizer-state" => "the optimizer's state in bf16".to_owned(),
        "host-optimizer-state" => "the optimizer's state in the host's memory".to_owned(),
        "adafactor" => "Adafactor in the optimizer's place".to_owned(),
        "gradient-as-bucket-view" => "gradients in the buckets that are exchanged, and not twice".to_owned(),
        "channels-last" => "pictures with their channels last in memory".to_owned(),
        "shard" => "shards of parameters, gradients and state instead of replicas (FSDP2)".to_owned(),
        "lora" => "small matrices that learn beside frozen weights (LoRA)".to_owned(),
        "quantized-base" => "the frozen weights in 4 bits".to_owned(),
        "quantized-weights" => "weights of linear layers in 8 bits, decoded where they are used".to_owned(),
        "kv-cache-8-bit" => "keys and values of the cache in 8 bits".to_owned(),
        "kv-cache-window" => format!("the cache keeps the last {} tokens", lever.value),
        "resize-before-upload" => format!("pictures of at most {} pixels a side", lever.value),
        _ => format!("{}: {}", lever.name, of_value(&lever.value)),
    }
}

fn samples(count: u64) -> String {
    format!("{count} sample{}", if count == 1 { "" } else { "s" })
}

/// How far a lever is moved, as a person would write it.
fn of_value(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn blocks(count: usize) -> String {
    format!("{count} block{}", if count == 1 { "" } else { "s" })
}

fn told(value: &serde_json::Value) -> String {
    let names: Vec<String> =
        value.as_array().into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    memfit_plan::in_short(&names)
}

/// What a label means.
pub(crate) fn meaning(label: Label) -> &'static str {
    match label {
        Label::Exact => "exact: the same mathematics",
        Label::Rounding => "rounding: the same mathematics, in another order",
        Label::Precision => "precision: the same training in fewer bits",
        Label::ChangesTraining => "changes-training: another training",
    }
}

fn before_and_after(out: &mut String, baseline: &PlanRun, report: &PlanReport) {
    let after = report.chosen.as_ref().filter(|_| report.verdict == Some(PlanVerdict::FitsWithPlan));
    let time = |run: &PlanRun| run.step_ms_estimate.map_or("?".to_owned(), milliseconds);
    let _ = writeln!(out, "\n{:<16}{:>12}{:>14}", "", "as it is", after.map_or("", |_| "with the plan"));
    let mut row = |name: &str, of: &dyn Fn(&PlanRun) -> String| {
        let _ = writeln!(out, "  {name:<14}{:>12}{:>14}", of(baseline), after.map_or(String::new(), of));
    };
    row("step", &time);
    row("on the card", &|run| size(run.peak.device_upper));
    row("reserved", &|run| size(run.peak.reserved));
    row("allocated", &|run| size(run.peak.allocated));
    let Some(at_peak) = &baseline.at_peak else { return };
    for (category, _) in at_peak.by_category.by_size().into_iter().take(CATEGORIES) {
        row(category.name(), &|run| {
            run.at_peak.as_ref().map_or("?".to_owned(), |at_peak| size(at_peak.by_category.get(category)))
        });
    }
}

fn front(out: &mut String, report: &PlanReport, canvas: Canvas) {
    if report.pareto.len() < 2 {
        return;
    }
    out.push_str("\nMemory against time: none of these is beaten in both\n");
    for run in report.pareto.iter().take(ROWS) {
        let chosen = report
            .chosen
            .as_ref()
            .is_some_and(|chosen| chosen.levers == run.levers && chosen.accumulate == run.accumulate);
        let mark = if chosen { ">" } else { " " };
        let figures = format!(
            "{mark} {:>10} {:>11}  {:<7}  ",
            run.step_ms_estimate.map_or("?".to_owned(), milliseconds),
            size(run.peak.device_upper),
            match (run.fits, run.refuted || run.peak.device_upper > report.budget) {
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
}

/// A plan in few words.
pub(crate) fn in_short(run: &PlanRun) -> String {
    if run.levers.is_empty() {
        return "as it is".to_owned();
    }
    let parts = run.levers.iter().map(|lever| match &lever.value {
        serde_json::Value::Array(names) => format!("{} of {}", lever.name, blocks(names.len())),
        serde_json::Value::Bool(true) => lever.name.clone(),
        value => format!("{} {}", lever.name, of_value(value)),
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn milliseconds(milliseconds: f64) -> String {
    if milliseconds >= 1000.0 {
        format!("{:.2} s", milliseconds / 1000.0)
    } else {
        format!("{milliseconds:.1} ms")
    }
}

fn next(report: &PlanReport) -> Vec<String> {
    let mut lines = report.advice.clone();
    match report.verdict {
        Some(PlanVerdict::FitsWithPlan) => match &report.plan {
            Some(plan) => lines.push(format!(
                "`memfit.Step(model, optimizer, loss=fn, plan=\"{plan}\")` trains with it; `memfit run --plan {plan}` runs the script with it once more"
            )),
            None => lines.push("`-o memfit.plan.toml` writes the plan to a file".to_owned()),
        },
        Some(PlanVerdict::DoesNotFit | PlanVerdict::FitsAsIs) | None => {}
    }
    if let Some(card) = &report.smallest_card {
        lines.push(format!(
            "the smallest card on which it fits as it is: {} ({})",
            card.name,
            size(card.capacity)
        ));
    }
    lines
}
