//! # zero-grad-inside-window
//!
//! ## What it does
//! Finds gradient accumulation in which the gradients are cleared in every iteration.
//!
//! ## Why
//! When the optimizer steps, only the gradients of the last micro-batch of the window remain. All other
//! micro-batches have no effect on the training. Measured: a parameter gets a gradient of 1.0 instead of 2.5.
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
//! No fix: it changes the training results, so the author must decide.
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
        for index in &window.clears_each_iteration {
            let clear = &facts.ops[*index];
            let period = context.slice(window.counted.period);
            findings
                .report(clear.span, format!("the gradients are cleared in every iteration, but the optimizer steps only once per `{period}` iterations: only the last micro-batch of each window contributes"))
                .label(window.counted.span, "the window")
                .help("clear the gradients only after the optimizer step");
        }
    }
}
