//! # float-before-transfer
//!
//! ## What it does
//! Notes batches that are cast to float32 on the host and copied then.
//!
//! ## Why
//! An image in uint8 has a quarter of the bytes: cast on the card, a quarter as much is copied, and pinned
//! (measured in bytes).
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     x = x.float().cuda()
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     x = x.cuda().float()
//! ```
//!
//! ## Fix safety
//! Unsafe: where the batch is float64, the copy is larger.
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
        let fix = context.slice(receiver.span).ends_with(".float()").then(|| {
            let cast = Span::new(receiver.span.end - 8, receiver.span.end);
            vec![Edit::delete(cast), Edit::insert(call.span.end, ".float()")]
        });
        findings
            .at(call.span, "the batch is cast on the host: four bytes are copied where one may do")
            .help("move first, cast then")
            .fix(fix.and_then(|edits| Fix::unsafe_("Move first, cast then", edits)));
    }
}
