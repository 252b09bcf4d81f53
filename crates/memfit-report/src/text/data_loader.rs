//! Text output of `memfit data --loader`: host memory and throughput of a script's own `DataLoader`.

use std::fmt::Write as _;

use anstyle::Style;

use super::canvas::{ADVICE, BAD, BOLD, Canvas, DIM, DOUBT, GOOD, paint};
use super::{count, size};
use crate::wire::{LoaderReport, LoaderSettings, LoaderVerdict};

const LABEL: usize = 18;

/// The measurements of a `DataLoader` on this host, and settings that would keep the GPU busy.
pub fn data_loader(report: &LoaderReport, canvas: Canvas) -> String {
    let mut out = String::new();
    let (style, said) = headline(report);
    let _ = writeln!(out, "{}", paint(style, &said));
    if let Some(problem) = &report.problem {
        out.push_str(&canvas.wrapped("  ", DIM, &problem.message));
        if let Some(hint) = &problem.hint {
            out.push_str(&canvas.wrapped("  ", ADVICE, hint));
        }
    }
    let Some(own) = &report.own else { return out };
    parts(report, canvas, &mut out);
    table(report, own, canvas, &mut out);
    if let Some(proposed) = &report.proposed {
        // Without the time of a step, the fastest loader need not be the right one.
        let head = match report.verdict {
            LoaderVerdict::Unknown => {
                format!("Fastest on this host, which has {} processors", count(report.host.processors))
            }
            _ => "Proposed".to_owned(),
        };
        let _ = writeln!(out, "\n{}", paint(BOLD, &head));
        let text = if same(own, proposed) { "as the script has it".to_owned() } else { arguments(proposed) };
        out.push_str(&canvas.wrapped("  ", ADVICE, &text));
        out.push_str(&canvas.wrapped("  ", DIM, &outcome(report, proposed)));
    }
    if !report.advice.is_empty() {
        let _ = writeln!(out, "\n{}", paint(BOLD, "Notes"));
        for advice in &report.advice {
            out.push_str(&canvas.wrapped("  - ", DIM, advice));
        }
    }
    out
}

fn headline(report: &LoaderReport) -> (Style, String) {
    let waits = |settings: &Option<LoaderSettings>| {
        settings
            .and_then(|one| one.card_waits)
            .map_or_else(String::new, |share| format!(" {:.0} % of the time", 100.0 * share))
    };
    let card = &report.device.name;
    match report.verdict {
        LoaderVerdict::KeepsUp => (GOOD, format!("The loader keeps up with the {card}")),
        LoaderVerdict::KeepsUpAsProposed => (
            DOUBT,
            format!("The {card} would wait for data{}; as proposed below, it would not", waits(&report.own)),
        ),
        LoaderVerdict::Waits => (
            BAD,
            format!(
                "The {card} would wait for data{}, and{} with the best loader that was measured",
                waits(&report.own),
                waits(&report.proposed)
            ),
        ),
        LoaderVerdict::Unknown => (DOUBT, "Cannot tell if the GPU would wait for data".to_owned()),
    }
}

/// The data set, a batch, an item and a step.
fn parts(report: &LoaderReport, canvas: Canvas, out: &mut String) {
    let mut field = |label: &str, text: &str| {
        out.push_str(&canvas.wrapped(&format!("  {label:<LABEL$}"), DIM, text));
    };
    let items = report.dataset.items.map_or_else(String::new, |items| format!(", {} items", count(items)));
    field("data set", &format!("{}{items}", report.dataset.class));
    let batch = &report.batch;
    let lies = if batch.on_card { ", already on the GPU" } else { "" };
    field("a batch", &format!("{} samples, {}{lies}", count(batch.samples), size(batch.bytes)));
    if let Some(sample) = &report.sample {
        field(
            "a sample",
            &format!(
                "{} ms, the slowest {} ms ({} measured)",
                figure(sample.median_ms),
                figure(sample.slowest_ms),
                count(sample.measured)
            ),
        );
    }
    if let Some(collate) = batch.collate_ms {
        field("collating", &format!("{} ms a batch", figure(collate)));
    }
    if !batch.on_card {
        field(
            "pinning",
            &format!("{} ms a batch, with workers in a thread of its own", figure(batch.pin_ms)),
        );
    }
    if let (Some(step), Some(rate)) = (report.step_ms_estimate, report.card_samples_per_s) {
        let many = report.batches_per_step.unwrap_or(1.0);
        let batches =
            if (many - 1.0).abs() < 0.01 { String::new() } else { format!(", {many:.1} batches each") };
        field(
            "a step",
            &format!(
                "{} ms on the GPU, estimated{batches}: up to {} samples a second",
                figure(step),
                count(rate as u64)
            ),
        );
    }
    let host = &report.host;
    field(
        "this host",
        &format!(
            "{} CPUs, {} of memory, {} of /dev/shm",
            host.processors,
            size(host.memory),
            size(host.shared_memory)
        ),
    );
}

