//! # scheduler-per-epoch
//!
//! ## What it does
//! Finds learning-rate schedules over all batches of a training that are stepped once an epoch: `OneCycleLR`
//! with `steps_per_epoch=len(loader)`, and schedules whose number of steps is `len(loader) * epochs`.
//!
//! ## Why
//! The schedule is at its beginning when the training ends: a warm-up never ends, and the learning rate never
//! falls. Measured with 10 epochs of 100 batches: after the last epoch, the schedule is at step 10 of 1,000.
//!
//! ## Example
//! ```python
//! scheduler = torch.optim.lr_scheduler.OneCycleLR(
//!     optimizer, max_lr=0.1, steps_per_epoch=len(loader), epochs=10
//! )
//! for epoch in range(10):
//!     fit(model, loader, optimizer)
//!     scheduler.step()
//! ```
//! Use instead:
//! ```python
//! scheduler = torch.optim.lr_scheduler.OneCycleLR(
//!     optimizer, max_lr=0.1, steps_per_epoch=len(loader), epochs=10
//! )
//! for epoch in range(10):
//!     for x, y in loader:
//!         step(model, x, y, optimizer)
//!         scheduler.step()
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [OneCycleLR](https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.OneCycleLR.html)

use memfit_source::{Call, Kind, LoopId, Op, OpKind};

use super::scheduler_per_micro_batch::counts_batches;
use crate::query::{is_batch_loop, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "scheduler-per-epoch", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for scheduler in facts.calls.iter().filter(|call| call.result.kind == Kind::Scheduler) {
        let Some(name) = facts.bound_to(scheduler.span) else { continue };
        if !is_over_batches(context, scheduler) {
            continue;
        }
        // `scheduler.step()` of a function that gets it, `self.scheduler.step()` of another method.
        let own = |op: &&Op| op.kind == OpKind::SchedulerStep && op.via.is_none() && op.receiver == name;
        let mut steps = facts.ops.iter().filter(own).peekable();
        let others = facts
            .ops
            .iter()
            .any(|op| op.kind == OpKind::SchedulerStep && op.receiver != name && op.via.is_none());
        // A function that gets it may step it for each batch.
        let given = facts
            .calls
            .iter()
            .any(|call| call.arguments.iter().any(|argument| context.slice(argument.value_span) == name));
        let Some(first) = steps.peek().copied() else { continue };
        if others || given || !steps.all(|op| epoch_loop(context, op).is_some()) {
            continue;
        }
        let Some(looped) = epoch_loop(context, first) else { continue };
        findings
            .report(
                first.span,
                "the schedule is over all batches, and is stepped once an epoch: it never gets far",
            )
            .label(scheduler.span, "this counts batches")
            .label(facts.looped(looped).header, "a loop over epochs")
            .help("step it after each batch, or count epochs");
    }
}

/// Returns `true` for a schedule whose length is the number of batches of all epochs.
fn is_over_batches(context: &Context<'_>, scheduler: &Call) -> bool {
    let names = ["steps_per_epoch", "total_steps", "num_training_steps", "T_max", "total_iters"];
    scheduler.arguments.iter().skip(1).any(|argument| {
        let is_named = argument.name.as_deref().is_some_and(|name| names.contains(&name));
        let text = context.slice(argument.value_span);
        let per_epoch = argument.name.as_deref() == Some("steps_per_epoch") && text.starts_with("len(");
        per_epoch || is_named && counts_batches(context, argument) && text.contains("epoch")
    })
}

/// Loop over epochs that a step is in, outside of any loop over batches.
fn epoch_loop(context: &Context<'_>, op: &Op) -> Option<LoopId> {
    let facts = context.facts;
    let looped = op.site.looped?;
    let found = facts.looped(looped);
    let says = |text: &str| words(text).any(|word| word.to_ascii_lowercase().contains("epoch"));
    let named = found.targets.iter().any(|target| says(target)) || says(context.slice(found.iterable));
    let batches =
        facts.enclosing(Some(looped)).any(|id| facts.over_batches(id)) || is_batch_loop(facts, looped);
    // A loop calls the function for each batch.
    let id = op.site.function;
    let called = facts.calls_of(id).any(|call| call.site.looped.is_some());
    (named && !batches && !called).then_some(looped)
}
