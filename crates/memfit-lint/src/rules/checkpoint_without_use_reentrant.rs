//! # checkpoint-without-use-reentrant
//!
//! ## What it does
//! Finds activation checkpointing without an explicit `use_reentrant`.
//!
//! ## Why
//! Without `use_reentrant`, `torch.utils.checkpoint.checkpoint` warns at each call, and its default will
//! change. The reentrant implementation trains nothing if no input requires a gradient. Measured on an input
//! that requires none: with the reentrant implementation 0 of 2 parameters get a gradient, with the other 2
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
//! No fix: it changes which parameters are trained, so the author must decide.
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

/// The release that brought the argument.
const ARGUMENT: (u32, u32) = (1, 11);

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
        if !known || hidden || call.keyword("use_reentrant").is_some() || !context.torch.reaches(ARGUMENT) {
            continue;
        }
        findings
            .report(call.span, "no implementation is selected: each call warns, and the default will change")
            .help("pass `use_reentrant=False`");
    }
}
