//! # cycled-loader
//!
//! ## What it does
//! Finds `itertools.cycle` over a data loader.
//!
//! ## Why
//! `cycle` keeps all that it has given, to give it again: after the first pass every batch is in memory.
//! Measured: of 8 batches, 8 are alive after one pass. From the second pass on nothing is shuffled or
//! augmented any more, either.
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
//! There is none: what to do instead is for the author to decide.
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
                .at(call.span, "`cycle` keeps every batch, and gives the same ones in every pass")
                .help("loop over the loader anew: `while True: yield from loader`");
        }
    }
}
