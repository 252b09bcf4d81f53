//! What a search for the fastest plan found, as a page: memory against time as a plot, and the same as a table.
//!
//! One file that fetches nothing and runs nothing.

use std::fmt::Write as _;

use crate::text::{plan_in_short, size};
use crate::wire::{PlanReport, PlanRun, PlanVerdict};

/// The plot's size, and the room for its axes, in its own units.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 50.0;
const TOP: f64 = 20.0;
const RIGHT: f64 = 40.0;
/// Lines across the plot, for each axis.
const TICKS: usize = 5;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #6b7280; --line: #d7dbe0; --good: #15803d; --bad: #c2410c; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa2ad; --line: #3a414b; --good: #4ade80; --bad: #fb923c; --paper: #16191d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } table { border-collapse: collapse; width: 100%; } svg { width: 100%; height: auto; }
td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); } td.number { text-align: right; white-space: nowrap; }
tr.chosen td { font-weight: 600; } .soft { color: var(--soft); } code { overflow-wrap: anywhere; }
svg text { fill: var(--soft); font-size: 13px; } .grid { stroke: var(--line); } .budget { stroke: var(--bad); stroke-dasharray: 6 4; }
.fits { fill: var(--good); } .big { fill: var(--bad); } .open { fill: none; stroke: var(--soft); stroke-width: 2; } .ring { fill: none; stroke: var(--ink); stroke-width: 2; }
.front { fill: none; stroke: var(--line); stroke-width: 2; }
";

/// The page.
pub fn plan_page(report: &PlanReport) -> String {
    let name = escaped(&report.device.name);
    let verdict = match report.verdict {
        Some(PlanVerdict::FitsAsIs) => "It fits as it is",
        Some(PlanVerdict::FitsWithPlan) => "It fits with a plan",
        Some(PlanVerdict::DoesNotFit) => "It does not fit",
        None => "There is no answer",
    };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>memfit plan: {name}</title>\n<style>{STYLE}</style>\n<h1>{verdict} on a virtual {name}</h1>\n\
         <p class=\"soft\">{} of {} may be taken · {} runs · <code>{}</code></p>\n",
        size(report.budget),
        size(report.device.capacity),
        report.evaluations,
        escaped(&report.command.join(" "))
    );
    plot(&mut out, report);
    table(&mut out, report);
    if !report.rejected.is_empty() {
        out.push_str("<h2>Not in the plan</h2>\n<table>\n");
        for rejected in &report.rejected {
            let _ = writeln!(out, "<tr><td>{}<td>{}", escaped(&rejected.lever), escaped(&rejected.why));
        }
        out.push_str("</table>\n");
    }
    for line in &report.advice {
        let _ = writeln!(out, "<p>{}</p>", escaped(line));
    }
    out.push_str("</html>\n");
    out
}

/// What stands for so much on an axis that ends at `most`.
struct Axis {
    most: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        self.start + (self.end - self.start) * (value / self.most)
    }
}

fn plot(out: &mut String, report: &PlanReport) {
    let runs: Vec<(&PlanRun, f64, f64)> = report
        .pareto
        .iter()
        .chain(beaten_baseline(report))
        .filter_map(|run| Some((run, run.step_ms_estimate?, run.peak.device_upper as f64)))
        .collect();
    let most =
        |of: fn(&(&PlanRun, f64, f64)) -> f64, least: f64| runs.iter().map(of).fold(least, f64::max) * 1.08;
    if runs.is_empty() {
        return;
    }
    let time = Axis { most: most(|run| run.1, 0.0), start: LEFT, end: WIDTH - RIGHT };
    let bytes = Axis { most: most(|run| run.2, report.budget as f64), start: HEIGHT - BOTTOM, end: TOP };
    let _ = writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Memory against the time of a step\">"
    );
    for tick in 0..=TICKS {
        let share = tick as f64 / TICKS as f64;
        let (x, y) = (time.at(time.most * share), bytes.at(bytes.most * share));
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0} ms</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            size((bytes.most * share) as u64),
            HEIGHT - BOTTOM + 20.0,
            time.most * share
        );
    }
    let budget = bytes.at(report.budget as f64);
    let _ = writeln!(
        out,
        "<line class=\"budget\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{budget:.1}\" y2=\"{budget:.1}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">the card</text>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">an optimizer step, as an estimate</text>",
        WIDTH - RIGHT,
        WIDTH - RIGHT,
        budget - 6.0,
        f64::midpoint(LEFT, WIDTH),
        HEIGHT - 8.0
    );
    let line: Vec<String> = runs
        .iter()
        .filter(|(run, ..)| report.pareto.contains(run))
        .map(|(_, ms, size)| format!("{:.1},{:.1}", time.at(*ms), bytes.at(*size)))
        .collect();
    let _ = writeln!(out, "<polyline class=\"front\" points=\"{}\"/>", line.join(" "));
    for (run, milliseconds, device) in &runs {
        let (x, y) = (time.at(*milliseconds), bytes.at(*device));
        let class = class(run, report);
        let _ = writeln!(
            out,
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\"><title>{}</title></circle>",
            escaped(&plan_in_short(run))
        );
        if run.levers.is_empty() {
            let _ =
                writeln!(out, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"end\">as it is</text>", y + 22.0);
        }
        if is_chosen(run, report) {
            let _ = writeln!(out, "<circle class=\"ring\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"11\"/>");
        }
    }
    out.push_str("</svg>\n<p class=\"soft\">filled green: seen to fit; orange: too big; open: not run on the card itself; ringed: the plan</p>\n");
}

