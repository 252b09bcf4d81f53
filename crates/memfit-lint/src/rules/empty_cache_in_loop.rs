//! # empty-cache-in-loop
//!
//! ## What it does
//! Finds `torch.cuda.empty_cache()` in every round of a loop over batches.
//!
//! ## Why
//! It hands cached blocks back to the driver, and the next round asks for them again: `cudaFree` and
//! `cudaMalloc`, and a synchronisation, per round. Measured: four rounds ask the driver 4 times, and 1 time
//! without it. It makes no memory available to PyTorch that it did not have.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//!     torch.cuda.empty_cache()
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//! ```
//!
//! ## Fix safety
//! Unsafe: another process on the same card may count on what is handed back.
//!
//! ## References
//! - [Memory management](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)

use crate::query::{catches_all, catches_memory, is_batch_loop};
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "empty-cache-in-loop", severity: Severity::Warning, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in facts
        .calls
        .iter()
        .filter(|call| call.is("torch.cuda.empty_cache") || call.is("torch.cuda.memory.empty_cache"))
    {
        let Some(looped) = call.site.looped.filter(|id| is_batch_loop(facts, *id)) else { continue };
        // After an error it is what one does; under a condition it is not every round.
        let guarded = facts.guards_of(call.site.guard).any(|id| {
            facts.guard(id).looped == Some(looped) && !device_test(context.slice(facts.guard(id).test))
        });
        if guarded || call.site.handler.is_some() {
            continue;
        }
        // A search for what fits empties the cache before each attempt.
        let searches = facts.handlers.iter().any(|handler| {
            facts.within(&handler.site, looped)
                && (catches_memory(handler) || catches_all(handler) && handler.reads_message)
        });
        if searches {
            continue;
        }
        // A loop that holds the loop over batches is one of epochs or phases.
        let outer = facts.loops.iter().any(|inner| inner.parent == Some(looped));
        if outer {
            continue;
        }
        findings
            .at(call.span, "the cache is emptied in every round: each round pays for allocating it again")
            .label(facts.looped(looped).header, "in this loop")
            .help("leave it out: PyTorch reuses what it has cached")
            .fix(
                facts
                    .whole_lines(call.span)
                    .and_then(|line| alone(context, call.span).then(|| Edit::delete(line)))
                    .and_then(|edit| Fix::unsafe_("Leave it out", vec![edit])),
            );
    }
}

fn device_test(test: &str) -> bool {
    test.contains("is_available") || test.contains("cuda")
}

/// Another statement stands in the same block: taking this one out leaves a body.
fn alone(context: &Context<'_>, span: memfit_source::Span) -> bool {
    let facts = context.facts;
    let (start, blank) = facts.line_start(span.start);
    let above = facts.text[..start as usize].lines().rev().find(|line| !line.trim().is_empty());
    above.is_some_and(|line| line.starts_with(blank) && !line.trim_end().ends_with(':'))
}
