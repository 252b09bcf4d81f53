//! # tensor-running-loss
//!
//! ## What it does
//! Finds running sums and lists of losses that remain tensors with a graph.
//!
//! ## Why
//! After `backward()` no activation is kept (measured: 0 bytes), so this is no leak. The sum keeps a chain of
//! graph nodes that grows by one in each iteration, and a block of 512 B on the GPU. `.detach()` keeps the
//! sum on the device without the chain. In a list, each loss keeps the nodes of its own iteration.
//!
//! ## Example
//! ```python
//! running = 0
//! for x, y in loader:
//!     loss = criterion(model(x), y)
//!     loss.backward()
//!     running += loss
//! ```
//! Use instead:
//! ```python
//! running = 0
//! for x, y in loader:
//!     loss = criterion(model(x), y)
//!     loss.backward()
//!     running += loss.detach()
//! ```
//!
//! ## Fix safety
//! Safe: the numbers are the same.
//!
//! ## References
//! - [torch.Tensor.detach](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html)

use memfit_source::{Flags, GraphState, Kind, StoreKind};

use crate::query::{backwards, grows, has_constant_key};
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "tensor-running-loss", severity: Severity::Note, fixes: Fixes::Safe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for store in &facts.stores {
        let freed = store.graph == GraphState::Freed && store.value.is(Flags::SCALAR);
        let adds = store.kind == StoreKind::Add && store.grows.is_some();
        let keeps = match store.kind {
            StoreKind::Append => true,
            StoreKind::Item => {
                matches!(store.target_value.kind, Kind::Container { .. }) && !has_constant_key(context, store)
            }
            _ => false,
        };
        if !freed
            || !(adds || keeps && store.graph_then == GraphState::Freed && grows(facts, store).is_some())
        {
            continue;
        }
        // A sum that is trained on is no running loss.
        let trained = backwards(facts).any(|(op, backward)| {
            op.site.function == store.site.function
                && has_word(context.slice(backward.loss_span), &store.target)
        });
        // A loss added before the backward pass is freed by its own pass, or the sum is part of another loss.
        let own = store.graph_then == GraphState::Freed
            || backwards(facts).any(|(_, backward)| {
                has_word(context.slice(backward.loss_span), context.slice(store.value_span))
            });
        if trained || !own {
            continue;
        }
        let text = context.slice(store.value_span).to_owned();
        let simple = text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
        findings
            .report(
                store.value_span,
                if adds {
                    format!("`{}` stays a tensor: its graph grows by a node in every iteration", store.target)
                } else {
                    format!("`{}` keeps the graph nodes of every iteration's loss", store.target)
                },
            )
            .help(format!("{} `{text}.detach()`", if adds { "add" } else { "store" }))
            .fix(if simple {
                Fix::safe(
                    if adds { "Add the detached loss" } else { "Store the detached loss" },
                    vec![Edit::insert(store.value_span.end, ".detach()")],
                )
            } else {
                None
            });
    }
}

/// Returns `true` if a name occurs in a text as a whole word.
fn has_word(text: &str, name: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).any(|word| word == name)
}
