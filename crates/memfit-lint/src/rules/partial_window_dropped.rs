//! # partial-window-dropped
//!
//! ## What it does
//! Finds gradient accumulation without an optimizer step for the remaining micro-batches at the end of the
//! loop.
//!
//! ## Why
//! If the number of batches is not a multiple of the window, the optimizer never steps with the last
//! gradients. Either they are cleared, which drops those samples from every epoch, or they leak into the
//! first window of the next epoch. Measured with 6 batches and a window of 4: 1 step instead of 2, and 16 of
//! 48 samples without effect.
//!
//! ## Example
//! ```python
//! for i, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / k).backward()
//!     if (i + 1) % k == 0:
//!         optimizer.step()
//!         optimizer.zero_grad()
//! ```
//! Use instead:
//! ```python
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

use memfit_source::{
    CounterBinding, CounterTest, Facts, Flags, IterableKind, LoopId, Store, StoreKind, Window,
};

use crate::query::{backward, is_plain, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "partial-window-dropped",
    severity: Severity::Warning,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for window in &facts.windows {
        let Some(looped) = window.looped else { continue };
        let found = facts.looped(looped);
        // A loop without a known end, or over numbers, has no visible last batch.
        let ends = matches!(found.iterable_kind, IterableKind::Loader(_))
            || (found.iterable_kind == IterableKind::Other && !found.is_while && found.index.is_some());
        let even = window.is_whole_multiple(facts) || window.counted.rounds == Some(1);
        if window.alternative
            || window.flushed
            || window.steps_elsewhere
            || !ends
            || even
            || !is_plain(facts, window)
        {
            continue;
        }
        // If the backward pass raises an error, nothing remains.
        let raises = window
            .backwards
            .iter()
            .filter_map(|index| backward(&facts.ops[*index]))
            .any(|backward| backward.loss.graph.is_none() && backward.loss.is(Flags::NO_GRAD_BUILT));
        if raises {
            continue;
        }
        let counted = &window.counted;
        if goes_on(facts, looped, counted) || skips_rest(context, window) {
            continue;
        }
        findings
            .report(counted.span, "the optimizer does not step with the gradients left over at the end of the loop, unless the number of batches is a multiple of the window")
            .label(found.header, "the loop may end within a window")
            .help("also step at the last batch, or once more after the loop");
    }
}

/// Returns `true` if the loop leaves the micro-batches out that make no whole window, by the number of the
/// window: `step = i // k`, `if step >= steps: continue`.
fn skips_rest(context: &Context<'_>, window: &Window) -> bool {
    let facts = context.facts;
    let Some(looped) = window.looped else { return false };
    let (counter, period) = (window.counted.counter.as_str(), context.slice(window.counted.period));
    let body = context.slice(facts.looped(looped).span);
    let number = body.lines().find_map(|line| {
        let (name, value) = line.trim().split_once(" = ")?;
        let (counted, by) = value.split_once("//")?;
        let is_it = counted.trim() == counter && by.split('#').next().is_some_and(|by| by.trim() == period);
        // `step: int = i // k`
        is_it.then(|| name.split(':').next().unwrap_or(name).trim_end())
    });
    let Some(number) = number else { return false };
    let mut passes = window.backwards.iter().flat_map(|index| facts.guards_of(facts.ops[*index].site.guard));
    passes.any(|id| {
        let guard = facts.guard(id);
        guard.is_rest
            && guard.looped == Some(looped)
            && words(context.slice(guard.test)).any(|word| word == number)
    })
}

/// Returns `true` for a counter that continues over epochs: it carries the remainder into the next one.
fn goes_on(facts: &Facts, looped: LoopId, counted: &CounterTest) -> bool {
    let found = facts.looped(looped);
    let counter = counted.counter.as_str();
    if counter.contains('[') {
        return true;
    }
    // `self.global_step`, unless each epoch sets it.
    if counter.contains('.') {
        let each_epoch = |store: &Store| match found.parent {
            Some(parent) => facts.within(&store.site, parent),
            None => store.site.function == found.function,
        };
        return !facts.stores.iter().any(|store| {
            store.kind == StoreKind::Assign
                && store.target == counter
                && each_epoch(store)
                && !facts.within(&store.site, looped)
        });
    }
    match counted.bound {
        CounterBinding::Assigned(bound) => bound != found.parent.or(bound),
        // What the caller's loop counts, unless it is named as the number of its batch.
        CounterBinding::Parameter => found.index.as_ref().is_none_or(|(index, _)| index != counter),
        _ => false,
    }
}
