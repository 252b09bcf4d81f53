//! # gradients-for-nothing
//!
//! ## What it does
//! Finds backward passes that compute gradients of a model which no optimizer uses: a teacher that is called
//! with gradients on, a generator whose fakes are not detached for the discriminator's loss, a backbone below
//! a head that alone is trained.
//!
//! ## Why
//! The activations of that model are held for the backward pass, its gradients take as many bytes as its
//! parameters, and both are for nothing. Measured with a teacher of 4 MiB: 4 MiB of gradients that nobody
//! reads.
//!
//! ## Example
//! ```python
//! teacher = nn.Linear(4, 3)
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     loss = criterion(model(x), teacher(x))
//!     loss.backward()
//!     optimizer.step()
//! ```
//! Use instead:
//! ```python
//! teacher = nn.Linear(4, 3)
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     with torch.no_grad():
//!         target = teacher(x)
//!     loss = criterion(model(x), target)
//!     loss.backward()
//!     optimizer.step()
//! ```
//!
//! ## Fix safety
//! There is none: what to do instead is for the author to decide.
//!
//! ## References
//! - [Locally disabling gradient computation](https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation)

use memfit_source::{Facts, Grad, Kind, Op, OpKind, Overlap, Span, Weights};

use crate::query::backwards;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "gradients-for-nothing", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    // What is frozen, or read from `grad`, or added to an optimizer later, is not followed.
    let hidden = ["requires_grad", "add_param_group", "autograd.grad", ".grad.", "GradientReversal"];
    if hidden.iter().any(|word| facts.text.contains(word)) {
        return;
    }
    let optimizers: Vec<&Weights> = facts
        .calls
        .iter()
        .filter(|call| matches!(call.result.kind, Kind::Optimizer))
        .map(|call| &call.result.weights)
        .collect();
    if optimizers.is_empty() || !optimizers.iter().all(|held| held.is_exact()) {
        return;
    }
    for (op, backward) in backwards(facts) {
        // What is gone through again may be wanted for what its gradients say, as in clipping by samples.
        if op.via.is_some() || backward.managed || backward.retain.is_some() || op.site.looped.is_none() {
            continue;
        }
        for (index, pass) in backward.passes.iter().enumerate().filter(|(_, pass)| facts.are_parameters(pass))
        {
            let holders: Vec<_> =
                optimizers.iter().filter(|held| facts.overlap(held, pass) != Overlap::No).collect();
            let why = match holders.as_slice() {
                [] => "no optimizer holds them",
                [held] if facts.covers(pass, held) && !facts.covers(held, pass) && !cuts_inside(context) => {
                    "the optimizer holds only a part of them"
                }
                _ if is_cleared_unused(facts, op, pass, &backward.passes[index + 1..]) => {
                    "they are cleared before their optimizer steps"
                }
                _ => continue,
            };
            let forward = facts.ops.iter().rfind(|forward| {
                forward.kind == OpKind::Forward
                    && forward.site.function == op.site.function
                    && forward.via.is_none()
                    && forward.site.order < op.site.order
                    && forward.weights == *pass
            });
            let Some(forward) = forward else { continue };
            let name = &forward.receiver;
            let at: Span = forward.span;
            findings
                .at(at, format!("gradients of `{name}` are computed for nothing: {why}"))
                .label(op.span, "by this backward pass")
                .help(format!(
                    "call it under `torch.no_grad()`, detach what it gives, or freeze it: `{name}.requires_grad_(False)`"
                ));
        }
    }
}

/// Between a backward pass and the next step of those who hold the weights, these are cleared; and the step
/// that the pass is for is another's, of a model behind: what this one gave could have been detached.
fn is_cleared_unused(facts: &Facts, op: &Op, weights: &Weights, later: &[Weights]) -> bool {
    let same = |other: &&Op| other.site.looped == op.site.looped && !other.deep;
    let order = |other: &Op| {
        // Rounds follow each other: what stands before comes in the next.
        let at = other.site.order;
        if at > op.site.order { (0, at) } else { (1, at) }
    };
    let mut ops: Vec<&Op> = facts.ops.iter().filter(same).collect();
    ops.sort_by_key(|other| order(other));
    let Some(next) = ops.iter().find(|other| matches!(other.kind, OpKind::Step { .. })) else { return false };
    if facts.overlap(&next.weights, weights) != Overlap::No
        || !later.iter().any(|pass| facts.overlap(pass, &next.weights) == Overlap::Yes)
    {
        return false;
    }
    let first = ops.iter().find(|other| {
        matches!(other.kind, OpKind::Step { .. } | OpKind::ZeroGrad { .. })
            && facts.overlap(&other.weights, weights) != Overlap::No
    });
    first.is_some_and(|first| {
        matches!(first.kind, OpKind::ZeroGrad { .. })
            && facts.overlap(&first.weights, weights) == Overlap::Yes
    })
}

/// A model of this file records only a part of its own forward pass.
fn cuts_inside(context: &Context<'_>) -> bool {
    let facts = context.facts;
    let in_model = |site: &memfit_source::Site| {
        facts.function(site.function).class.is_some_and(|class| facts.class(class).is_module)
    };
    facts.calls.iter().any(|call| {
        in_model(&call.site)
            && (call.is_method("detach") || call.is_method("detach_") || call.site.grad == Grad::Off)
    })
}
