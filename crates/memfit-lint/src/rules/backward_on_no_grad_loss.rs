//! # backward-on-no-grad-loss
//!
//! ## What it does
//! Finds `backward()` on a loss that was computed while gradients were off.
//!
//! ## Why
//! Such a loss has no graph, so `backward()` raises `RuntimeError: element 0 of tensors does not require
//! grad`. Measured: after the error, 0 of 2 parameters have a gradient. (A loss computed outside of `no_grad`
//! may go through `backward()` inside it: 2 of 2.)
//!
//! ## Example
//! ```python
//! with torch.no_grad():
//!     loss = criterion(model(x), y)
//! loss.backward()
//! ```
//! Use instead:
//! ```python
//! loss = criterion(model(x), y)
//! loss.backward()
//! ```
//!
//! ## Fix safety
//! No fix: which code belongs under `no_grad` depends on the program.
//!
//! ## References
//! - [torch.no_grad](https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html)

use memfit_source::Flags;

use crate::query::backwards;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "backward-on-no-grad-loss",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for (op, backward) in backwards(context.facts) {
        if op.via.is_some() || !backward.loss.graph.is_none() || !backward.loss.is(Flags::NO_GRAD_BUILT) {
            continue;
        }
        let loss = context.slice(backward.loss_span);
        findings
            .report(
                op.span,
                format!(
                    "`{loss}` was computed without gradients: it has no graph, and this raises `RuntimeError`"
                ),
            )
            .help("compute the loss outside of `no_grad`");
    }
}
