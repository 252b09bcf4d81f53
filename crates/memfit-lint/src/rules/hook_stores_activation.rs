//! # hook-stores-activation
//!
//! ## What it does
//! Finds forward hooks that store the output as it is.
//!
//! ## Why
//! The stored output keeps its graph, and with it the activations of the whole forward pass that led to it, until the
//! next call overwrites it or for good.
//!
//! ## Example
//! ```python
//! def hook(module, inputs, output):
//!     features["layer"] = output
//! model.layer.register_forward_hook(hook)
//! ```
//! Use instead:
//! ```python
//! def hook(module, inputs, output):
//!     features["layer"] = output.detach()
//! model.layer.register_forward_hook(hook)
//! ```
//!
//! ## Fix safety
//! Unsafe: a loss that is computed from the stored output no longer trains what led to it.
//!
//! ## References
//! - [register_forward_hook](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html)

use memfit_source::{FunctionId, Grad, How, Kind, OpKind};

use crate::query::backwards;
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "hook-stores-activation", severity: Severity::Warning, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let hooks: Vec<FunctionId> = facts
        .calls
        .iter()
        .filter(|call| call.is_method("register_forward_hook"))
        .filter_map(|call| match call.arguments.first()?.value.kind {
            Kind::Function(id) => Some(id),
            _ => None,
        })
        .collect();
    // Where models are only ever called without gradients there is no graph to keep.
    let forwards = || facts.ops.iter().filter(|op| matches!(op.kind, OpKind::Forward));
    if forwards().count() > 0 && forwards().all(|op| op.place.grad == Grad::Off) {
        return;
    }
    for store in facts.stores.iter().filter(|store| hooks.contains(&store.place.function)) {
        if store.place.grad == Grad::Off {
            continue;
        }
        let function = facts.function(store.place.function);
        let parameters = &function.parameters;
        let skipped = usize::from(function.class.is_some() && parameters.first().is_some_and(|name| name == "self"));
        let text = context.slice(store.value_span);
        let root = text.split(['[', '.']).next().unwrap_or_default();
        let output = parameters.get(skipped + 2).is_some_and(|name| name == root);
        let plain = text == root || text.strip_prefix(root).is_some_and(|rest| rest.starts_with('[') && !rest.contains('('));
        let into = match store.how {
            How::Append | How::Item => true,
            How::Assign => store.target.contains('.'),
            How::Add => false,
        };
        // A loss may be made of what the hook stored.
        let trained = backwards(facts).any(|(_, backward)| context.slice(backward.loss_span).contains(&store.target));
        if !output || !plain || !into || trained {
            continue;
        }
        findings
            .at(store.value_span, format!("`{text}` keeps the graph of its forward pass, and all activations in it"))
            .help(format!("store `{text}.detach()`"))
            .fix(Fix::unsafe_("Store it detached", vec![Edit::insert(store.value_span.end, ".detach()")]));
    }
}
