//! # stale-window-index
//!
//! ## What it does
//! Finds gradient accumulation windows whose counter is not the loop's.
//!
//! ## Why
//! An unbound name raises `NameError` in the first iteration. A name left over from another loop, or one that
//! is never incremented, has one value for the whole loop: the optimizer steps in every iteration, or never.
//! Measured over 8 iterations with a window of 4: 8 steps or 0 instead of 2.
//!
//! ## Example
//! ```python
//! for batch_idx, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / k).backward()
//!     if (i + 1) % k == 0:
//!         optimizer.step()
//!         optimizer.zero_grad()
//! ```
//! Use instead:
//! ```python
//! for batch_idx, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / k).backward()
//!     if (batch_idx + 1) % k == 0 or batch_idx + 1 == len(loader):
//!         optimizer.step()
//!         optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [enumerate](https://docs.python.org/3/library/functions.html#enumerate)

use memfit_source::CounterBinding;

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "stale-window-index", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for window in &facts.windows {
        let counted = &window.counted;
        let Some(looped) = window.looped else { continue };
        // A counter of the caller has its name there.
        let function = facts.function(facts.looped(looped).function);
        if counted.counter.contains('.') || !function.span.contains(counted.span) {
            continue;
        }
        let inside = |id: memfit_source::LoopId| facts.enclosing(Some(looped)).any(|known| known == id);
        let counted_up =
            facts.enclosing(Some(looped)).any(|id| facts.looped(id).assigned.contains(&counted.counter));
        let why = match counted.bound {
            CounterBinding::Nowhere => "is never assigned: the first iteration raises `NameError`",
            CounterBinding::Target(id) if !inside(id) && !counted_up => {
                "is left over from another loop: it has the same value in all iterations"
            }
            CounterBinding::Assigned(at) if !at.is_some_and(inside) && !counted_up => {
                "is never incremented in this loop: it has the same value in all iterations"
            }
            _ => continue,
        };
        let index = facts.looped(looped).index.as_ref().map(|(name, _)| name.clone());
        findings
            .report(counted.counter_span, format!("`{}` {why}", counted.counter))
            .label(
                facts.looped(looped).header,
                match &index {
                    Some(name) => format!("this loop counts `{name}`"),
                    None => "this loop counts nothing: `enumerate` would".to_owned(),
                },
            )
            .help(match &index {
                Some(name) => format!("count with `{name}`"),
                None => format!("count the iterations: `for {}, … in enumerate(…)`", counted.counter),
            });
    }
}
