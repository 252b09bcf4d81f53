//! # clip-before-unscale
//!
//! ## What it does
//! Finds gradients that are clipped before they are unscaled, also by a function that clips.
//!
//! ## Why
//! The scaler multiplies the loss by a large number (65,536 at first), and thereby the gradients. Clipping
//! scaled gradients to a norm of 1 makes every step tiny, whatever the real norm. Measured with a gradient of
//! norm 0.5: the step has a length of 0.00001 instead of 0.48.
//!
//! ## Example
//! ```python
//! scaler.scale(loss).backward()
//! torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
//! scaler.step(optimizer)
//! ```
//! Use instead:
//! ```python
//! scaler.scale(loss).backward()
//! scaler.unscale_(optimizer)
//! torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
//! scaler.step(optimizer)
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [Gradient clipping](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping)

use memfit_source::{Flags, OpKind};

use crate::query::backward;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "clip-before-unscale", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for (index, clip) in facts.ops.iter().enumerate() {
        // A function that clips in a loop of its own may clip other gradients.
        if clip.kind != OpKind::Clip || clip.via.is_some() && clip.deep {
            continue;
        }
        let near = |op: &&memfit_source::Op| op.site.function == clip.site.function && !op.deep;
        let before: Vec<_> = facts.ops[..index].iter().filter(near).collect();
        let scaled = before
            .iter()
            .rposition(|op| backward(op).is_some_and(|backward| backward.loss.is(Flags::SCALED)));
        let Some(scaled) = scaled else { continue };
        // A function that does all of it is judged by itself.
        if clip.call.is_some() && clip.call == before[scaled].call {
            continue;
        }
        // Any backward pass without scaling may be the one that these gradients come from.
        let last = before.iter().rposition(|op| backward(op).is_some());
        let unscaled = before[scaled..].iter().any(|op| op.kind == OpKind::Unscale);
        let other_branch = facts.guards_of(clip.site.guard).any(|id| {
            let guard = facts.guard(id);
            guard.negated
                && facts
                    .guards_of(before[scaled].site.guard)
                    .any(|other| facts.guard(other).test == guard.test && !facts.guard(other).negated)
        });
        if last != Some(scaled) || unscaled || other_branch {
            continue;
        }
        let step = facts.ops[index..]
            .iter()
            .filter(near)
            .find(|op| matches!(op.kind, OpKind::Step { scaled: true, .. }));
        let Some(step) = step else { continue };
        let scaler = context.slice(step.span).split(".step").next().unwrap_or_default().to_owned();
        findings
            .report(
                clip.call.unwrap_or(clip.span),
                "this clips gradients that are still multiplied by the scale",
            )
            .label(before[scaled].call.unwrap_or(before[scaled].span), "the scaled backward pass")
            .help(format!("call `{scaler}.unscale_({})` first", step.receiver));
    }
}
