//! # sigmoid-before-bce-with-logits
//!
//! ## What it does
//! Finds probabilities that go into `binary_cross_entropy_with_logits`.
//!
//! ## Why
//! The loss applies the sigmoid itself. Given probabilities it applies it twice. Measured: the loss of a
//! positive cannot fall below 0.31 however right the model is.
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
//! There is none: what to do instead is for the author to decide.
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
        // What is passed is looked at first: whose call it is takes a search.
        let first = call.argument(0, "input").filter(|first| first.value.is(Flags::SIGMOID));
        let takes = |call: &memfit_source::Call| {
            call.is("torch.nn.functional.binary_cross_entropy_with_logits")
                || context.criterion(call) == Some(Criterion::BceWithLogits)
        };
        if let Some(first) = first.filter(|_| takes(call)) {
            findings
                .at(
                    first.value_span,
                    "these are probabilities: the loss applies the sigmoid to them once more",
                )
                .help("pass the logits");
        }
    }
}
