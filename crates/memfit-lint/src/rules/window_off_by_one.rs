//! # window-off-by-one
//!
//! ## What it does
//! Finds gradient accumulation windows that count from zero: `if step % k == 0: optimizer.step()`.
//!
//! ## Why
//! The first window has one micro-batch but is divided by `k`; with `enumerate` from 0, micro-batches remain
//! at the end even if the number of batches is a multiple of `k`. Measured over 8 iterations with a window of
//! 4: steps in the iterations 0 and 4 instead of 3 and 7, with 3 iterations left over.
//!
//! ## Example
//! ```python
//! for step, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / k).backward()
//!     if step % k == 0:
//!         optimizer.step()
//!         optimizer.zero_grad()
//! ```
//! Use instead:
//! ```python
//! for step, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / k).backward()
//!     if (step + 1) % k == 0 or step + 1 == len(loader):
//!         optimizer.step()
//!         optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)

use memfit_source::{CounterBinding, Residue, Window};

use crate::query::{step_of, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "window-off-by-one", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for window in &facts.windows {
        let counted = &window.counted;
        let Some(looped) = window.looped else { continue };
        let first = match (counted.bound, &facts.looped(looped).index) {
            (CounterBinding::Target(id), Some((name, start))) if id == looped && *name == counted.counter => {
                *start
            }
            (CounterBinding::Target(id), None)
                if id == looped
                    && !facts.over_batches(looped)
                    && context.slice(facts.looped(looped).iterable).starts_with("range(")
                    && !context.slice(facts.looped(looped).iterable).contains(',') =>
            {
                Some(0)
            }
            _ => continue,
        };
        if counted.scaled
            || counted.residue != Residue::Zero
            || counted.rounds == Some(1)
            || first.map(|first| first + counted.offset) != Some(0)
        {
            continue;
        }
        // The step must follow the backward pass of its iteration.
        let step = step_of(facts, window);
        if window.backwards.iter().any(|index| facts.ops[*index].site.order > step.site.order) {
            continue;
        }
        if is_tested_again(context, window) {
            continue;
        }
        let dividend = context.slice(counted.dividend);
        findings
            .report(counted.span, format!("`{}` is 0 in the first iteration: the first window has one micro-batch, but is weighted as if it had `{}`", counted.counter, context.slice(counted.period)))
            .help(format!("count from one: `({dividend} + 1) % …`"));
    }
}

/// Returns `true` if the condition also requires something else of the counter, as `i > 0 and i % k == 0`
/// does: it may leave the first iteration out.
fn is_tested_again(context: &Context<'_>, window: &Window) -> bool {
    let counter = window.counted.counter.as_str();
    let mut around = context.facts.guards_of(Some(window.guard));
    around.any(|id| {
        let test = context.slice(context.facts.guard(id).test);
        let requires = |part: &str| !part.contains('%') && words(part).any(|word| word == counter);
        test.split(" and ").any(requires) && (test.contains(" and ") || !test.contains('%'))
    })
}
