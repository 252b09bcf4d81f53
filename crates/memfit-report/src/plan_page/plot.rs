//! Plot of memory against time, with the Pareto front as a staircase and the GPU's memory as a line.

use std::fmt::Write as _;

use super::{class, escaped, is_chosen, shown};
use crate::text::{milliseconds, plan_in_short, size};
use crate::wire::{PlanReport, PlanRun};

/// Size of the plot and margins for its axes, in user units.
const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 74.0;
const BOTTOM: f64 = 46.0;
const TOP: f64 = 14.0;
const RIGHT: f64 = 24.0;
/// Approximate number of grid lines for each axis.
const TICKS: f64 = 6.0;
/// Points slower than the slowest point of the front by more than this factor are drawn at the edge.
const FAR_RATIO: f64 = 1.5;
/// Radius of a point, which contains its number.
const RADIUS: f64 = 9.5;

/// Scale of an axis.
struct Axis {
    from: f64,
    to: f64,
    step: f64,
    start: f64,
    end: f64,
}

impl Axis {
    /// An axis that covers `values` and ends at multiples of 1, 2 or 5; bytes use multiples of binary units.
    fn covering(values: &[f64], from_zero: bool, unit: f64, start: f64, end: f64) -> Self {
        let most = values.iter().copied().fold(0.0, f64::max).max(unit);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min).min(most);
        // Margin around the outermost points.
        let pad = (most - if from_zero { 0.0 } else { least }).max(most * 0.1) * 0.08;
        let low = if from_zero { 0.0 } else { (least - pad).max(0.0) };
        let step = round_step((most + pad - low) / TICKS / unit) * unit;
        let (from, to) = ((low / step).floor() * step, ((most + pad) / step).ceil() * step);
        Self { from, to, step, start, end }
    }

    fn position(&self, value: f64) -> f64 {
        self.start + (self.end - self.start) * ((value - self.from) / (self.to - self.from))
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (from, step) = (self.from, self.step);
        (0..=((self.to - from) / step).round() as u32).map(move |index| from + f64::from(index) * step)
    }
}

/// The next larger number among 1, 2, 5, 10, 20 and so on.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|round| *round >= step * 0.999)
        .unwrap_or(step)
}

/// The largest binary unit that is at most `bytes`.
fn unit(bytes: f64) -> f64 {
    [30, 20, 10].into_iter().map(|shift| f64::from(1_u32 << shift)).find(|unit| bytes >= *unit).unwrap_or(1.0)
}

pub(super) fn plot(out: &mut String, report: &PlanReport) {
    let runs: Vec<(usize, &PlanRun, f64, f64)> = shown(report)
        .filter_map(|(number, run)| Some((number, run, run.step_ms_estimate?, run.peak.device_upper as f64)))
        .collect();
    if runs.is_empty() {
        return;
    }
    // Points far slower than the front are drawn at the edge, so that the front is not compressed.
    let slowest = report.pareto.iter().filter_map(|run| run.step_ms_estimate).fold(0.0, f64::max);
    let near = |ms: f64| report.pareto.len() < 2 || ms <= slowest * FAR_RATIO;
    let times: Vec<f64> = runs.iter().map(|run| run.2).filter(|ms| near(*ms)).collect();
    let bytes: Vec<f64> = runs.iter().map(|run| run.3).chain([report.budget as f64]).collect();
    let most = bytes.iter().copied().fold(0.0, f64::max);
    let time = Axis::covering(&times, false, 1e-3, LEFT, WIDTH - RIGHT);
    let memory = Axis::covering(&bytes, true, unit(most), HEIGHT - BOTTOM, TOP);
    let _ = writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Memory against the time of a step\">"
    );
    grid(out, &time, &memory);
    budget(out, report, &memory);
    let front: Vec<(f64, f64)> = runs
        .iter()
        .filter(|(_, run, ..)| report.pareto.contains(run))
        .map(|(_, _, ms, size)| (time.position(*ms), memory.position(*size)))
        .collect();
    staircase(out, &front);
    for (number, run, ms, device) in &runs {
        let x = if near(*ms) { time.position(*ms) } else { WIDTH - RIGHT - RADIUS };
        point(out, report, *number, run, (x, memory.position(*device)), !near(*ms));
    }
    out.push_str("</svg>\n");
}

