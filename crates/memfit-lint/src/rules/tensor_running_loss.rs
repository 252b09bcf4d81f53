//! # tensor-running-loss
//!
//! ## What it does
//! Finds running sums of losses that stay tensors.
//!
//! ## Why
//! After `backward()` no activation is kept (measured: 0 bytes), so this is no leak. What stays is a chain of
//! graph nodes that grows by one a round, and a block of 512 B on the card. `.detach()` keeps the sum on the
//! device without the chain.
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

use memfit_source::{Flags, GraphState, How};

use crate::query::backwards;
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "tensor-running-loss", severity: Severity::Note, fixes: Fixes::Safe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for store in facts.stores.iter().filter(|store| store.how == How::Add) {
        let freed = store.graph == GraphState::Freed && store.value.is(Flags::SCALAR);
        if !freed || store.grows.is_none() {
            continue;
        }
        // A sum that is trained on is not a running one.
        let trained = backwards(facts).any(|(op, backward)| {
            op.place.function == store.place.function
                && context.slice(backward.loss_span).starts_with(&store.target)
        });
        if trained {
            continue;
        }
        let text = context.slice(store.value_span).to_owned();
        let simple = text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
        findings
            .at(
                store.value_span,
                format!("`{}` stays a tensor: its graph grows by a node in every round", store.target),
            )
            .help(format!("add `{text}.detach()`"))
            .fix(if simple {
                Fix::safe("Add the detached loss", vec![Edit::insert(store.value_span.end, ".detach()")])
            } else {
                None
            });
    }
}
