//! # compile-in-loop
//!
//! ## What it does
//! Finds `torch.compile` in a loop over batches.
//!
//! ## Why
//! Each iteration wraps the model again, and the compiled code is looked up or compiled again. Measured over
//! three iterations: with one backend for all of them, the model is compiled 1 time; with a backend created
//! in each iteration (a `partial`, a `lambda`), 3 times.
//!
//! ## Example
//! ```python
//! for x in loader:
//!     fast = torch.compile(model)
//!     fast(x)
//! ```
//! Use instead:
//! ```python
//! fast = torch.compile(model)
//! for x in loader:
//!     fast(x)
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [torch.compile](https://docs.pytorch.org/docs/stable/generated/torch.compile.html)

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "compile-in-loop", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in facts.calls.iter().filter(|call| call.is("torch.compile")) {
        let Some(looped) = call.site.looped.filter(|id| facts.over_batches(*id)) else { continue };
        if !facts.guards_of(call.site.guard).any(|id| facts.guard(id).looped == Some(looped)) {
            findings
                .report(call.span, "the model is compiled in every iteration")
                .label(facts.looped(looped).header, "in this loop over batches")
                .help("compile it once, before the loop");
        }
    }
}
