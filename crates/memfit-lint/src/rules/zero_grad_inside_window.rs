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
//! Unsafe: it moves the line behind the step, and what the script trained before is not what it trains then.
//!
//! ## References
//! - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)

use crate::query::step_of;
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "zero-grad-inside-window",
    severity: Severity::Error,
    fixes: Fixes::Unsafe,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for window in &facts.windows {
        if window.counted.rounds == Some(1) || window.steps_elsewhere {
            continue;
        }
        let step = step_of(facts, window);
        for index in &window.clears_each_round {
            let clear = &facts.ops[*index];
            let period = context.slice(window.counted.period);
            let fix = facts
                .whole_lines(clear.span)
                .filter(|_| clear.via.is_none() && step.via.is_none())
                .and_then(|line| {
                    // It goes to the line below the step, or moves to the end of the block that steps.
                    let (_, blank) = facts.line_start(step.span.start);
                    let behind = facts.whole_lines(step.span)?;
                    let text = context.slice(clear.span);
                    let newline = if facts.slice(behind).ends_with('\n') { "" } else { "\n" };
                    Fix::unsafe_(
                        "Clear the gradients after the step",
                        vec![
                            Edit::delete(line),
                            Edit::insert(behind.end, format!("{newline}{blank}{text}\n")),
                        ],
                    )
                });
            findings
                .at(clear.span, format!("the gradients are cleared in every round, and the optimizer steps every `{period}`: only the last micro-batch counts"))
                .label(window.counted.span, "the window")
                .help("clear the gradients after the step only")
                .fix(fix);
        }
    }
}
