//! # data-parallel
//!
//! ## What it does
//! Notes `nn.DataParallel`.
//!
//! ## Why
//! One process copies the model to every GPU in every step, and gathers all outputs on the first GPU, whose
//! memory is therefore exhausted before that of the others. `DistributedDataParallel` uses one process for
//! each GPU and gathers nothing.
//!
//! ## Example
//! ```python
//! model = nn.DataParallel(model)
//! ```
//! Use instead:
//! ```python
//! model = nn.parallel.DistributedDataParallel(model)
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [DataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html)

use memfit_source::{Kind, OpKind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "data-parallel", severity: Severity::Note, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    // An evaluation has no gradients to gather, and a wrapper that only gives names to weights runs nothing.
    let facts = context.facts;
    let trains = facts.ops.iter().any(|op| matches!(op.kind, OpKind::Backward(_)))
        || facts.calls.iter().any(|call| matches!(call.result.kind, Kind::Optimizer));
    if !trains {
        return;
    }
    for call in &facts.calls {
        if ["torch.nn.DataParallel", "torch.nn.parallel.DataParallel"].iter().any(|path| call.is(path)) {
            findings
                .report(
                    call.span,
                    "the outputs of all GPUs are gathered on the first, whose memory fills before that of the others",
                )
                .help("use `DistributedDataParallel`, one process per GPU");
        }
    }
}
