//! # anomaly-mode-left-on
//!
//! ## What it does
//! Finds anomaly detection that is enabled for the whole program.
//!
//! ## Why
//! Every operation records a traceback, and every backward pass checks for NaN. This costs time in every step
//! and host memory for the tracebacks. Anomaly detection is a debugging tool. Measured on four layers: the
//! backward pass runs 108 operations instead of 48, and the traceback of one operation takes more than 100
//! bytes.
//!
//! ## Example
//! ```python
//! torch.autograd.set_detect_anomaly(True)
//! ```
//! Use instead:
//! ```python
//! torch.autograd.set_detect_anomaly(args.debug)
//! ```
//!
//! ## Fix safety
//! Unsafe: NaNs are no longer reported.
//!
//! ## References
//! - [Anomaly detection](https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection)

use crate::query::is_guarded;
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "anomaly-mode-left-on", severity: Severity::Warning, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    around_steps(context, findings);
    for call in facts.calls.iter().filter(|call| {
        call.is_statement
            && call.path.as_deref().is_some_and(|path| {
                path.starts_with("torch.autograd") && path.ends_with("set_detect_anomaly")
            })
    }) {
        let on = call.argument(0, "mode").is_some_and(|argument| argument.value.truth() == Some(true));
        // Disabled again or enabled under a condition, it is used as intended.
        let off = facts.calls.iter().any(|other| {
            other.path == call.path
                && other.argument(0, "mode").is_some_and(|argument| argument.value.truth() == Some(false))
        });
        if !on || off || call.site.guard.is_some() {
            continue;
        }
        let top = facts.whole_lines(call.span).filter(|line| facts.slice(*line).starts_with("torch"));
        findings
            .report(call.span, "anomaly detection stays on: every operation records a traceback")
            .help("enable it only to search for an error")
            .fix(top.and_then(|line| Fix::unsafe_("Leave it off", vec![Edit::delete(line)])));
    }
}

/// Finds `with detect_anomaly():` around every training step.
fn around_steps(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for with in &facts.withs {
        let named = with.path.as_deref().is_some_and(|path| path.ends_with("autograd.detect_anomaly"));
        let item = context.slice(with.item);
        let guarded = with.site.looped.is_none_or(|looped| is_guarded(facts, &with.site, looped));
        let off = item.contains("False") || item.contains('=') || guarded;
        let Some(looped) = with.site.looped.filter(|_| named && !off) else { continue };
        if facts.trains(looped) {
            findings
                .report(
                    with.item,
                    "anomaly detection stays on in every step: every operation records a traceback",
                )
                .label(facts.looped(looped).header, "in this loop")
                .help("enable it only to search for an error");
        }
    }
}
