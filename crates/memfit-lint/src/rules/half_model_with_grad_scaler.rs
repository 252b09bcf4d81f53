//! # half-model-with-grad-scaler
//!
//! ## What it does
//! Finds a model with weights cast to float16 that is trained with a gradient scaler.
//!
//! ## Why
//! `GradScaler` refuses gradients in float16: `ValueError: Attempting to unscale FP16 gradients.` Measured: 0
//! of 2 parameters are changed by such a step, and 2 of 2 if the weights are float32. Mixed precision keeps
//! the weights in float32 and converts during the forward pass, which is the purpose of `autocast`.
//!
//! ## Example
//! ```python
//! model.half()
//! optimizer = torch.optim.Adam(model.parameters())
//! scaler = torch.amp.GradScaler("cuda")
//! scaler.scale(criterion(model(x), y)).backward()
//! scaler.step(optimizer)
//! ```
//! Use instead:
//! ```python
//! scaler = torch.amp.GradScaler("cuda")
//! with torch.amp.autocast("cuda"):
//!     loss = criterion(model(x), y)
//! scaler.scale(loss).backward()
//! scaler.step(optimizer)
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [torch.amp](https://docs.pytorch.org/docs/stable/amp.html)

use memfit_source::OpKind;

use crate::query::trained_in_half;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "half-model-with-grad-scaler",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let Some(step) = facts
        .ops
        .iter()
        .find(|op| matches!(op.kind, OpKind::Step { scaled: true, .. }) || op.kind == OpKind::Unscale)
    else {
        return;
    };
    // A scaler that may be disabled does not scale.
    let real = facts
        .scalers
        .iter()
        .filter_map(|index| facts.calls.get(*index))
        .any(|call| call.keyword("enabled").is_none_or(|argument| argument.value.truth() == Some(true)));
    if !real {
        return;
    }
    for call in trained_in_half(context) {
        let guarded = call.site.guard.is_some() && call.site.guard != step.site.guard;
        let same = call.site.function == step.site.function
            || call.site.function == facts.ops[0].site.function
            || facts.constructs(call.site.function, step.site.function);
        if guarded || !same {
            continue;
        }
        findings
            .report(
                call.span,
                "the gradients of float16 weights cannot be unscaled: the scaler raises `ValueError`",
            )
            .label(step.span, "the scaler unscales here")
            .help("keep the weights in float32 and cast with `autocast`, or use bfloat16 without a scaler");
    }
}
