//! # batch-norm-under-accumulation
//!
//! ## What it does
//! Notes batch normalisation in a model that is trained with gradient accumulation.
//!
//! ## Why
//! Batch normalisation sees the micro-batch, not the window: its statistics are those of the smaller batch.
//! "Half the batch, twice the steps" is not the same training then. Measured: two halves of a batch come out
//! of `BatchNorm1d` other than the whole, and out of `LayerNorm` the same.
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
//! There is none.
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
    // Another model's normalisation sees what it always saw.
    let trained = |weights: &Weights| {
        let mut passes = window.backwards.iter().map(|index| &facts.ops[*index].weights);
        passes.any(|reached| facts.overlap(reached, weights) != Overlap::No)
    };
    let normalised = facts.calls.iter().find(|call| {
        call.result.is_module() && call.result.is(Flags::BATCH_NORM) && trained(&call.result.weights)
    });
    let Some(call) = normalised else { return };
    findings
        .at(window.counted.span, "batch normalisation sees micro-batches: this is not the same training as with the large batch")
        .label(call.span, "this model normalises over the batch")
        .help("use normalisation that does not look at the batch (`GroupNorm`, `LayerNorm`), or keep micro-batches large enough");
}
