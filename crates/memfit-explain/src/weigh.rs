//! Comparison of causes. Each cause has a check that computes the bytes it accounts for and whether their
//! absence would have prevented the failure. The most specific of the sufficient causes wins.

mod attention;
mod autocast;
mod batches;
mod card;
mod evaluation;
mod giant;
mod growth;
mod models;
mod optimizer;
mod room;
mod size;

pub(crate) use memfit_vocabulary::format_size as size;

pub use self::size::GPU_SIZES_GIB;
use memfit_vocabulary::Cause;
pub(crate) use room::{FRACTION_SETTER, limited};

use crate::analysis::Analysis;
use crate::explanation::{Fact, Fix};
use crate::leaks::Leak;

/// Cause with its evidence and remedies.
pub(crate) struct Finding {
    pub(crate) cause: Cause,
    /// Bytes that it accounts for.
    pub(crate) bytes: u64,
    /// `true` if their absence would have prevented the failure.
    pub(crate) enough: bool,
    pub(crate) facts: Vec<Fact>,
    pub(crate) fixes: Vec<Fix>,
}

/// Runs all checks and returns the findings, the cause first.
pub(crate) fn findings(analysis: &Analysis<'_>, leaks: &[Leak]) -> Vec<Finding> {
    let mut findings = Vec::new();
    // In order from specific to general: the first sufficient one wins.
    findings.extend(growth::find(analysis, leaks));
    findings.extend(models::find(analysis));
    findings.extend(optimizer::growing_state(analysis));
    findings.extend(room::find(analysis));
    findings.extend(card::find(analysis));
    findings.extend(size::does_not_fit(analysis));
    findings.extend(optimizer::find(analysis));
    findings.extend(evaluation::find(analysis));
    findings.extend(batches::find(analysis));
    findings.extend(giant::find(analysis));
    if analysis.timeline.trouble.requested.is_some() {
        findings.push(size::too_big(analysis, leaks));
    }
    let first = findings.iter().position(|finding| finding.enough);
    let preferred = prefer_pools(&findings)
        .or_else(|| prefer_kept(&findings, analysis))
        .or_else(|| prefer_evaluation(&findings));
    let first = preferred.or(first);
    if let Some(first) = first {
        let mut cause = findings.remove(first);
        cause.enough = true;
        findings.insert(0, cause);
    }
    findings
}

/// Captured graphs can grow in number as a leak does. If their pools hold more unusable memory than what
/// grows, and a replay with shared pools succeeds, the pools are the cause.
fn prefer_pools(findings: &[Finding]) -> Option<usize> {
    let enough = |cause: &[Cause]| findings.iter().position(|one| one.enough && cause.contains(&one.cause));
    let pools = enough(&[Cause::PrivatePools])?;
    let growth = enough(&[Cause::Leaking, Cause::RetainedGraph, Cause::GrowingCache])?;
    (findings[pools].bytes >= findings[growth].bytes).then_some(pools)
}

/// Needlessly kept tensors cause fragmentation, and defragmented memory would soon be full again. If they are
/// larger than the fragments, and a replay that frees them in time succeeds, they are the cause.
fn prefer_kept(findings: &[Finding], analysis: &Analysis<'_>) -> Option<usize> {
    let pieces = findings.iter().find(|one| one.enough).filter(|one| one.cause == Cause::Fragmented)?;
    let kept = |one: &Finding| {
        let for_nothing = match one.cause {
            // Collecting before any training may be the purpose of the program.
            Cause::Leaking | Cause::RetainedGraph | Cause::GrowingCache => !analysis.timeline.by_rounds,
            Cause::EvaluationWithGradients | Cause::TwoBatchesAlive => true,
            _ => false,
        };
        // As in the other checks, it must be a large part of the live memory.
        let much = one.bytes >= pieces.bytes && one.bytes * 4 >= analysis.timeline.trouble.allocated;
        for_nothing && much && one.fixes.iter().any(|fix| fix.fits == Some(true))
    };
    // For graphs kept by an evaluation, the missing `no_grad` is the more specific cause.
    let evaluation = |one: &Finding| one.cause == Cause::EvaluationWithGradients && kept(one);
    findings.iter().position(evaluation).or_else(|| findings.iter().position(kept))
}

/// An evaluation that keeps each batch's graph also leaks graphs. The missing `no_grad` is the more specific
/// cause.
fn prefer_evaluation(findings: &[Finding]) -> Option<usize> {
    let first = findings.iter().find(|one| one.enough)?;
    let evaluation =
        findings.iter().position(|one| one.enough && one.cause == Cause::EvaluationWithGradients)?;
    (first.cause == Cause::RetainedGraph).then_some(evaluation)
}
