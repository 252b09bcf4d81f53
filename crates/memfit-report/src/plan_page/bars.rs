//! Memory before and after by category, as two bars and a table.

use std::fmt::Write as _;

use crate::text::{milliseconds, size};
use crate::wire::{PlanReport, PlanRun, PlanVerdict};

const WIDTH: f64 = 920.0;
const LEFT: f64 = 108.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 20.0;
const BAR: f64 = 30.0;
const GAP: f64 = 14.0;

pub(super) fn bars(out: &mut String, report: &PlanReport) {
    let after = report.chosen.as_ref().filter(|_| report.verdict == Some(PlanVerdict::FitsWithPlan));
    let rows: Vec<(&str, &PlanRun)> = report
        .baseline
        .iter()
        .map(|run| ("as it is", run))
        .chain(after.map(|run| ("with the plan", run)))
        .filter(|(_, run)| run.at_peak.is_some())
        .collect();
    if rows.is_empty() {
        return;
    }
    out.push_str("<section><h2>What fills the GPU</h2>\n");
    drawn(out, report, &rows);
    table(out, &rows);
    out.push_str("</section>\n");
}

fn drawn(out: &mut String, report: &PlanReport, rows: &[(&str, &PlanRun)]) {
    let widest =
        rows.iter().map(|(_, run)| run.peak.device_upper).chain([report.budget]).max().unwrap_or(1).max(1);
    let wide = |bytes: u64| bytes as f64 / widest as f64 * (WIDTH - LEFT - RIGHT);
    let height = TOP + rows.len() as f64 * (BAR + GAP);
    let _ = writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"What fills the GPU\">"
    );
    for (index, (name, run)) in rows.iter().enumerate() {
        let y = TOP + index as f64 * (BAR + GAP) + GAP / 2.0;
        let _ = writeln!(
            out,
            "<text class=\"strong\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            LEFT - 12.0,
            y + BAR / 2.0 + 4.5
        );
        let mut x = LEFT;
        for (name, bytes) in parts(run) {
            let width = wide(bytes);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"var(--{name})\"><title>{name}: {}</title></rect>",
                size(bytes)
            );
            x += width;
        }
    }
    let x = LEFT + wide(report.budget);
    let anchor = if x > WIDTH / 2.0 { "end" } else { "start" };
    let _ = writeln!(
        out,
        "<line class=\"budget\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{height}\"/>\
         <text class=\"limit\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{} usable</text>\n</svg>",
        TOP - 7.0,
        size(report.budget)
    );
}

/// Parts of a run's device peak: reserved memory by category, and memory outside the allocator.
fn parts(run: &PlanRun) -> Vec<(&'static str, u64)> {
    let Some(at_peak) = &run.at_peak else { return Vec::new() };
    let mut parts: Vec<(&'static str, u64)> =
        at_peak.by_category.by_size().into_iter().map(|(category, bytes)| (category.name(), bytes)).collect();
    let shown: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    parts.push(("outside", run.peak.device_upper.saturating_sub(shown)));
    parts
}

fn table(out: &mut String, rows: &[(&str, &PlanRun)]) {
    out.push_str("<div class=\"scroll\"><table>\n<tr><th>");
    for (name, _) in rows {
        let _ = write!(out, "<th class=\"number\">{name}");
    }
    out.push('\n');
    let mut line = |swatch: &str, name: &str, of: &dyn Fn(&PlanRun) -> String| {
        let _ = write!(out, "<tr><td>{swatch}{name}");
        for (_, run) in rows {
            let _ = write!(out, "<td class=\"number\">{}", of(run));
        }
        out.push('\n');
    };
    line("", "a step", &|run| run.step_ms_estimate.map_or("?".to_owned(), milliseconds));
    line("", "on the GPU", &|run| size(run.peak.device_upper));
    let mut categories: Vec<&'static str> = Vec::new();
    for name in rows.iter().flat_map(|(_, run)| parts(run)).map(|(name, _)| name) {
        if name != "outside" && !categories.contains(&name) {
            categories.push(name);
        }
    }
    for name in categories.into_iter().chain(["outside"]) {
        let swatch = format!("<span class=\"square\" style=\"background: var(--{name})\"></span>");
        let shown = if name == "outside" { "non-PyTorch at most, and rest of the device peak" } else { name };
        line(&swatch, shown, &|run| {
            size(parts(run).iter().find(|(known, _)| *known == name).map_or(0, |(_, bytes)| *bytes))
        });
    }
    out.push_str("</table></div>\n");
}
