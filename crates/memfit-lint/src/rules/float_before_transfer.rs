//! # float-before-transfer
//!
//! ## What it does
//! Notes batches of bytes that are converted to float32 on the host before they are copied to the GPU.
//!
//! A division by 255 indicates bytes. Other batches are not reported: float64 is copied faster after the
//! conversion, and float32 does not change.
//!
//! ## Why
//! A uint8 image has a quarter of the bytes: with the conversion on the GPU, only a quarter is pinned and
//! copied (measured in bytes).
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     x = x.float().cuda() / 255
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     x = x.cuda().float() / 255
//! ```
//!
//! ## Fix safety
//! Unsafe: the division by 255 is only an indication of bytes, and the copy of a float64 batch would become
//! larger.
//!
//! ## References
//! - [torch.Tensor.to](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.to.html)

use memfit_source::{Flags, Span};

use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "float-before-transfer", severity: Severity::Note, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in facts
        .calls
        .iter()
        .filter(|call| (call.is_method("to") || call.is_method("cuda")) && call.result.device.is_gpu())
    {
        let widened = call
            .receiver
            .as_ref()
            .filter(|receiver| receiver.value.is(Flags::WIDENED) && receiver.value.is(Flags::BATCH));
        let Some(receiver) = widened else { continue };
        // The divisor shows the element type of a batch; for float64 the conversion halves the copy.
        let scaled = receiver.value.is(Flags::BYTES) || is_scaled_after(context, call.span);
        if !scaled {
            continue;
        }
        let fix = context.slice(receiver.span).ends_with(".float()").then(|| {
            let cast = Span::new(receiver.span.end - 8, receiver.span.end);
            vec![Edit::delete(cast), Edit::insert(call.span.end, ".float()")]
        });
        findings
            .report(call.span, "the batch is cast on the host: four bytes are copied instead of one")
            .help("move first, cast then")
            .fix(fix.and_then(|edits| Fix::unsafe_("Move first, cast then", edits)));
    }
}

/// Returns `true` if the result is divided by 255 in the same line.
fn is_scaled_after(context: &Context<'_>, span: Span) -> bool {
    let rest = context.facts.text.get(span.end as usize..).unwrap_or_default();
    let line: String =
        rest.lines().next().unwrap_or_default().chars().filter(|c| !c.is_whitespace()).collect();
    ["/255", ".div(255", ".div_(255", "*(1/255", "*(1.0/255"].iter().any(|start| line.starts_with(start))
}
