//! Parts of a training that a run covered or did not, and the change of memory from step to step.

use std::fmt::Write as _;

use super::growth::{Growth, STEPS_TO_COMPARE};
use super::size;
use crate::wire::{Coverage, RunReport};

/// Maximum statements that did not run.
const MAX_NOT_RUN: usize = 4;

/// `3 steps`, `1 forward pass`.
pub(super) fn steps(coverage: &Coverage) -> String {
    let (one, several) =
        if coverage.forward_only { ("forward pass", "forward passes") } else { ("step", "steps") };
    format!("{} {}", coverage.steps, if coverage.steps == 1 { one } else { several })
}

/// `the 3 steps that ran`.
pub(super) fn what_ran(coverage: &Coverage) -> String {
    match coverage.steps {
        0 => "what ran".to_owned(),
        _ => format!("the {} that ran", steps(coverage)),
    }
}

/// A place without its folder.
pub(super) fn without_folder(place: &str) -> &str {
    place.rsplit_once('/').map_or(place, |(_, name)| name)
}

/// Parts of a training that a run covered, or those that it did not cover. A script without an optimizer has
/// no evaluation beside its forward passes, and one without a loader neither a data set nor epochs, nor an
/// evaluation if all of its statements ran.
fn parts(coverage: &Coverage, wanted: bool) -> Vec<&'static str> {
    let Coverage { evaluation, largest_batch, epoch_end, has_loader, forward_only, .. } = *coverage;
    let parts = [
        ("an evaluation", evaluation, evaluation && !forward_only || may_evaluate(coverage)),
        ("a batch of the largest items", largest_batch, has_loader || largest_batch),
        ("the end of an epoch", epoch_end, has_loader || epoch_end),
    ];
    parts.into_iter().filter(|(_, ran, exists)| *exists && *ran == wanted).map(|(name, ..)| name).collect()
}

/// Parts of a training that `--cover full` could run as well; `None` if there are none.
pub(super) fn coverable(coverage: &Coverage) -> Option<String> {
    let parts = [
        ("an evaluation", may_evaluate(coverage)),
        ("a batch of the data set's largest items", coverage.has_loader && !coverage.largest_batch),
    ];
    let missing: Vec<&str> =
        parts.into_iter().filter(|(_, missing)| *missing).map(|(name, _)| name).collect();
    (!missing.is_empty()).then(|| missing.join(" and "))
}

/// Returns `true` if the script may have an evaluation that did not run.
const fn may_evaluate(coverage: &Coverage) -> bool {
    let all_ran = !coverage.has_loader && coverage.not_run.is_empty();
    !coverage.evaluation && !coverage.forward_only && !all_ran
}

/// Parts of a training that the run did not cover; `None` if it covered all.
pub(crate) fn not_covered(coverage: &Coverage) -> Option<String> {
    let missing = parts(coverage, false);
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// Parts that the run covered, and the change of memory from step to step.
pub(super) fn covered(report: &RunReport) -> String {
    let coverage = &report.coverage;
    let mut text = steps(coverage);
    if let Some((last, others)) = parts(coverage, true).split_last() {
        for name in others {
            let _ = write!(text, ", {name}");
        }
        let _ = write!(text, " and {last}");
    }
    match coverage.growth_per_step {
        Some(0) => text.push_str("; memory was steady"),
        _ if Growth::of_run(report).is_some() => text.push_str("; memory still grew"),
        Some(growth) if growth < 0 => text.push_str("; memory shrank"),
        Some(growth) => {
            let _ = write!(text, "; memory was steady but for {} a step", size(growth.unsigned_abs()));
        }
        None if (1..STEPS_TO_COMPARE).contains(&coverage.steps) => {
            text.push_str("; too few to compare their memory");
        }
        None if coverage.steps >= STEPS_TO_COMPARE && !coverage.largest_batch => {
            text.push_str("; the steps differ in memory, so a later batch may need more");
        }
        None => {}
    }
    text
}

/// The first statements that use the GPU and did not run, and the number of the others.
pub(super) fn not_run(coverage: &Coverage) -> Vec<String> {
    let shown = coverage.not_run.iter().take(MAX_NOT_RUN);
    let mut lines: Vec<String> =
        shown.map(|each| format!("{}: `{}`", without_folder(&each.place), each.code)).collect();
    match coverage.not_run.len().saturating_sub(MAX_NOT_RUN) {
        0 => {}
        1 => lines.push("and 1 other statement that uses the GPU".to_owned()),
        others => lines.push(format!("and {others} other statements that use the GPU")),
    }
    lines
}
