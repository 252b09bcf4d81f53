//! # cycled-loader
//!
//! ## What it does
//! Finds `itertools.cycle` over a data loader.
//!
//! ## Why
//! `cycle` keeps every element in order to repeat it: after the first pass, every batch is in memory.
//! Measured: of 8 batches, 8 are alive after one pass. From the second pass on, the batches are neither
//! shuffled nor augmented again.
//!
//! ## Example
//! ```python
//! batches = itertools.cycle(loader)
//! ```
//! Use instead:
//! ```python
//! def forever(loader):
//!     while True:
//!         yield from loader
//!
//! batches = forever(loader)
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [itertools.cycle](https://docs.python.org/3/library/itertools.html#itertools.cycle)

use memfit_source::Kind;

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "cycled-loader", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for call in context.facts.calls.iter().filter(|call| call.is("itertools.cycle")) {
        let over = call.arguments.first().filter(|argument| matches!(argument.value.kind, Kind::Loader(_)));
        if over.is_some() {
            findings
                .report(
                    call.span,
                    "`cycle` keeps every batch in memory, and repeats the same ones in every pass",
                )
                .help("iterate over the loader again: `while True: yield from loader`");
        }
    }
}
