//! # autocast-without-scaler
//!
//! ## What it does
//! Finds training under autocast to float16 without a gradient scaler, also where an option turns it on.
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

use memfit_source::{DType, Flags, Grad, OpKind};

use crate::query::{backwards, repeats};
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
    let on_cpu = |call: &memfit_source::Call| {
        call.argument(0, "device_type").is_some_and(|argument| argument.value.text() == Some("cpu"))
    };
    let casts: Vec<_> = facts
        .calls
        .iter()
        .filter(|call| matches!(call.result.kind, memfit_source::Kind::Autocast(_)))
        .collect();
    let Some(cast) = casts.first().filter(|_| !casts.iter().any(|call| on_cpu(call))) else { return };
    for (op, backward) in backwards(facts) {
        let halved = facts.ops.iter().any(|other| {
            other.kind == OpKind::Forward
                && other.site.function == op.site.function
                && other.site.looped == op.site.looped
                && other.site.order < op.site.order
                && other.site.grad == Grad::On
                && other.site.autocast == Some(Some(DType::Half))
        });
        if halved
            && repeats(facts, &op.site)
            && op.via.is_none()
            && !backward.managed
            && !backward.loss.is(Flags::SCALED)
        {
            findings
                .report(op.span, "gradients in float16 are not scaled: small ones become zero")
                .label(cast.span, "autocast to float16")
                .help("scale the loss with a `GradScaler`, or cast to bfloat16");
        }
    }
}
