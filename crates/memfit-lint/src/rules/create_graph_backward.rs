//! # create-graph-backward
//!
//! ## What it does
//! Finds `backward(create_graph=True)`.
//!
//! ## Why
//! It makes the gradients part of a graph that refers to the parameters, which refer to their gradients: a
//! cycle that only the garbage collector ends. PyTorch itself warns about it. Measured on a model of 4 MiB:
//! when model and loss are gone, 8 MiB stay on the card until the collector runs, and none after a plain
//! `backward()`. `torch.autograd.grad` gives the same gradients without writing them into the parameters.
//!
//! ## Example
//! ```python
//! loss.backward(create_graph=True)
//! ```
//! Use instead:
//! ```python
//! gradients = torch.autograd.grad(loss, model.parameters(), create_graph=True)
//! ```
//!
//! ## Fix safety
//! There is none: what becomes of the gradients is for the author to decide.
//!
//! ## References
//! - [torch.autograd.backward](https://docs.pytorch.org/docs/stable/generated/torch.autograd.backward.html)

use crate::query::backwards;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "create-graph-backward", severity: Severity::Warning, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for (op, backward) in backwards(context.facts) {
        let Some(create) = backward.create.filter(|_| op.via.is_none() && !backward.managed) else {
            continue;
        };
        findings
            .at(
                create,
                "parameters and gradients refer to each other: their memory waits for the garbage collector",
            )
            .help("use `torch.autograd.grad(loss, parameters, create_graph=True)`");
    }
}
