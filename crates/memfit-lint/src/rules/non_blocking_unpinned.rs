//! # non-blocking-unpinned
//!
//! ## What it does
//! Notes `non_blocking=True` on batches of a loader that does not pin them.
//!
//! ## Why
//! A copy from pageable memory goes through a staging buffer, and the call returns only after the buffer was
//! filled, so that nothing overlaps. Pinned memory is host memory that cannot be swapped; a few batches of it
//! are held.
//!
//! ## Example
//! ```python
//! loader = DataLoader(data, num_workers=4)
//! for x, y in loader:
//!     x = x.to(device, non_blocking=True)
//! ```
//! Use instead:
//! ```python
//! loader = DataLoader(data, num_workers=4, pin_memory=True)
//! for x, y in loader:
//!     x = x.to(device, non_blocking=True)
//! ```
//!
//! ## Fix safety
//! Safe: the values are the same.
//!
//! ## References
//! - [torch.utils.data](https://docs.pytorch.org/docs/stable/data.html#memory-pinning)

use memfit_source::{Call, Facts};

use crate::query::is_prepared;
use crate::rule::{Context, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "non-blocking-unpinned", severity: Severity::Note, fixes: Fixes::Safe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut seen = Vec::new();
    for call in facts.calls.iter().filter(|call| call.is_method("to") || call.is_method("cuda")) {
        let asked = call.keyword("non_blocking").is_some_and(|argument| argument.value.truth() == Some(true));
        let loader = call.receiver.as_ref().and_then(|receiver| receiver.value.loader).filter(|_| asked);
        let Some(made) = loader.and_then(|id| facts.loader(id)) else { continue };
        if made.is_open()
            || !is_repeated(facts, call)
            || call.receiver.as_ref().is_some_and(|receiver| is_prepared(facts, &receiver.value))
            || made.keyword("pin_memory").is_some_and(|argument| argument.value.truth() != Some(false))
            || seen.contains(&made.span)
        {
            continue;
        }
        seen.push(made.span);
        let fix = made.keyword("pin_memory").is_none().then(|| facts.add_argument(made, "pin_memory=True"));
        findings
            .report(call.span, "the batch is not pinned: this copy does not overlap with anything")
            .label(made.span, "the loader does not pin its batches")
            .help("give the loader `pin_memory=True`")
            .fix(fix.and_then(|edit| Fix::safe("Pin the batches", vec![edit])));
    }
}

/// Returns `true` for a call in a loop, or in a function that is not called from outside of loops only.
fn is_repeated(facts: &Facts, call: &Call) -> bool {
    let function = call.site.function;
    let mut callers = facts.calls.iter().filter(|other| other.function == Some(function)).peekable();
    let unseen = function != memfit_source::FunctionId::MODULE && callers.peek().is_none();
    call.site.looped.is_some() || unseen || callers.any(|caller| caller.site.looped.is_some())
}