/// The table with one row for each number of workers.
fn table(report: &LoaderReport, own: &LoaderSettings, canvas: Canvas, out: &mut String) {
    let _ = writeln!(out, "\n{}", paint(BOLD, "Measured on this host"));
    let head = ["workers", "samples/s", "ms a batch", "first batch", "workers' memory", "GPU waits"];
    let widths = [7, 10, 10, 11, 15, 10];
    let line = |cells: [String; 6]| {
        let cells: Vec<String> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        format!("  {}", cells.join("  "))
    };
    let _ = writeln!(out, "{}", paint(DIM, &line(head.map(str::to_owned))));
    for trial in &report.measured {
        let none = || "-".to_owned();
        let cells = [
            trial.workers.to_string(),
            trial.samples_per_s.map_or_else(none, |rate| count(rate.round() as u64)),
            trial.batch_ms.map_or_else(none, figure),
            format!("{:.1} s", trial.start_ms / 1000.0),
            size(trial.memory),
            trial.card_waits.map_or_else(none, |share| format!("{:.0} %", 100.0 * share)),
        ];
        let mark = if trial.workers == own.num_workers { "  (the script's setting)" } else { "" };
        let _ = writeln!(out, "{}{}", line(cells), paint(DIM, mark));
    }
    if report.card_samples_per_s.is_some() {
        let note = "Without workers, batches are assumed to be loaded between the steps, as in a script that reads its loss in every step.";
        out.push_str(&canvas.wrapped("  ", DIM, note));
    }
}

fn outcome(report: &LoaderReport, proposed: &LoaderSettings) -> String {
    let mut text = report.why.clone();
    if let (Some(rate), Some(waits)) = (proposed.expected_samples_per_s, proposed.card_waits) {
        let _ = write!(
            text,
            ": {} samples a second expected, the GPU waits {:.0} % of the time",
            count(rate.round() as u64),
            100.0 * waits
        );
    } else if let Some(rate) = proposed.samples_per_s {
        let _ = write!(text, ": {} samples a second", count(rate.round() as u64));
    }
    let _ = write!(
        text,
        "; up to {} of the host's memory, {} of it in /dev/shm and {} pinned",
        size(proposed.host_memory),
        size(proposed.shared_memory),
        size(proposed.pinned)
    );
    text
}

fn same(own: &LoaderSettings, proposed: &LoaderSettings) -> bool {
    own.num_workers == proposed.num_workers
        && own.prefetch_factor == proposed.prefetch_factor
        && own.pin_memory == proposed.pin_memory
        && own.persistent_workers == proposed.persistent_workers
}

/// The settings as `DataLoader` arguments.
fn arguments(settings: &LoaderSettings) -> String {
    let truth = |value: bool| if value { "True" } else { "False" };
    let mut words = vec![format!("num_workers={}", settings.num_workers)];
    words.extend(settings.prefetch_factor.map(|many| format!("prefetch_factor={many}")));
    words.push(format!("pin_memory={}", truth(settings.pin_memory)));
    if settings.num_workers > 0 {
        words.push(format!("persistent_workers={}", truth(settings.persistent_workers)));
    }
    format!("DataLoader(…, {})", words.join(", "))
}

fn figure(milliseconds: f64) -> String {
    match milliseconds {
        ms if ms < 1.0 => format!("{ms:.2}"),
        ms if ms < 10.0 => format!("{ms:.1}"),
        ms => count(ms.round() as u64),
    }
}
