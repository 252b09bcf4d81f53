//! From a case to its explanation.

use std::cmp::Reverse;

use memfit_vocabulary::{Cause, Lever};

use crate::bench::Bench;
use crate::case::Case;
use crate::explanation::{Apply, Explanation, Fix, LeakFacts, MomentFacts, Weighed};
use crate::fragmentation::fragmentation;
use crate::holders::holders;
use crate::leaks::leaks;
use crate::weigh::{Finding, findings};

/// Why memory ran out on a device, or what there is to know where it did not; nothing where the device was
/// not used.
pub fn explain(case: &Case<'_>) -> Option<Explanation> {
    let bench = Bench::new(case)?;
    let story = &bench.story;
    let trouble = story.trouble;
    let leaks = leaks(story, bench.limit);
    let findings = findings(&bench, &leaks);
    let cause =
        findings.first().filter(|finding| finding.enough).map_or(Cause::None, |finding| finding.cause);
    let moment = MomentFacts {
        moment: trouble.moment,
        step: story.steps_at(trouble.moment) as u64 + 1,
        phase: Some(trouble.phase),
        requested: trouble.requested,
        allocated: trouble.allocated,
        reserved: trouble.reserved,
        limit: bench.limit,
        missing: bench.short(),
    };
    let considered = findings
        .iter()
        .map(|finding| Weighed { cause: finding.cause, bytes: finding.bytes, enough: finding.enough })
        .collect();
    let leaks = leaks.iter().take(16).map(|leak| LeakFacts {
        line: leak.site.map(|site| bench.line(site)),
        module: Some(story.track.texts.get(leak.module).to_owned()).filter(|name| !name.is_empty()),
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
        holders: holders(story),
        leaks: leaks.collect(),
        fragmentation: fragmentation(story),
        considered,
        unknown: case.track.unknown.iter().map(ToString::to_string).collect(),
        evidence: findings
            .first()
            .filter(|_| cause != Cause::None)
            .map(|first| first.facts.clone())
            .unwrap_or_default(),
        fixes: ranked(findings, cause),
    })
}

/// The remedies of all findings, the best first: what would have been enough; what the cause itself asks for;
/// what keeps the training the same; what can be applied as it is; what costs no other machine and little
/// time; what saves most.
fn ranked(findings: Vec<Finding>, cause: Cause) -> Vec<Fix> {
    let mut fixes: Vec<(bool, Fix)> = Vec::new();
    // What grows from step to step fills any room that something else makes, only later.
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
    fixes.sort_by_key(|(of_cause, fix)| {
        let enough = match fix.fits {
            // Another card is always an answer, and the last one wherever there may be another.
            Some(true) if matches!(fix.apply, Apply::Card(_)) && cause != Cause::DoesNotFit => 2,
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
