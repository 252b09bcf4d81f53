//! # device-tensor-in-container
//!
//! ## What it does
//! Finds tensors on the GPU that a loop collects after cutting them from their graph.
//!
//! ## Why
//! `detach()` cuts the graph and keeps the storage: it has the same `data_ptr()`. Each round leaves its
//! output on the card, so device memory grows by the output's size a round, over the whole data set.
//! Measured: five outputs of 8 MiB hold 40 MiB; moved to the host, none.
//!
//! ## Example
//! ```python
//! for x in loader:
//!     predictions.append(model(x.cuda()).detach())
//! ```
//! Use instead:
//! ```python
//! for x in loader:
//!     predictions.append(model(x.cuda()).detach().cpu())
//! ```
//!
//! ## Fix safety
//! Unsafe: what reads the container finds tensors on the host.
//!
//! ## References
//! - [torch.Tensor.detach](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html)

use memfit_source::{Flags, GraphState, How};

use crate::query::{grows, is_large_on_gpu};
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "device-tensor-in-container",
    severity: Severity::Warning,
    fixes: Fixes::Unsafe,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for store in facts.stores.iter().filter(|store| store.how == How::Append) {
        let cut = (store.value.is(Flags::DETACHED) || store.value.is(Flags::NO_GRAD_BUILT))
            && store.value.graph.is_none();
        // An output after the backward pass has no activations behind it, and is there itself.
        let passed = store.graph_then == GraphState::Freed && store.graph == GraphState::Freed;
        if !(cut || passed) || !is_large_on_gpu(&store.value) || store.value.is(Flags::VIEW) {
            continue;
        }
        let Some(looped) = grows(facts, store) else { continue };
        // Over the data, not over a handful of parts.
        if !facts.enclosing(store.place.looped).any(|id| facts.over_batches(id))
            || joined_on_device(context, &store.target)
        {
            continue;
        }
        let text = context.slice(store.value_span).to_owned();
        let way = if cut { ".cpu()" } else { ".detach().cpu()" };
        findings
            .at(
                store.value_span,
                format!("`{text}` stays on the GPU: `{}` grows by it in every round", store.target),
            )
            .label(facts.looped(looped).header, "over the rounds of this loop")
            .help(format!("move it to the host with `{way}`, or keep only what is computed from it"))
            .fix(Fix::unsafe_("Move it to the host", vec![Edit::insert(store.value_span.end, way)]));
    }
}

/// The container is put together on the GPU: then it is wanted there.
fn joined_on_device(context: &Context<'_>, target: &str) -> bool {
    context.facts.calls.iter().any(|call| {
        call.path.as_deref().is_some_and(|path| {
            ["torch.cat", "torch.stack", "torch.concat", "torch.vstack", "torch.hstack"].contains(&path)
        }) && call.arguments.first().is_some_and(|argument| context.slice(argument.value_span) == target)
    })
}
