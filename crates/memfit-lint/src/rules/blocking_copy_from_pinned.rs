//! # blocking-copy-from-pinned
//!
//! ## What it does
//! Notes batches of a pinning loader that are copied without `non_blocking=True`.
//!
//! ## Why
//! Pinned memory lets the copy overlap with computation. Without `non_blocking=True`, the host still waits
//! for the copy.
//!
//! ## Example
//! ```python
//! loader = DataLoader(data, pin_memory=True, num_workers=4)
//! for x, y in loader:
//!     x = x.cuda()
//! ```
//! Use instead:
//! ```python
//! loader = DataLoader(data, pin_memory=True, num_workers=4)
//! for x, y in loader:
//!     x = x.cuda(non_blocking=True)
//! ```
//!
//! ## Fix safety
//! Unsafe: code that writes to the batch on the host right after the copy would race with it.
//!
//! ## References
//! - [torch.utils.data](https://docs.pytorch.org/docs/stable/data.html#memory-pinning)

use crate::query::is_prepared;
use crate::rule::{Context, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "blocking-copy-from-pinned",
    severity: Severity::Note,
    fixes: Fixes::Unsafe,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut lines: Vec<u32> = Vec::new();
    for call in facts.calls.iter().filter(|call| call.is_method("to") || call.is_method("cuda")) {
        let loader = call.receiver.as_ref().and_then(|receiver| receiver.value.loader);
        let Some(made) = loader.and_then(|id| facts.loader(id)) else { continue };
        let pinned = made.keyword("pin_memory").is_some_and(|argument| argument.value.truth() == Some(true));
        if !pinned
            || call.receiver.as_ref().is_some_and(|receiver| is_prepared(facts, &receiver.value))
            || !call.result.device.is_gpu()
            || call.is_open()
            || call.keyword("non_blocking").is_some()
            || call.arguments.iter().any(|argument| argument.value.truth() == Some(true))
        {
            continue;
        }
        // One finding for a line, which often copies both inputs and targets.
        let (line, _) = facts.line_start(call.span.start);
        if lines.contains(&line) {
            continue;
        }
        lines.push(line);
        let edits = facts
            .calls
            .iter()
            .filter(|other| {
                facts.line_start(other.span.start).0 == line
                    && (other.is_method("to") || other.is_method("cuda"))
                    && other.receiver.as_ref().is_some_and(|receiver| receiver.value.loader == loader)
                    && other.keyword("non_blocking").is_none()
            })
            .map(|other| facts.add_argument(other, "non_blocking=True"))
            .collect();
        findings
            .report(call.span, "the batch is pinned, but the host still waits for its copy")
            .label(made.span, "the loader pins its batches")
            .help("copy with `non_blocking=True`")
            .fix(Fix::unsafe_("Copy without waiting", edits));
    }
}
