//! # checkpoint-without-use-reentrant
//!
//! ## What it does
//! Finds activation checkpointing that does not say which implementation it wants.
//!
//! ## Why
//! `torch.utils.checkpoint.checkpoint` warns without `use_reentrant`, in each call, and its default is to
//! change. The reentrant one needs an input that requires gradients, without which nothing is trained.
//! Measured on an input that requires none: the reentrant one gives 0 of 2 parameters a gradient, the other 2
//! of 2.
//!
//! ## Example
//! ```python
//! y = torch.utils.checkpoint.checkpoint(block, x)
//! ```
//! Use instead:
//! ```python
//! y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
//! ```
//!
//! ## Fix safety
//! There is none: it changes what is trained, and that is for the author to look at.
//!
//! ## References
//! - [torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html)

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "checkpoint-without-use-reentrant",
    severity: Severity::Warning,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in &facts.calls {
        let known = ["torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"]
            .iter()
            .any(|path| call.is(path));
        let hidden = call
            .arguments
            .iter()
            .any(|argument| argument.starred && context.slice(argument.span).starts_with("**"));
        if !known || hidden || call.keyword("use_reentrant").is_some() {
            continue;
        }
        findings
            .at(call.span, "it does not say which implementation it wants: each call warns, and the default is to change")
            .help("pass `use_reentrant=False`");
    }
}
