//! # sigmoid-before-bce-with-logits
//!
//! ## What it does
//! Finds probabilities that are passed to `binary_cross_entropy_with_logits`.
//!
//! ## Why
//! The loss applies the sigmoid itself, so that probabilities go through it twice. Measured: the loss of a
//! positive sample cannot fall below 0.31, however good the model is.
//!
//! ## Example
//! ```python
//! loss = F.binary_cross_entropy_with_logits(torch.sigmoid(model(x)), y)
//! ```
//! Use instead:
//! ```python
//! loss = F.binary_cross_entropy_with_logits(model(x), y)
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [binary_cross_entropy_with_logits](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.binary_cross_entropy_with_logits.html)

use memfit_source::{Criterion, Flags};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "sigmoid-before-bce-with-logits",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for call in &context.facts.calls {
        // The argument is checked first, since resolving the callee takes a search.
        let first = call.argument(0, "input").filter(|first| first.value.is(Flags::SIGMOID));
        let takes = |call: &memfit_source::Call| {
            call.is("torch.nn.functional.binary_cross_entropy_with_logits")
                || context.criterion(call) == Some(Criterion::BceWithLogits)
        };
        if let Some(first) = first.filter(|_| takes(call)) {
            findings
                .report(
                    first.value_span,
                    "these are probabilities: the loss applies the sigmoid to them once more",
                )
                .help("pass the logits");
        }
    }
}
