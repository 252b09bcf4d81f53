//! # find-unused-parameters
//!
//! ## What it does
//! Notes `DistributedDataParallel(find_unused_parameters=True)`.
//!
//! ## Why
//! In every step, the graph is traversed once more in search of parameters without a gradient. If there are
//! none, PyTorch itself warns.
//!
//! ## Example
//! ```python
//! model = DDP(model, find_unused_parameters=True)
//! ```
//! Use instead:
//! ```python
//! model = DDP(model)
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "find-unused-parameters", severity: Severity::Note, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for call in &context.facts.calls {
        let wraps = call.path.as_deref().is_some_and(|path| path.ends_with("DistributedDataParallel"));
        let asked =
            call.keyword("find_unused_parameters").filter(|argument| argument.value.truth() == Some(true));
        if let Some(argument) = asked.filter(|_| wraps) {
            findings
                .report(argument.span, "the graph is searched for unused parameters in every step")
                .help("remove it unless some parameters are really unused");
        }
    }
}
