//! # scaler-with-bfloat16
//!
//! ## What it does
//! Notes a gradient scaler in combination with autocast to bfloat16.
//!
//! ## Why
//! bfloat16 has the range of float32: its gradients do not underflow, and the scaler costs a check for
//! infinities and a synchronisation with the GPU in every step.
//!
//! ## Example
//! ```python
//! scaler = torch.amp.GradScaler("cuda")
//! with torch.amp.autocast("cuda", dtype=torch.bfloat16):
//!     loss = criterion(model(x), y)
//! scaler.scale(loss).backward()
//! ```
//! Use instead:
//! ```python
//! with torch.amp.autocast("cuda", dtype=torch.bfloat16):
//!     loss = criterion(model(x), y)
//! loss.backward()
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [torch.amp](https://docs.pytorch.org/docs/stable/amp.html)

use memfit_source::{DType, Flags, Kind};

use crate::query::backwards;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "scaler-with-bfloat16", severity: Severity::Note, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let casts = || {
        facts.calls.iter().filter_map(|call| match call.result.kind {
            Kind::Autocast(to) => Some((call, to)),
            _ => None,
        })
    };
    // If other types are possible, the scaler is for them.
    if casts().count() == 0 || casts().any(|(_, to)| to != Some(DType::BFloat16)) {
        return;
    }
    let Some((cast, _)) = casts().next() else { return };
    for (op, backward) in backwards(facts) {
        if backward.loss.is(Flags::SCALED) && op.via.is_none() {
            findings
                .report(op.span, "the loss is scaled, but bfloat16 needs no scaling")
                .label(cast.span, "autocast to bfloat16")
                .help("train without a `GradScaler`");
        }
    }
}
