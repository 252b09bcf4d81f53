//! # zero-grad-before-step
//!
//! ## What it does
//! Finds gradients that are cleared between the backward pass and the step, also with Accelerate and Fabric.
//!
//! ## Why
//! The step finds no gradients, so nothing is trained. Measured with SGD: after the step, 0 of 15 parameters
//! have changed; without the line, all 15 have.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     loss = criterion(model(x), y)
//!     loss.backward()
//!     optimizer.zero_grad()
//!     optimizer.step()
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     loss = criterion(model(x), y)
//!     loss.backward()
//!     optimizer.step()
//!     optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [Optimizing model parameters](https://docs.pytorch.org/tutorials/beginner/basics/optimization_tutorial.html)

use memfit_source::{Facts, Kind, Op, OpKind, Overlap};

use crate::query::optimizers_of;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "zero-grad-before-step", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let written = facts.ops.iter().any(|op| matches!(op.kind, OpKind::WriteGrad { clears: false, .. }));
    if written {
        return;
    }
    for (index, clear) in facts.ops.iter().enumerate() {
        if !matches!(clear.kind, OpKind::ZeroGrad { .. }) || clear.via.is_some() || clear.deep {
            continue;
        }
        let near = |op: &&Op| {
            op.site.function == clear.site.function && op.site.looped == clear.site.looped && !op.deep
        };
        let acts = |op: &&Op| matches!(op.kind, OpKind::Backward(_) | OpKind::Step { .. });
        let before = facts.ops[..index].iter().filter(near).rfind(acts);
        let after = facts.ops[index + 1..].iter().filter(near).find(acts);
        let (Some(before), Some(step)) = (before, after) else { continue };
        let OpKind::Backward(backward) = &before.kind else { continue };
        let taken = matches!(step.kind, OpKind::Step { closure: false, .. }) && clears(facts, clear, step);
        // Accelerate and Fabric leave the clearing and the step to the loop.
        let callee = facts.slice(before.span).split("backward").next().unwrap_or_default();
        let by_hand = ["accelerator", "fabric"].iter().any(|name| callee.contains(name));
        if !taken
            || backward.managed && !by_hand
            || facts.overlap(&before.weights, &step.weights) == Overlap::No
        {
            continue;
        }
        // The step never runs without the clearing before it.
        let always = facts
            .guards_of(clear.site.guard)
            .all(|id| facts.guards_of(step.site.guard).any(|other| other == id));
        if !always || hidden(facts, clear, step) {
            continue;
        }
        findings
            .report(clear.span, "the gradients are cleared before the step: it trains nothing")
            .label(before.span, "the gradients are computed here")
            .label(step.span, "and would be used here")
            .help("clear them after the step, or before the backward pass");
    }
}

/// Returns `true` if the cleared gradients are those of the step: of the same optimizer, or of its
/// parameters.
fn clears(facts: &Facts, clear: &Op, step: &Op) -> bool {
    // The optimizer is made of the parameters of a model of this name, which may be wrapped later.
    let is_made_of = || {
        optimizers_of(facts, &clear.receiver, &clear.weights)
            .any(|call| facts.bound_to(call.span) == Some(step.own_receiver()))
    };
    clear.receiver == step.receiver
        || match facts.overlap(&clear.weights, &step.weights) {
            Overlap::Yes => true,
            Overlap::Unknown => is_made_of(),
            Overlap::No => false,
        }
}

/// Modules whose functions run no backward pass of a model here.
const KNOWN: &[&str] = &["torch.", "builtins.", "numpy.", "math.", "time.", "logging."];

/// Methods that run no backward pass, whatever their object is.
const HARMLESS: &[&str] = &[
    "add_scalar",
    "add_scalars",
    "append",
    "clip_grad_norm_",
    "clip_grad_value_",
    "detach",
    "format",
    "get",
    "get_last_lr",
    "info",
    "item",
    "items",
    "keys",
    "log",
    "print",
    "set_description",
    "set_postfix",
    "size",
    "unscale_",
    "update",
    "values",
    "write",
];

/// Returns `true` if a call between the two may run unknown code, such as another backward pass.
fn hidden(facts: &Facts, clear: &Op, step: &Op) -> bool {
    facts.calls.iter().any(|call| {
        let order = call.site.order;
        let between = clear.site.order < order && order < step.site.order && call.span != clear.span;
        let is_harmless = call.method.as_deref().is_some_and(|name| HARMLESS.contains(&name));
        let seen = call.function.is_some()
            || is_harmless
            || call.path.as_deref().is_some_and(|path| KNOWN.iter().any(|start| path.starts_with(start)))
            || call.receiver.as_ref().is_some_and(|receiver| match receiver.value.kind {
                Kind::Optimizer | Kind::Scheduler | Kind::Scaler(_) | Kind::Tensor => true,
                Kind::Module => call.is_method("parameters") || call.is_method("named_parameters"),
                _ => false,
            });
        between && !seen
    })
}
