//! # optimizer-in-loop
//!
//! ## What it does
//! Finds optimizers that are created for every batch.
//!
//! ## Why
//! The moments of Adam and similar optimizers are lost in every step: the update is then close to the sign of
//! the gradient. The optimizer state is allocated and freed in every iteration. Measured with Adam on 4 MiB
//! of parameters: 8 MiB, and a gradient of 5.0 moves its parameter as far as one of 0.1.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     optimizer = torch.optim.Adam(model.parameters())
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//! ```
//! Use instead:
//! ```python
//! optimizer = torch.optim.Adam(model.parameters())
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//!     optimizer.step()
//!     optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [torch.optim](https://docs.pytorch.org/docs/stable/optim.html)

use memfit_source::{Kind, OpKind};

use crate::query::is_guarded;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "optimizer-in-loop", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in
        facts.calls.iter().filter(|call| matches!(call.result.kind, Kind::Optimizer) && call.path.is_some())
    {
        // A function that makes it may be called by the loop.
        let around = facts.loops_around(&call.site);
        let around = around.iter().find(|(_, looped)| facts.over_batches(*looped));
        let Some((site, looped)) = around.copied() else { continue };
        let own = call.site.function != site.function && call.site.guard.is_some();
        let guarded = own || is_guarded(facts, site, looped);
        let steps = facts
            .ops
            .iter()
            .any(|op| op.site.looped == Some(looped) && matches!(op.kind, OpKind::Step { .. }));
        // If the model is created in the loop as well, each iteration is a training of its own.
        let fresh = facts.calls.iter().any(|other| {
            other.result.is_module()
                && other.receiver.is_none()
                && (other.site.looped == Some(looped) && other.site.order < site.order
                    || other.site.function == call.site.function
                        && call.site.function != site.function
                        && other.site.order < call.site.order)
        });
        if steps && !guarded && !fresh {
            findings
                .report(call.span, "the optimizer loses its state in every iteration")
                .label(facts.looped(looped).header, "in this loop over batches")
                .help("create it once, before the loop");
        }
    }
}
