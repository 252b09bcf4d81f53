//! # missing-zero-grad
//!
//! ## What it does
//! Finds training loops that never clear the gradients.
//!
//! ## Why
//! `backward()` accumulates into the existing gradients. Measured: after the same batch twice they are 2
//! times as large, after five times 5 times. Without `zero_grad()`, each step uses the sum of all gradients
//! since the beginning.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//!     optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [zero_grad](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html)

use memfit_source::{Flags, LoopId, Op, OpKind, Overlap};

use crate::query::backward;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "missing-zero-grad", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    of_others(context, findings);
    // Gradients that are cleared anywhere in the file may be those of this loop.
    let clears = |op: &&Op| matches!(op.kind, OpKind::ZeroGrad { .. } | OpKind::WriteGrad { .. });
    if facts.ops.iter().filter(clears).any(|op| op.via.is_none())
        || facts.text.contains(".grad = None")
        || facts.text.contains("zero_grad")
        || facts.text.contains("grad.zero_")
    {
        return;
    }
    let mut seen: Vec<LoopId> = Vec::new();
    for step in &facts.ops {
        let plain = matches!(step.kind, OpKind::Step { closure: false, .. })
            && !step.deep
            && !step.site.managed
            && step.via.is_none();
        let Some(looped) = step.site.looped.filter(|id| plain && !seen.contains(id)) else { continue };
        // A called function clears the gradients of its own optimizer.
        let of_others = |op: &Op| {
            op.receiver != step.receiver && facts.overlap(&op.weights, &step.weights) == Overlap::No
        };
        if !facts.ops.iter().filter(clears).all(of_others) {
            continue;
        }
        let ops = || facts.ops_in(looped);
        let passes = || ops().filter_map(backward);
        // Accelerate and Fabric leave the gradients to the loop; other frameworks clear them.
        let cleared = ops().any(|op| {
            let callee = context.slice(op.span).split("backward").next().unwrap_or_default();
            let known = callee.contains("accelerator") || callee.contains("fabric");
            backward(op).is_some_and(|pass| pass.managed) && !known
        });
        // A call of unknown code with the optimizer as an argument may clear them.
        let handed = facts.calls.iter().any(|call| {
            facts.within(&call.site, looped)
                && call.span != step.span
                && !call.is_method("scale")
                && !(call.is_method("step") || call.is_method("unscale_"))
                && call.arguments.iter().any(|argument| context.slice(argument.value_span) == step.receiver)
        });
        // So may the function that computes the loss, if no model call is visible.
        let unseen = !facts.ops_in(looped).any(|op| op.kind == OpKind::Forward)
            && passes().any(|pass| pass.loss.is(Flags::OPAQUE) && !pass.loss.graph.is_known());
        let remade = facts.looped(looped).assigned.contains(&step.receiver);
        if passes().count() == 0 || cleared || handed || unseen || remade {
            continue;
        }
        seen.push(looped);
        findings
            .report(
                step.span,
                format!("`{}` uses the sum of all gradients so far: they are never cleared", step.receiver),
            )
            .label(facts.looped(looped).header, "in this loop")
            .help(format!("call `{}.zero_grad()` after the step", step.receiver));
    }
}

/// Finds optimizers of a loop that clears the gradients of other models only.
fn of_others(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let is_clear = |op: &&Op| matches!(op.kind, OpKind::ZeroGrad { .. } | OpKind::WriteGrad { .. });
    if facts.text.contains(".grad = None") || facts.text.contains("grad.zero_") {
        return;
    }
    let mut seen: Vec<&str> = Vec::new();
    for step in facts.ops.iter().filter(|op| op.via.is_none() && !op.deep && !op.site.managed) {
        let plain = matches!(step.kind, OpKind::Step { closure: false, .. }) && step.weights.is_exact();
        let Some(looped) = step.site.looped.filter(|_| plain && !seen.contains(&step.receiver.as_str()))
        else {
            continue;
        };
        let apart = |op: &Op| {
            op.receiver != step.receiver && facts.overlap(&op.weights, &step.weights) == Overlap::No
        };
        let trained = facts.ops_in(looped).any(|op| {
            matches!(op.kind, OpKind::Backward(_))
                && facts.overlap(&op.weights, &step.weights) == Overlap::Yes
        });
        let handed = facts.calls.iter().any(|call| {
            let is_own = call.is_method("step") || call.is_method("scale") || call.is_method("unscale_");
            facts.within(&call.site, looped)
                && !is_own
                && call.arguments.iter().any(|argument| context.slice(argument.value_span) == step.receiver)
        });
        if facts.ops_in(looped).any(|op| is_clear(&op))
            && facts.ops.iter().filter(is_clear).all(apart)
            && trained
            && !handed
        {
            seen.push(&step.receiver);
            findings
                .report(
                    step.span,
                    format!(
                        "`{}` uses the sum of all gradients so far: only those of other models are cleared",
                        step.receiver
                    ),
                )
                .label(facts.looped(looped).header, "in this loop")
                .help(format!("call `{}.zero_grad()` before its backward pass", step.receiver));
        }
    }
}
