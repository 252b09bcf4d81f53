//! # zero-grad-inside-window
//!
//! ## What it does
//! Finds gradient accumulation in which the gradients are cleared in every round.
//!
//! ## Why
//! Only the last micro-batch of a window is left when the optimizer steps. Measured on a parameter whose
//! window should give a gradient of 2.5: it gets 1.0. The memory is saved, and so is most of the training
//! data.
//!
//! ## Example
//! ```python
//! for i, (x, y) in enumerate(loader):
//!     optimizer.zero_grad()
//!     (criterion(model(x), y) / k).backward()
//!     if (i + 1) % k == 0:
//!         optimizer.step()
//! ```
//! Use instead:
//! ```python
//! optimizer.zero_grad()
//! for i, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / k).backward()
//!     if (i + 1) % k == 0 or i + 1 == len(loader):
//!         optimizer.step()
//!         optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! There is none: it changes what is trained, and that is for the author to look at.
//!
//! ## References
//! - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "zero-grad-inside-window", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for window in &facts.windows {
        if window.counted.rounds == Some(1) || window.steps_elsewhere {
            continue;
        }
        for index in &window.clears_each_round {
            let clear = &facts.ops[*index];
            let period = context.slice(window.counted.period);
            findings
                .at(clear.span, format!("the gradients are cleared in every round, and the optimizer steps every `{period}`: only the last micro-batch counts"))
                .label(window.counted.span, "the window")
                .help("clear the gradients after the step only");
        }
    }
}
