//! The causes, weighed against each other. Each has a test of its own: what it accounts for, and whether
//! without that there would have been enough. Of those that are enough the most specific is the cause.

mod autocast;
mod batches;
mod card;
mod evaluation;
mod giant;
mod growth;
mod optimizer;
mod room;
mod size;

pub(crate) use room::VARIABLE;

use memfit_vocabulary::Cause;

use crate::bench::Bench;
use crate::explanation::{Fact, Fix};
use crate::leaks::Leak;

/// A cause, with what speaks for it and what would help against it.
pub(crate) struct Finding {
    pub(crate) cause: Cause,
    /// The bytes that it accounts for.
    pub(crate) bytes: u64,
    /// Whether without them there would have been enough.
    pub(crate) enough: bool,
    pub(crate) facts: Vec<Fact>,
    pub(crate) fixes: Vec<Fix>,
}

/// Everything that was found, the cause first.
pub(crate) fn findings(bench: &Bench<'_>, leaks: &[Leak]) -> Vec<Finding> {
    let mut findings = Vec::new();
    // From the most specific to the most general: what comes first wins where it is enough.
    findings.extend(growth::find(bench, leaks));
    findings.extend(room::find(bench));
    findings.extend(card::find(bench));
    findings.extend(size::does_not_fit(bench));
    findings.extend(optimizer::find(bench));
    findings.extend(evaluation::find(bench));
    findings.extend(batches::find(bench));
    findings.extend(giant::find(bench));
    if bench.story.trouble.requested.is_some() {
        findings.push(size::too_big(bench));
    }
    let first = findings.iter().position(|finding| finding.enough);
    let preferred = prefer_pools(&findings)
        .or_else(|| prefer_kept(&findings, bench))
        .or_else(|| prefer_evaluation(&findings));
    let first = preferred.or(first);
    if let Some(first) = first {
        let mut cause = findings.remove(first);
        cause.enough = true;
        findings.insert(0, cause);
    }
    findings
}

/// Graphs and what they captured grow in number as a leak does. Where their pools keep more to themselves
/// than what grows beside them, and the calls succeed once they lend it, the pools are the cause.
fn prefer_pools(findings: &[Finding]) -> Option<usize> {
    let enough = |cause: &[Cause]| findings.iter().position(|one| one.enough && cause.contains(&one.cause));
    let pools = enough(&[Cause::PrivatePools])?;
    let growth = enough(&[Cause::Leaking, Cause::RetainedGraph, Cause::GrowingCache])?;
    (findings[pools].bytes >= findings[growth].bytes).then_some(pools)
}

/// What is kept for nothing makes pieces of the room, and pieces of that size would soon be asked for in vain
/// again. Where more is kept than what lay in pieces, and the calls succeed once it goes in time, it is the
/// cause.
fn prefer_kept(findings: &[Finding], bench: &Bench<'_>) -> Option<usize> {
    let pieces = findings.iter().find(|one| one.enough).filter(|one| one.cause == Cause::Fragmented)?;
    let kept = |one: &Finding| {
        let for_nothing = match one.cause {
            // What is collected before any training may be what the program is for.
            Cause::Leaking | Cause::RetainedGraph | Cause::GrowingCache => !bench.story.by_rounds,
            Cause::EvaluationWithGradients | Cause::TwoBatchesAlive => true,
            _ => false,
        };
        // As everywhere, it has to be a good part of what is there.
        let much = one.bytes >= pieces.bytes && one.bytes * 4 >= bench.story.trouble.allocated;
        for_nothing && much && one.fixes.iter().any(|fix| fix.fits == Some(true))
    };
    // Of graphs that an evaluation keeps it says more that none is wanted.
    let evaluation = |one: &Finding| one.cause == Cause::EvaluationWithGradients && kept(one);
    findings.iter().position(evaluation).or_else(|| findings.iter().position(kept))
}

/// An evaluation that keeps the graph of each batch keeps graphs from round to round: that no graph is wanted
/// at all says more.
fn prefer_evaluation(findings: &[Finding]) -> Option<usize> {
    let first = findings.iter().find(|one| one.enough)?;
    let evaluation =
        findings.iter().position(|one| one.enough && one.cause == Cause::EvaluationWithGradients)?;
    (first.cause == Cause::RetainedGraph).then_some(evaluation)
}

/// A size for a sentence: binary units, with as many decimals as matter.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str, usize); 3] = [(30, "GiB", 2), (20, "MiB", 0), (10, "KiB", 0)];
    for (shift, unit, decimals) in UNITS {
        let one = 1_u64 << shift;
        if bytes >= one - one / 64 {
            return format!("{:.decimals$} {unit}", bytes as f64 / one as f64);
        }
    }
    format!("{bytes} B")
}
