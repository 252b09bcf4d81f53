//! # zero-grad-to-zero
//!
//! ## What it does
//! Finds gradients that are cleared by writing zeros.
//!
//! ## Why
//! The gradients, as many bytes as the parameters, stay allocated during the forward pass, and are written
//! and read once more in every step. Measured on 4 MiB of parameters: 4 MiB stay. Setting them to `None`, the
//! default, frees them.
//!
//! ## Example
//! ```python
//! optimizer.zero_grad(set_to_none=False)
//! ```
//! Use instead:
//! ```python
//! optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [zero_grad](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html)

use memfit_source::OpKind;

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "zero-grad-to-zero", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    // Code that adds to `grad` needs an existing gradient.
    let adds = facts.ops.iter().any(|op| matches!(op.kind, OpKind::WriteGrad { clears: false, .. }));
    if adds || facts.text.contains(".grad.") {
        return;
    }
    for call in facts.calls.iter().filter(|call| call.is_method("zero_grad")) {
        let Some(argument) =
            call.keyword("set_to_none").filter(|argument| argument.value.truth() == Some(false))
        else {
            continue;
        };
        findings
            .report(argument.span, "the gradients stay allocated during the forward pass")
            .help("remove the argument: by default, gradients are set to `None` and freed");
    }
}