fn grid(out: &mut String, time: &Axis, memory: &Axis) {
    for tick in memory.ticks() {
        let y = memory.position(tick);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 9.0,
            y + 4.0,
            axis_size(tick, unit(memory.to))
        );
    }
    for tick in time.ticks() {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            time.position(tick),
            HEIGHT - BOTTOM + 19.0,
            axis_time(tick, time.to)
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">estimated time of an optimizer step</text>",
        f64::midpoint(LEFT, WIDTH - RIGHT),
        HEIGHT - 6.0
    );
}

fn axis_size(bytes: f64, unit: f64) -> String {
    let count = bytes / unit;
    let name = if unit >= f64::from(1 << 30) {
        "GiB"
    } else if unit >= f64::from(1 << 20) {
        "MiB"
    } else {
        "KiB"
    };
    format!("{} {name}", trimmed(count))
}

fn axis_time(milliseconds: f64, most: f64) -> String {
    if most >= 1000.0 {
        format!("{} s", trimmed(milliseconds / 1000.0))
    } else {
        format!("{} ms", trimmed(milliseconds))
    }
}

/// Formats a round number without trailing zeros.
fn trimmed(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn budget(out: &mut String, report: &PlanReport, memory: &Axis) {
    let y = memory.position(report.budget as f64);
    let _ = writeln!(
        out,
        "<rect class=\"beyond\" x=\"{LEFT}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"/>\
         <line class=\"budget\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
         <text class=\"limit\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} usable</text>",
        WIDTH - RIGHT - LEFT,
        (y - TOP).max(0.0),
        WIDTH - RIGHT,
        WIDTH - RIGHT - 6.0,
        y - 7.0,
        size(report.budget)
    );
}

/// Draws the region that the front excludes, as steps: each plan's memory up to the next plan's time.
fn staircase(out: &mut String, front: &[(f64, f64)]) {
    let mut points = String::new();
    for (index, (x, y)) in front.iter().enumerate() {
        if let Some((_, before)) = index.checked_sub(1).and_then(|index| front.get(index)) {
            let _ = write!(points, "{x:.1},{before:.1} ");
        }
        let _ = write!(points, "{x:.1},{y:.1} ");
    }
    let _ = writeln!(out, "<polyline class=\"front\" points=\"{}\"/>", points.trim_end());
}

fn point(
    out: &mut String,
    report: &PlanReport,
    number: usize,
    run: &PlanRun,
    (x, y): (f64, f64),
    beyond: bool,
) {
    let class = class(run, report);
    let hollow = if class == "open" { " hollow" } else { "" };
    if is_chosen(run, report) {
        let _ =
            writeln!(out, "<circle class=\"ring\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{:.1}\"/>", RADIUS + 4.5);
    }
    let _ = writeln!(
        out,
        "<g><title>{}: {}, {}</title><circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{RADIUS}\"/>\
         <text class=\"in{hollow}\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{number}</text></g>",
        escaped(&plan_in_short(run)),
        run.step_ms_estimate.map_or("?".to_owned(), milliseconds),
        size(run.peak.device_upper),
        y + 4.0
    );
    if run.levers.is_empty() {
        let left = x > WIDTH - RIGHT - 90.0;
        let (dx, anchor) = if left { (-RADIUS - 8.0, "end") } else { (RADIUS + 8.0, "start") };
        let _ = writeln!(
            out,
            "<text class=\"strong\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">as it is{}</text>",
            x + dx,
            y + 4.5,
            run.step_ms_estimate
                .filter(|_| beyond)
                .map_or(String::new(), |ms| format!(", at {} →", axis_time(ms, ms)))
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_round_numbers_around_what_it_shows() {
        for values in [vec![883.3, 1136.0], vec![0.4], vec![37.2, 36.7, 373.5], vec![1.0, 1.0], vec![0.0]] {
            let axis = Axis::covering(&values, false, 1e-3, 10.0, 110.0);
            assert!(values.iter().all(|value| (10.0..=110.0).contains(&axis.position(*value))), "{values:?}");
            let ticks: Vec<f64> = axis.ticks().collect();
            assert!((2..=16).contains(&ticks.len()), "{values:?} {ticks:?}");
            assert!(
                (axis.position(axis.from) - 10.0).abs() < 1e-9
                    && (axis.position(axis.to) - 110.0).abs() < 1e-9
            );
        }
        let labels: Vec<String> = Axis::covering(&[44.0 * 1e9], true, unit(44e9), 0.0, 1.0)
            .ticks()
            .map(|tick| axis_size(tick, unit(44e9)))
            .collect();
        assert_eq!(labels.join(", "), "0 GiB, 10 GiB, 20 GiB, 30 GiB, 40 GiB, 50 GiB");
    }
}
