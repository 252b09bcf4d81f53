//! # batch-norm-under-accumulation
//!
//! ## What it does
//! Notes batch normalisation in a model that is trained with gradient accumulation.
//!
//! ## Why
//! Batch normalisation computes its statistics from the micro-batch, not from the whole window. "Half the
//! batch, twice the steps" is therefore not the same training. Measured: two halves of a batch give another
//! output of `BatchNorm1d` than the whole batch, and the same output of `LayerNorm`.
//!
//! ## Example
//! ```python
//! model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
//! for i, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / 4).backward()
//!     if (i + 1) % 4 == 0:
//!         optimizer.step()
//!         optimizer.zero_grad()
//! ```
//! Use instead, where it matters:
//! ```python
//! model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8))
//! for i, (x, y) in enumerate(loader):
//!     (criterion(model(x), y) / 4).backward()
//!     if (i + 1) % 4 == 0:
//!         optimizer.step()
//!         optimizer.zero_grad()
//! ```
//!
//! ## Fix safety
//! No fix.
//!
//! ## References
//! - [torch.nn.BatchNorm2d](https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html)

use memfit_source::{Flags, Overlap, Weights};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "batch-norm-under-accumulation",
    severity: Severity::Note,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let Some(window) =
        facts.windows.iter().find(|window| window.looped.is_some() && window.counted.rounds != Some(1))
    else {
        return;
    };
    // Normalisation in a model that is not trained here is not affected.
    let trained = |weights: &Weights| {
        let mut passes = window.backwards.iter().map(|index| &facts.ops[*index].weights);
        passes.any(|reached| facts.overlap(reached, weights) != Overlap::No)
    };
    let normalised = facts.calls.iter().find(|call| {
        call.result.is_module() && call.result.is(Flags::BATCH_NORM) && trained(&call.result.weights)
    });
    let Some(call) = normalised else { return };
    findings
        .report(window.counted.span, "batch normalisation sees micro-batches: this is not the same training as with the large batch")
        .label(call.span, "this model normalises over the batch")
        .help("use normalisation over single samples (`GroupNorm`, `LayerNorm`), or keep micro-batches large enough");
}
