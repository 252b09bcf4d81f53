//! # pin-memory-without-workers
//!
//! ## What it does
//! Notes a loader with pinned memory and no workers.
//!
//! ## Why
//! The main process reads, collates and pins each batch while the GPU waits, so there is little for the
//! pinned copy to overlap with.
//!
//! ## Example
//! ```python
//! loader = DataLoader(data, pin_memory=True)
//! ```
//! Use instead:
//! ```python
//! loader = DataLoader(data, pin_memory=True, num_workers=4)
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [torch.utils.data](https://docs.pytorch.org/docs/stable/data.html)

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "pin-memory-without-workers",
    severity: Severity::Note,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in facts.loaders.iter().filter_map(|index| facts.calls.get(*index)) {
        let Some(pin) = call.keyword("pin_memory").filter(|argument| argument.value.truth() == Some(true))
        else {
            continue;
        };
        let alone = call.argument(5, "num_workers").is_none_or(|argument| argument.value.int() == Some(0));
        if alone && !call.is_open() {
            findings
                .report(pin.span, "without workers, the main process copies batches to pinned memory itself")
                .help("give the loader `num_workers`");
        }
    }
}
