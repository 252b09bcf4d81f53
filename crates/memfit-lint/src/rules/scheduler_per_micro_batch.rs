//! # scheduler-per-micro-batch
//!
//! ## What it does
//! Finds learning-rate schedulers that step in every round of an accumulating loop.
//!
//! ## Why
//! The schedule is written in optimizer steps, and runs through `k` times too fast. PyTorch warns about it only when the
//! scheduler's first step comes before the optimizer's.
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
//! There is none: the schedule's own length may have been chosen to match.
//!
//! ## References
//! - [How to adjust learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)

use memfit_source::OpKind;

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "scheduler-per-micro-batch", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for window in facts.windows.iter().filter(|window| window.looped.is_some() && window.counted.rounds != Some(1)) {
        for op in facts.ops.iter().filter(|op| op.kind == OpKind::SchedulerStep && op.place.looped == window.looped && !op.deep) {
            let guarded = facts.guards_of(op.place.guard).any(|id| facts.guard(id).looped == window.looped);
            if guarded || window.steps_elsewhere {
                continue;
            }
            findings
                .at(op.span, format!("the scheduler steps in every round, the optimizer every `{}`: the schedule runs too fast", context.slice(window.counted.period)))
                .label(window.counted.span, "the window")
                .help("step the scheduler where the optimizer steps");
        }
    }
}
