//! # zero-grad-inside-window
//!
//! ## What it does
//! Finds gradient accumulation in which the gradients are cleared in every iteration: of a loop that steps
//! now and then, or of the loop over the micro-batches of one step.
//!
//! ## Why
//! When the optimizer steps, only the gradients of the last micro-batch of the window remain. All other
//! micro-batches have no effect on the training. Measured: a parameter gets a gradient of 1.0 instead of 2.5.
//!
//! ## Example
//! ```python
//! for i, (x, y) in enumerate(loader):
//!     optimizer.zero_grad()
//!     (criterion(model(x), y) / k).backward()
//!     if (i + 1) % k == 0:
//!         optimizer.step()
//! ```
//! Use instead:
//! ```python
//! optimizer.zero_grad()
//! for i, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / k).backward()
//!     if (i + 1) % k == 0 or i + 1 == len(loader):
//!         optimizer.step()
//!         optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)

use memfit_source::{FunctionId, Op, OpKind, Overlap, Span};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "zero-grad-inside-window", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    in_micro_batches(context, findings);
    for window in &facts.windows {
        if window.counted.rounds == Some(1) || window.steps_elsewhere {
            continue;
        }
        for index in &window.clears_each_iteration {
            let clear = &facts.ops[*index];
            let period = context.slice(window.counted.period);
            findings
                .report(clear.span, format!("the gradients are cleared in every iteration, but the optimizer steps only once per `{period}` iterations: only the last micro-batch of each window contributes"))
                .label(window.counted.span, "the window")
                .help("clear the gradients only after the optimizer step");
        }
    }
}

/// Finds `zero_grad()` in the loop over the micro-batches of a step, which follows the loop.
fn in_micro_batches(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    // A function that the loop calls may clear them; what it does in loops of its own is seen there.
    let is_seen = |op: &Op| op.via.is_none() || op.via != Some(FunctionId::MODULE) && !op.deep;
    let clears = facts.ops.iter().filter(|op| matches!(op.kind, OpKind::ZeroGrad { .. }));
    for clear in clears.filter(|op| is_seen(op)) {
        let Some(looped) = clear.site.looped else { continue };
        let inner = facts.looped(looped);
        // A loop that tries again starts anew.
        if clear.site.tried.is_some() {
            continue;
        }
        let guarded = facts.guards_of(clear.site.guard).any(|id| facts.guard(id).looped == Some(looped));
        // The loop may read the gradients of each round, or hand them on.
        let body = context.slice(Span::new(inner.header.end, inner.span.end));
        let reads = [".grad", "autograd.grad", "gradients"].iter().any(|word| {
            body.match_indices(word).any(|(at, _)| {
                !body[at + word.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_')
            })
        });
        let same = |op: &&Op| op.site.looped == Some(looped) && op.site.order > clear.site.order;
        let differentiates = || facts.ops.iter().filter(same).find(|op| op.kind.differentiates());
        let writes = |op: &Op| matches!(op.kind, OpKind::Step { .. } | OpKind::WriteGrad { .. });
        if guarded || reads || facts.ops_in(looped).any(writes) {
            continue;
        }
        let Some(pass) = differentiates().filter(|op| matches!(op.kind, OpKind::Backward(_))) else {
            continue;
        };
        let step = facts.ops.iter().find(|op| {
            matches!(op.kind, OpKind::Step { closure: false, .. })
                && op.site.function == clear.site.function
                && op.site.looped == inner.parent
                && op.site.order > pass.site.order
                && facts.overlap(&op.weights, &clear.weights) != Overlap::No
        });
        // Gradients that are cleared again before the step do not reach it from here.
        let Some(step) = step.filter(|step| {
            !facts.ops.iter().any(|op| {
                matches!(op.kind, OpKind::ZeroGrad { .. })
                    && op.site.looped == inner.parent
                    && op.site.function == clear.site.function
                    && (pass.site.order..step.site.order).contains(&op.site.order)
            })
        }) else {
            continue;
        };
        findings
            .report(clear.span, "the gradients are cleared for every micro-batch, but the optimizer steps once after the loop: only the last micro-batch contributes")
            .label(inner.header, "the micro-batches of one step")
            .label(step.span, "the step")
            .help("clear the gradients before the loop, or after the step");
    }
}
