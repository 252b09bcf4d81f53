//! Explanation of a case.

use std::cmp::Reverse;

use memfit_recording::{Track, Unknown};
use memfit_vocabulary::{Cause, Lever, Proof};

use crate::analysis::Analysis;
use crate::case::Case;
use crate::explanation::{
    Apply, ConsideredCause, Explanation, Fix, LeakFacts, MomentFacts, NO_HISTORY, NO_PERIODS,
};
use crate::fragmentation::fragmentation;
use crate::holders::holders;
use crate::leaks::{Leak, leaks, replaced};
use crate::timeline::has_history;
use crate::weigh::{Finding, findings};

/// Explains why memory ran out on a device, or describes its peak if it did not. Returns `None` if the device
/// was not used.
pub fn explain(case: &Case<'_>) -> Option<Explanation> {
    let analysis = Analysis::new(case)?;
    let timeline = &analysis.timeline;
    let trouble = timeline.trouble;
    let mut leaks = leaks(timeline, analysis.limit);
    if leaks.is_empty() {
        let concatenated = |leak: &Leak| leak.site.is_some_and(|site| analysis.is_concatenated(site));
        leaks.extend(replaced(timeline).filter(concatenated));
    }
    let findings = findings(&analysis, &leaks);
    let cause =
        findings.first().filter(|finding| finding.enough).map_or(Cause::None, |finding| finding.cause);
    // Steps that were neither recorded nor inferred have no number.
    let has_steps = !timeline.steps.is_empty() || !case.track.unknown.contains(&Unknown::Steps);
    let has_periods = has_steps || !timeline.periods().is_empty();
    let moment = MomentFacts {
        moment: trouble.moment,
        step: if has_steps { timeline.steps_at(trouble.moment) as u64 + 1 } else { 0 },
        phase: Some(trouble.phase),
        requested: trouble.requested,
        segment: analysis.segment,
        allocated: trouble.allocated,
        reserved: trouble.reserved,
        limit: analysis.limit,
        missing: analysis.short(),
    };
    let considered = findings
        .iter()
        .map(|finding| ConsideredCause { cause: finding.cause, bytes: finding.bytes, enough: finding.enough })
        .collect();
    let leaks = leaks.iter().take(16).map(|leak| LeakFacts {
        line: leak.site.map(|site| analysis.line(site)),
        module: Some(timeline.track.texts.get(leak.module).to_owned()).filter(|name| !name.is_empty()),
        category: leak.category,
        per_step: leak.per_step,
        bytes: leak.bytes,
        steps: leak.steps,
        dies_at: leak.dies_at,
    });
    Some(Explanation {
        device: case.device,
        cause,
        moment,
        holders: holders(timeline),
        leaks: leaks.collect(),
        fragmentation: fragmentation(timeline),
        considered,
        unknown: unknown(case.track, has_periods),
        evidence: findings
            .first()
            .filter(|_| cause != Cause::None)
            .map(|first| first.facts.clone())
            .unwrap_or_default(),
        fixes: rank_fixes(findings, cause, analysis.limit),
    })
}

/// Gaps of a track, as sentences.
fn unknown(track: &Track, has_periods: bool) -> Vec<String> {
    let without = match (has_history(track), has_periods) {
        (false, _) => Some(NO_HISTORY.to_owned()),
        (true, false) => Some(NO_PERIODS.to_owned()),
        (true, true) => None,
    };
    without.into_iter().chain(track.unknown.iter().map(ToString::to_string)).collect()
}

/// Remedies that reduce what is kept for a backward pass.
const REDUCE_GRAPH: [Lever; 4] =
    [Lever::Checkpointing, Lever::ActivationOffload, Lever::MicroBatch, Lever::SmallerBatch];

/// Divisor of the limit: a remedy that is not enough and saves less than a hundredth of the memory is none.
const NEGLIGIBLE_SHARE_DIVISOR: u64 = 100;

/// Ranks the remedies of all findings. Criteria in order: sufficient; asked for by the cause; same training
/// results; applicable automatically; other than activation offloading, which takes time; largest savings.
fn rank_fixes(findings: Vec<Finding>, cause: Cause, limit: Option<u64>) -> Vec<Fix> {
    let mut fixes: Vec<(bool, Fix)> = Vec::new();
    // Memory that grows from step to step fills any freed space later.
    let grows = matches!(cause, Cause::Leaking | Cause::RetainedGraph | Cause::GrowingCache);
    for finding in findings {
        let of_cause = finding.cause == cause;
        for mut fix in finding.fixes {
            if grows && !of_cause && fix.fits == Some(true) {
                fix.fits = None;
            }
            if !fixes.iter().any(|(_, known)| known.lever == fix.lever && known.apply == fix.apply) {
                fixes.push((of_cause, fix));
            }
        }
    }
    if grows {
        // The others only delay the error, unless the step that failed is too large as well.
        let enough = fixes.iter().any(|(of_cause, fix)| *of_cause && fix.fits == Some(true));
        fixes.retain(|(of_cause, fix)| *of_cause || !enough && !matches!(fix.apply, Apply::Card(_)));
    }
    let negligible = |fix: &Fix| {
        let least = limit.unwrap_or(0) / NEGLIGIBLE_SHARE_DIVISOR;
        fix.proof == Proof::Modelled && fix.fits != Some(true) && (1..least).contains(&fix.saves)
    };
    fixes.retain(|(_, fix)| !negligible(fix));
    let ends_graph = |(of_cause, fix): &(bool, Fix)| *of_cause && fix.fits != Some(false);
    if cause == Cause::EvaluationWithGradients && fixes.iter().any(ends_graph) {
        // Without the graph, nothing is left that they could reduce.
        fixes.retain(|(of_cause, fix)| *of_cause || !REDUCE_GRAPH.contains(&fix.lever));
    }
    fixes.sort_by_key(|(of_cause, fix)| {
        let enough = match fix.fits {
            // A larger GPU always helps, so it comes after every remedy that may be enough.
            Some(true) | None if matches!(fix.apply, Apply::Card(_)) => 2,
            Some(true) => 0,
            None => 1,
            Some(false) => 3,
        };
        (
            enough,
            !of_cause,
            fix.label(),
            matches!(fix.apply, Apply::ByHand(_)),
            fix.lever == Lever::ActivationOffload,
            Reverse(fix.saves),
        )
    });
    fixes.into_iter().map(|(_, fix)| fix).collect()
}

#[cfg(test)]
mod tests;
