//! # create-graph-backward
//!
//! ## What it does
//! Finds `backward(create_graph=True)`.
//!
//! ## Why
//! The gradients become part of a graph that refers to the parameters, which refer to their gradients: a
//! reference cycle that only the garbage collector frees. PyTorch itself warns about it. Measured on a model
//! of 4 MiB: after model and loss are deleted, 8 MiB stay on the GPU until the collector runs; after a plain
//! `backward()`, none. `torch.autograd.grad` returns the same gradients without storing them in the
//! parameters.
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
//! No fix: the further use of the gradients depends on the program.
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
            .report(
                create,
                "parameters and gradients refer to each other: only the garbage collector frees their memory",
            )
            .help("use `torch.autograd.grad(loss, parameters, create_graph=True)`");
    }
}
