//! The causes, weighed against each other. Each has a test of its own: what it accounts for, and whether without that there
//! would have been enough. Of those that are enough the most specific is the cause.

mod batches;
mod card;
mod evaluation;
mod giant;
mod growth;
mod optimizer;
mod room;
mod size;

pub(crate) use room::VARIABLE;

use memfit_levers::Cause;

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
    let first = prefer_pools(&findings).or(first);
    if let Some(first) = first {
        let cause = findings.remove(first);
        findings.insert(0, cause);
    }
    findings
}

/// Graphs and what they captured grow in number as a leak does. Where their pools keep more to themselves than what grows
/// beside them, and the calls succeed once they lend it, the pools are the cause.
fn prefer_pools(findings: &[Finding]) -> Option<usize> {
    let enough = |cause: &[Cause]| findings.iter().position(|one| one.enough && cause.contains(&one.cause));
    let pools = enough(&[Cause::PrivatePools])?;
    let growth = enough(&[Cause::Leaking, Cause::RetainedGraph])?;
    (findings[pools].bytes >= findings[growth].bytes).then_some(pools)
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
