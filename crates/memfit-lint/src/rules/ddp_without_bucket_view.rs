//! # ddp-without-bucket-view
//!
//! ## What it does
//! Notes `DistributedDataParallel` without `gradient_as_bucket_view=True`.
//!
//! ## Why
//! DDP copies gradients into communication buckets, so that all gradients are stored twice (measured in
//! bytes). With the option, the gradients are views of the buckets. It is off by default (PyTorch 2.15).
//!
//! ## Example
//! ```python
//! model = DDP(model)
//! ```
//! Use instead:
//! ```python
//! model = DDP(model, gradient_as_bucket_view=True)
//! ```
//!
//! ## Fix safety
//! Unsafe: `detach_()` on a gradient is then not allowed.
//!
//! ## References
//! - [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)

use crate::rule::{Context, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "ddp-without-bucket-view", severity: Severity::Note, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in &facts.calls {
        let wraps = call
            .path
            .as_deref()
            .is_some_and(|path| path.starts_with("torch.") && path.ends_with(".DistributedDataParallel"));
        let set = call
            .keyword("gradient_as_bucket_view")
            .is_some_and(|argument| argument.value.truth() != Some(false));
        if !wraps || call.is_open() || set || facts.text.contains("grad.detach_(") {
            continue;
        }
        let fix = call
            .keyword("gradient_as_bucket_view")
            .is_none()
            .then(|| facts.add_argument(call, "gradient_as_bucket_view=True"));
        findings
            .report(call.span, "the gradients are held twice: as tensors, and in the communication buckets")
            .help("pass `gradient_as_bucket_view=True`")
            .fix(fix.and_then(|edit| Fix::unsafe_("Make gradients views of the buckets", vec![edit])));
    }
}
