//! # non-blocking-copy-read
//!
//! ## What it does
//! Finds values that are copied to the host with `non_blocking=True` and read at once.
//!
//! ## Why
//! `non_blocking=True` returns before the copy is done. `numpy()`, `item()` and `tolist()` of the result read
//! host memory and wait for nothing: the values may be those of before. A copy to the GPU is safe, for the
//! GPU does one thing after the other. Measured on the signature: `to` takes `non_blocking` with a default of
//! False.
//!
//! ## Example
//! ```python
//! scores.append(out.to("cpu", non_blocking=True).numpy())
//! ```
//! Use instead:
//! ```python
//! scores.append(out.cpu().numpy())
//! ```
//!
//! ## Fix safety
//! No fix: the wait may belong elsewhere.
//!
//! ## References
//! - [pin_memory and non_blocking](https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html)

use memfit_source::{Call, Device, Span};

use crate::query::words;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "non-blocking-copy-read", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

const READS: &[&str] = &["numpy", "item", "tolist"];

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for copy in facts.calls.iter().filter(|call| call.is_method("to")) {
        let is_flagged = copy.keyword("non_blocking").is_some_and(|flag| flag.value.truth() == Some(true));
        let to_host = is_flagged && copy.result.device == Device::Cpu;
        let from_host = copy.receiver.as_ref().is_some_and(|of| of.value.device == Device::Cpu);
        if !to_host || from_host {
            continue;
        }
        let Some(read) = read_at_once(context, copy) else { continue };
        findings
            .report(
                copy.span,
                "this copy may still run when the host reads it: the values may be those of before",
            )
            .label(read, "read here")
            .help("copy without `non_blocking=True`, or call `torch.cuda.synchronize()` before it is read");
    }
}

/// Span at which a copy is read with nothing between that waits for it.
fn read_at_once(context: &Context<'_>, copy: &Call) -> Option<Span> {
    let facts = context.facts;
    let reads = |call: &&Call| READS.iter().any(|name| call.is_method(name));
    let chained = facts
        .calls
        .iter()
        .filter(reads)
        .find(|call| call.receiver.as_ref().is_some_and(|of| of.span == copy.span));
    if let Some(call) = chained {
        return Some(call.span);
    }
    let name =
        facts.bound_to(copy.span).filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'))?;
    let same = |call: &&Call| {
        call.site.function == copy.site.function
            && call.site.looped == copy.site.looped
            && call.span.start > copy.span.end
    };
    let read = facts.calls.iter().filter(reads).filter(same).find(|call| {
        call.receiver.as_ref().is_some_and(|of| words(context.slice(of.span)).next() == Some(name))
    })?;
    let between = context.slice(Span::new(copy.span.end, read.span.start));
    let waits =
        ["synchronize", "wait", ".item()", ".tolist()", ".cpu()"].iter().any(|word| between.contains(word));
    let anew = between.lines().any(|line| memfit_source::assigned_text(line, name).is_some());
    (!waits && !anew).then_some(read.span)
}
