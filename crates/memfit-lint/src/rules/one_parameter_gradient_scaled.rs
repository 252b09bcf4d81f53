//! # one-parameter-gradient-scaled
//!
//! ## What it does
//! Finds gradients that are scaled for one parameter by its number.
//!
//! ## Why
//! The other parameters keep their gradients as they are: the direction of the step is another one. Measured
//! on a layer of two parameters, the first gradient divided by 4: it turns by 34 degrees. It is no substitute
//! for dividing the loss, which scales all gradients alike: 0 degrees.
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
//! There is none: what to do instead is for the author to decide.
//!
//! ## References
//! - [Gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)

use memfit_source::OpKind;

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
        if single && steps {
            findings
                .at(
                    op.span,
                    format!(
                        "only `{}` is scaled: every other parameter keeps its gradient as it is",
                        op.receiver
                    ),
                )
                .help("divide the loss, which scales all gradients alike");
        }
    }
}
