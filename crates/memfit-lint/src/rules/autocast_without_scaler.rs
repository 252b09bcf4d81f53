//! # autocast-without-scaler
//!
//! ## What it does
//! Finds training under autocast to float16 without a gradient scaler, also where an option turns it on,
//! with a scaler that nothing uses, and training of a model whose weights are float16.
//!
//! ## Why
//! Small gradients underflow to zero in float16. Measured: a gradient of 1e-8 becomes 0.0, and scaled by
//! 65536 it is kept. bfloat16 has the range of float32 and needs no scaler.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     with torch.autocast("cuda", dtype=torch.float16):
//!         loss = criterion(model(x), y)
//!     loss.backward()
//!     optimizer.step()
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     with torch.autocast("cuda", dtype=torch.bfloat16):
//!         loss = criterion(model(x), y)
//!     loss.backward()
//!     optimizer.step()
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [Gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)

use memfit_source::{Call, DType, Flags, Grad, Kind, OpKind};

use crate::passes::runs_model;
use crate::query::{backwards, repeats, trained_in_half};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "autocast-without-scaler",
    severity: Severity::Warning,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    with_unused_scaler(context, findings);
    // Another library may scale, and a type chosen elsewhere may not be float16.
    let used = facts.text.lines().filter(|line| {
        let line = line.trim_start();
        !line.starts_with(['#', '"', '\'']) && !line.starts_with("import ") && !line.starts_with("from ")
    });
    let lower = used.collect::<Vec<_>>().join("\n").to_ascii_lowercase();
    let elsewhere = [
        "gradscaler",
        "scaler.",
        "scaler(",
        "scaler=",
        "scaler =",
        "scale_loss",
        "accelerat",
        "deepspeed",
        "fabric",
        "lightning",
        "bfloat16",
        "bf16",
    ];
    if elsewhere.iter().any(|word| lower.contains(word)) {
        return;
    }
    of_half_models(context, findings);
    let on_cpu = |call: &memfit_source::Call| {
        call.argument(0, "device_type").is_some_and(|argument| argument.value.text() == Some("cpu"))
    };
    let casts: Vec<_> = facts
        .calls
        .iter()
        .filter(|call| matches!(call.result.kind, memfit_source::Kind::Autocast(_)))
        .collect();
    if casts.iter().any(|call| on_cpu(call)) {
        return;
    }
    for (op, backward) in backwards(facts) {
        // What computes the loss may be a method of a model that is not known.
        let loss = context.slice(backward.loss_span);
        let computed = facts.calls.iter().any(|call| {
            call.site.function == op.site.function
                && call.site.looped == op.site.looped
                && call.site.order < op.site.order
                && call.site.grad != Grad::Off
                && call.site.autocast == Some(Some(DType::Half))
                && facts
                    .before_on_line(call.span)
                    .trim_start()
                    .strip_prefix(loss)
                    .is_some_and(|rest| rest.trim_start().starts_with('='))
        });
        let halved = computed
            || facts.ops.iter().any(|other| {
                let is_called = other.kind == OpKind::Forward
                    || runs_model(other) && other.call.and_then(|call| facts.bound_to(call)) == Some(loss);
                is_called
                    && other.site.function == op.site.function
                    && other.site.looped == op.site.looped
                    && other.site.order < op.site.order
                    && other.site.grad == Grad::On
                    && other.site.autocast == Some(Some(DType::Half))
            });
        if halved
            && repeats(context, &op.site)
            && op.via.is_none()
            && !backward.managed
            && !backward.loss.is(Flags::SCALED)
        {
            let found =
                findings.report(op.span, "gradients in float16 are not scaled: small ones become zero");
            // A function of another file may cast.
            if let Some(cast) = casts.first() {
                found.label(cast.span, "autocast to float16");
            }
            found.help("scale the loss with a `GradScaler`, or cast to bfloat16");
        }
    }
}

/// Finds a script that makes a scaler, and neither scales a loss with it nor hands it on.
fn with_unused_scaler(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut made = facts.scalers.iter().filter_map(|index| facts.calls.get(*index));
    let (Some(scaler), None) = (made.next(), made.next()) else { return };
    let Some(name) = facts.bound_to(scaler.span) else { return };
    let is_plain = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_off = scaler.keyword("enabled").is_some_and(|enabled| enabled.value.truth() == Some(false));
    let own = |call: &Call| call.receiver.as_ref().is_some_and(|of| context.slice(of.span) == name);
    let used = facts.calls.iter().any(|call| {
        own(call) && !["state_dict", "load_state_dict"].iter().any(|way| call.is_method(way))
            || call.arguments.iter().any(|given| context.slice(given.value_span) == name)
    });
    let others = ["accelerat", "deepspeed", "fabric", "lightning", "scale_loss"];
    let lower = facts.text.to_ascii_lowercase();
    let casts = facts.calls.iter().any(|call| matches!(call.result.kind, Kind::Autocast(_)));
    if !is_plain || is_off || used || !casts || others.iter().any(|word| lower.contains(word)) {
        return;
    }
    let trained = backwards(facts).find(|(op, pass)| {
        let has_model = facts.ops.iter().any(|other| {
            other.kind == OpKind::Forward
                && other.site.function == op.site.function
                && other.site.looped == op.site.looped
                && other.site.order < op.site.order
        });
        repeats(context, &op.site) && op.via.is_none() && !pass.managed && has_model
    });
    if let Some((op, _)) = trained {
        findings
            .report(op.span, format!("the loss is not scaled: `{name}` is created for float16 gradients, but this backward pass does not use it"))
            .label(scaler.span, "nothing uses this scaler")
            .help(format!("call `{name}.scale(loss).backward()`, `{name}.step(optimizer)` and `{name}.update()`; for bfloat16 alone, remove the scaler"));
    }
}

/// Finds models in float16 whose loss is differentiated as it is.
fn of_half_models(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut code = facts.text.lines().map(|line| line.split('#').next().unwrap_or(line));
    let mut scales = || code.any(|line| line.contains("scale"));
    let Some(cast) = trained_in_half(context).next().filter(|_| !scales()) else { return };
    let trained = backwards(facts).find(|(op, pass)| {
        let is_plain = !pass.managed && !pass.loss.is(Flags::SCALED) && !pass.loss.is(Flags::OPAQUE);
        op.via.is_none() && op.site.order > cast.site.order && repeats(context, &op.site) && is_plain
    });
    if let Some((op, _)) = trained {
        findings
            .report(op.span, "gradients in float16 are not scaled: small ones become zero")
            .label(cast.span, "the model is in float16")
            .help("keep the weights in float32, cast with `torch.autocast`, and scale the loss with a `GradScaler`; or use bfloat16");
    }
}