/// The script as it is, where a plan beats it in both: what a plan is held against is shown in any case.
fn beaten_baseline(report: &PlanReport) -> Option<&PlanRun> {
    let baseline = report.baseline.as_ref()?;
    let shown =
        report.pareto.iter().any(|run| run.levers.is_empty() && run.accumulate == baseline.accumulate);
    (!shown).then_some(baseline)
}

fn class(run: &PlanRun, report: &PlanReport) -> &'static str {
    match (run.fits, run.peak.device_upper > report.budget) {
        (true, _) => "fits",
        (false, true) => "big",
        (false, false) => "open",
    }
}

fn is_chosen(run: &PlanRun, report: &PlanReport) -> bool {
    report
        .chosen
        .as_ref()
        .is_some_and(|chosen| chosen.levers == run.levers && chosen.accumulate == run.accumulate)
}

fn table(out: &mut String, report: &PlanReport) {
    out.push_str("<table>\n<tr><th>step<th>on the card<th>allocated<th>plan\n");
    for run in report.pareto.iter().chain(beaten_baseline(report)) {
        let chosen = if is_chosen(run, report) { " class=\"chosen\"" } else { "" };
        let _ = writeln!(
            out,
            "<tr{chosen}><td class=\"number\">{}<td class=\"number\">{}<td class=\"number\">{}<td>{}",
            run.step_ms_estimate.map_or("?".to_owned(), |ms| format!("{ms:.1} ms")),
            size(run.peak.device_upper),
            size(run.peak.allocated),
            escaped(&plan_in_short(run))
        );
    }
    out.push_str("</table>\n");
}

/// Text that is text in HTML as well.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> PlanReport {
        let run = |levers: serde_json::Value, device_upper: u64, ms: f64, fits: bool| {
            serde_json::json!({
                "levers": levers, "micro_batch": 8, "micro_batches_per_step": 1, "accumulate": 1,
                "peak": {"allocated": device_upper / 2, "reserved": device_upper / 2, "device": device_upper, "device_upper": device_upper},
                "step_ms_estimate": ms, "step_ms_low": ms, "step_ms_high": ms, "fits": fits, "at_peak": null,
            })
        };
        let lever = serde_json::json!([{"name": "autocast-bf16", "value": true, "label": "precision"}]);
        let chosen = run(lever, 4 << 30, 50.0, true);
        let baseline = run(serde_json::json!([]), 20 << 30, 90.0, false);
        serde_json::from_value(serde_json::json!({
            "schema": "memfit.plan/1", "verdict": "fits-with-plan",
            "device": {"name": "<T4>", "capacity": 16_u64 << 30, "count": 1, "kind": "virtual"},
            "budget": 15_u64 << 30, "margin": 0.03, "allow": "precision", "baseline": baseline, "chosen": chosen,
            "limit": null, "pareto": [chosen], "rejected": [{"lever": "sdpa", "why": "1 < 2"}], "advice": [],
            "smallest_card": null, "evaluations": 3, "wall_s": 1.0, "interrupted": false, "notes": [], "torch": null,
            "command": ["python", "train.py"], "plan": null, "problem": null,
        }))
        .unwrap()
    }

    #[test]
    fn the_page_shows_the_plan_beside_the_script_as_it_is() {
        let page = plan_page(&report());
        assert_eq!(page.matches("<circle class=\"fits\"").count(), 1);
        assert_eq!(
            page.matches("<circle class=\"big\"").count(),
            1,
            "the script as it is, which no front has"
        );
        assert_eq!(page.matches("class=\"ring\"").count(), 1);
        assert!(
            page.contains(">as it is</text>") && page.contains("&lt;T4&gt;") && page.contains("1 &lt; 2")
        );
        // It fetches nothing and runs nothing.
        assert!(!page.contains("<script") && !page.contains("http"));
    }
}
