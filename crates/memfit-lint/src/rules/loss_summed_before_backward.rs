//! # loss-summed-before-backward
//!
//! ## What it does
//! Finds losses that are summed over the batches of a loader and go through one `backward()` after the loop.
//!
//! ## Why
//! The graphs of all batches are alive at once. Measured over five batches: a peak of 185 MiB instead of 57
//! MiB. `backward()` in each iteration accumulates the same gradients and frees each graph.
//!
//! ## Example
//! ```python
//! total = 0
//! for x, y in loader:
//!     total = total + criterion(model(x), y)
//! total.backward()
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//! ```
//!
//! ## Fix safety
//! No fix: the further use of the sum depends on the program.
//!
//! ## References
//! - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)

use memfit_source::{GraphState, IterableKind, StoreKind};

use crate::query::{backwards, loss_texts, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "loss-summed-before-backward",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for store in facts.stores.iter().filter(|store| matches!(store.kind, StoreKind::Add | StoreKind::Append))
    {
        let Some(looped) =
            store.grows.filter(|id| facts.enclosing(store.site.looped).any(|inner| inner == *id))
        else {
            continue;
        };
        // `for batch in micro_batches`
        let over_batches = store.site.looped.is_some_and(|id| {
            let found = facts.looped(id);
            let names_batches = || words(context.slice(found.iterable)).any(|word| word.contains("batch"));
            facts.over_batches(id) || found.iterable_kind == IterableKind::Other && names_batches()
        });
        if !over_batches || store.graph_then != GraphState::Live {
            continue;
        }
        let end = facts.looped(looped).end;
        // The sum itself, or the sum of a list.
        let passed = backwards(facts).find(|(op, backward)| {
            op.site.function == store.site.function
                && op.site.order > end
                && !facts.within(&op.site, looped)
                && loss_texts(context, op, backward).iter().any(|text| mentions(text, &store.target))
        });
        let Some((op, _)) = passed else { continue };
        findings
            .report(
                store.span,
                format!(
                    "`{}` holds the graphs of all batches at once: nothing is freed until its `backward()`",
                    store.target
                ),
            )
            .label(op.span, "the only backward pass is here, after the loop")
            .help("call `backward()` in each iteration: the gradients add up to the same");
    }
}

fn mentions(text: &str, name: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'))
        .any(|word| word == name || word.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}
