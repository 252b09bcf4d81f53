//! The result of `memfit plan` as a page: the plan in words, a plot of memory against time, memory before and
//! after by category, and the reasons why levers were left out.
//!
//! The page is one file without external resources or scripts.

mod bars;
mod plot;

use std::fmt::Write as _;

use memfit_vocabulary::shell_line;

use crate::html::escaped;
use crate::text::{milliseconds, not_covered, plan_in_short, plan_lever_in_words, plan_lever_meaning, size};
use crate::wire::{PlanReport, PlanRun, PlanVerdict};

const STYLE: &str = include_str!("plan_page/page.css");

/// The page.
pub fn plan_page(report: &PlanReport) -> String {
    let name = escaped(&report.device.name);
    let (class, badge, verdict) = match report.verdict {
        Some(PlanVerdict::FitsAsIs) => ("good", "fits as it is", "It fits as it is"),
        Some(PlanVerdict::FitsWithPlan) => ("good", "fits with a plan", "It fits with a plan"),
        Some(PlanVerdict::DoesNotFit) => ("bad", "does not fit", "It does not fit"),
        None if report.interrupted => ("bad", "ended early", "There is no plan yet"),
        None => ("bad", "no answer", "There is no answer"),
    };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>memfit plan: {name}</title>\n<style>\n{STYLE}</style>\n<header><span class=\"badge {class}\">{badge}</span>\n\
         <h1>{verdict} on a virtual {name}</h1>\n<p class=\"soft\">{} usable of {} · {} runs in {:.0} s · \
         <code>{}</code></p></header>\n",
        size(report.budget),
        size(report.device.capacity),
        report.evaluations,
        report.wall_s,
        escaped(&shell_line(&report.command))
    );
    the_plan(&mut out, report);
    against_time(&mut out, report);
    bars::bars(&mut out, report);
    if !report.rejected.is_empty() {
        out.push_str("<section><h2>Not in the plan</h2>\n<div class=\"scroll\"><table>\n");
        for rejected in &report.rejected {
            let _ = writeln!(
                out,
                "<tr><td class=\"name\">{}<td>{}",
                escaped(&rejected.lever),
                in_prose(&rejected.why)
            );
        }
        out.push_str("</table></div></section>\n");
    }
    let uncovered =
        report.coverage.as_ref().and_then(not_covered).map(|parts| format!("Not covered: {parts}"));
    let mut said: Vec<String> =
        uncovered.iter().chain(&report.advice).chain(&report.notes).cloned().collect();
    said.extend(report.smallest_card.as_ref().map(|card| {
        format!(
            "The smallest GPU on which the unmodified script fits is {} ({}).",
            card.name,
            size(card.capacity)
        )
    }));
    if !said.is_empty() {
        out.push_str("<section><h2>Notes</h2>\n<ul>\n");
        for line in said {
            let _ = writeln!(out, "<li>{}", in_prose(&line));
        }
        out.push_str("</ul></section>\n");
    }
    out.push_str("</html>\n");
    out
}

fn the_plan(out: &mut String, report: &PlanReport) {
    let Some(chosen) = report.chosen.as_ref().filter(|chosen| !chosen.levers.is_empty()) else { return };
    out.push_str("<section><h2>The plan</h2>\n<ul>\n");
    for lever in &chosen.levers {
        let _ = writeln!(
            out,
            "<li>{} <span class=\"label\" title=\"{}\">{}</span>",
            in_prose(&plan_lever_in_words(lever, chosen)),
            escaped(&plan_lever_meaning(lever)),
            lever.label
        );
    }
    out.push_str("</ul></section>\n");
}

fn against_time(out: &mut String, report: &PlanReport) {
    if report.pareto.is_empty() && report.baseline.is_none() {
        return;
    }
    out.push_str("<section><h2>Memory against time</h2>\n");
    plot::plot(out, report);
    out.push_str(
        "<p class=\"key\"><span><span class=\"dot fits\"></span>fits</span><span><span class=\"dot big\"></span>too big</span>\
         <span><span class=\"dot open\"></span>not run at this GPU's capacity</span><span>ringed: the plan</span></p>\n\
         <div class=\"scroll\"><table>\n<tr><th class=\"number\"><th class=\"number\">a step<th class=\"number\">interval\
         <th class=\"number\">on the GPU<th class=\"number\">allocated<th>with\n",
    );
    for (number, run) in shown(report) {
        let row = if is_chosen(run, report) {
            " class=\"chosen\""
        } else if class(run, report) == "open" {
            " class=\"off\""
        } else {
            ""
        };
        let interval = match (run.step_ms_low, run.step_ms_high) {
            (Some(low), Some(high)) => format!("{} to {}", milliseconds(low), milliseconds(high)),
            _ => String::new(),
        };
        let _ = writeln!(
            out,
            "<tr{row}><td class=\"number\">{number}<td class=\"number\">{}<td class=\"number soft\">{interval}<td class=\"number\">{}\
             <td class=\"number\">{}<td>{}",
            run.step_ms_estimate.map_or("?".to_owned(), milliseconds),
            size(run.peak.device_upper),
            size(run.peak.allocated),
            escaped(&plan_in_short(run))
        );
    }
    out.push_str("</table></div></section>\n");
}

/// The numbered points of the plot: the Pareto front, fastest first, and the runs that a plan is always
/// compared with.
fn shown(report: &PlanReport) -> impl Iterator<Item = (usize, &PlanRun)> {
    let baseline = report.baseline.iter().filter(|baseline| {
        !report.pareto.iter().any(|run| run.levers.is_empty() && run.accumulate == baseline.accumulate)
    });
    report.pareto.iter().chain(baseline).enumerate().map(|(index, run)| (index + 1, run))
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

/// Converts text between backticks to code elements.
fn in_prose(text: &str) -> String {
    let mut out = String::new();
    let parts: Vec<&str> = text.split('`').collect();
    // A backtick without a partner stays a character.
    let paired = parts.len() % 2 == 1;
    for (index, part) in parts.iter().enumerate() {
        match (index % 2 == 1, paired) {
            (true, true) => {
                let _ = write!(out, "<code>{}</code>", escaped(part));
            }
            (_, false) if index > 0 => {
                let _ = write!(out, "`{}", escaped(part));
            }
            _ => out.push_str(&escaped(part)),
        }
    }
    out
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
            "device": {"name": "<T4>", "capacity": 16_u64 << 30, "count": 1, "kind": "virtual"}, "nodes": 1,
            "budget": 15_u64 << 30, "margin": 0.03, "allow": "precision", "baseline": baseline, "chosen": chosen,
            "limit": null, "pareto": [chosen], "rejected": [{"lever": "sdpa", "why": "1 < 2"}], "advice": [],
            "smallest_card": null, "evaluations": 3, "wall_s": 1.0, "interrupted": false, "notes": [], "torch": null,
            "command": ["python", "train.py"], "plan": null, "problem": null,
            "coverage": {
                "steps": 3, "evaluation": false, "largest_batch": true, "epoch_end": true, "has_loader": true,
                "growth_per_step": 0, "not_run": [{"place": "/me/train.py:9", "code": "evaluate(model)"}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn the_answer_says_which_parts_of_the_training_it_is_for() {
        let told = crate::text::plan(&report(), crate::text::Canvas { width: 120, unicode: true });
        for part in [
            "for the 3 steps that ran, on a virtual",
            "an evaluation: the plan's",
            "train.py:9: `evaluate(model)`",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
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
        assert!(page.contains("Not covered: an evaluation"));
        // No external resources and no scripts.
        assert!(!page.contains("<script") && !page.contains("http"));
    }
}
