//! # scheduler-per-micro-batch
//!
//! ## What it does
//! Finds learning-rate schedulers that step for every micro-batch under gradient accumulation.
//!
//! ## Why
//! The schedule is meant to count optimizer steps, and runs `k` times too fast. Measured on a rate that falls
//! from 1 to 0 in eight steps, with a window of 4: the second step has a rate of 0.125 instead of 0.875.
//! PyTorch only warns if the scheduler's first step precedes the optimizer's.
//!
//! ## Example
//! ```python
//! for i, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / k).backward()
//!     if (i + 1) % k == 0:
//!         optimizer.step()
//!         optimizer.zero_grad()
//!     scheduler.step()
//! ```
//! Use instead:
//! ```python
//! for i, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / k).backward()
//!     if (i + 1) % k == 0:
//!         optimizer.step()
//!         optimizer.zero_grad()
//!         scheduler.step()
//! ```
//!
//! ## Fix safety
//! No fix: the length of the schedule may have been chosen to match.
//!
//! ## References
//! - [How to adjust learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)

use memfit_source::{Argument, Call, Kind, OpKind};

use crate::query::step_of;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "scheduler-per-micro-batch",
    severity: Severity::Warning,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let made: Vec<&Call> = facts
        .calls
        .iter()
        .filter(|call| call.result.kind == Kind::Scheduler && call.arguments.len() > 1)
        .collect();
    // A schedule over the number of batches correctly steps with each of them.
    if made.iter().any(|call| call.arguments.iter().skip(1).any(|argument| counts_batches(context, argument)))
    {
        return;
    }
    for window in
        facts.windows.iter().filter(|window| window.looped.is_some() && window.counted.rounds != Some(1))
    {
        for op in facts
            .ops
            .iter()
            .filter(|op| op.kind == OpKind::SchedulerStep && op.site.looped == window.looped && !op.deep)
        {
            let guarded = facts.guards_of(op.site.guard).any(|id| facts.guard(id).looped == window.looped);
            // If neither the scheduler's creation nor the optimizer's step is visible, the schedule may count
            // batches.
            let hidden = made.is_empty() && step_of(facts, window).via.is_some();
            if guarded || hidden || window.steps_elsewhere {
                continue;
            }
            findings
                .report(op.span, format!("the scheduler steps in every iteration, the optimizer every `{}`: the schedule runs too fast", context.slice(window.counted.period)))
                .label(window.counted.span, "the window")
                .help("step the scheduler where the optimizer steps");
        }
    }
}

/// Returns `true` for `len(loader) * epochs`, as an expression or through a variable. Returns `false` if it
/// contains a division.
pub(super) fn counts_batches(context: &Context<'_>, argument: &Argument) -> bool {
    let counts = |text: &str| text.contains("len(") && !text.contains('/');
    let text = context.slice(argument.value_span);
    let assigned = |line: &str| memfit_source::assigned_text(line, text).is_some_and(counts);
    let is_name = text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    counts(text) || is_name && context.facts.text.lines().any(assigned)
}
