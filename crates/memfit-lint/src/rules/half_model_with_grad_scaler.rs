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

use memfit_source::{Flags, OpKind};

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
    for call in &facts.calls {
        let cast = call.receiver.as_ref().filter(|receiver| {
            (call.is_method("half") || call.is_method("to"))
                && receiver.value.is_module()
                && call.result.is(Flags::HALF)
                && !receiver.value.is(Flags::HALF)
        });
        let Some(receiver) = cast.filter(|_| call.site.guard.is_none() || call.site.guard == step.site.guard)
        else {
            continue;
        };
        // A model converted at its creation has the name that it is bound to.
        let (start, _) = facts.line_start(call.span.start);
        let before = facts.text[start as usize..call.span.start as usize].trim();
        let model = before.strip_suffix('=').map_or(context.slice(receiver.span), str::trim);
        // Trained models: those with parameters in an optimizer, or otherwise those that are called.
        let optimized = facts.calls.iter().any(|other| {
            matches!(other.result.kind, memfit_source::Kind::Optimizer)
                && other
                    .arguments
                    .iter()
                    .any(|argument| context.slice(argument.value_span).starts_with(&format!("{model}.")))
        });
        let same =
            call.site.function == step.site.function || call.site.function == facts.ops[0].site.function;
        if !optimized || !same {
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
