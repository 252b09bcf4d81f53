//! # one-parameter-gradient-scaled
//!
//! ## What it does
//! Finds the gradient of a single parameter, selected by index from all of a model or an optimizer, being
//! scaled.
//!
//! ## Why
//! The gradients of the other parameters stay unscaled, so that the step has another direction. Measured on a
//! layer of two parameters, with the first gradient divided by 4: the direction turns by 34 degrees. Dividing
//! the loss instead scales all gradients alike: 0 degrees.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     criterion(model(x), y).backward()
//!     optimizer.param_groups[0]["params"][0].grad = optimizer.param_groups[0]["params"][0].grad / 4
//!     optimizer.step()
//!     optimizer.zero_grad()
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     (criterion(model(x), y) / 4).backward()
//!     optimizer.step()
//!     optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)

use memfit_source::{Call, Facts, Kind, OpKind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "one-parameter-gradient-scaled",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for op in &facts.ops {
        let single = matches!(op.kind, OpKind::WriteGrad { single: true, clears: false });
        let steps = op.site.looped.is_some_and(|looped| facts.trains(looped));
        if single && steps && !holds_one(facts, &op.receiver) {
            findings
                .report(
                    op.span,
                    format!(
                        "only `{}` is scaled: the gradients of all other parameters are not",
                        op.receiver
                    ),
                )
                .help("divide the loss, which scales all gradients alike");
        }
    }
}

/// Returns `true` for a parameter of an optimizer that is given tensors one by one: it may be the only one.
fn holds_one(facts: &Facts, parameter: &str) -> bool {
    let optimizer = parameter.split(".param_groups").next().unwrap_or(parameter);
    let is_listed = |call: &Call| {
        call.arguments.first().is_some_and(|first| {
            let text = facts.slice(first.value_span);
            text.starts_with('[') && !text.contains(['{', '('])
        })
    };
    facts.calls.iter().any(|call| {
        matches!(call.result.kind, Kind::Optimizer)
            && facts.bound_to(call.span) == Some(optimizer)
            && is_listed(call)
    })
}
