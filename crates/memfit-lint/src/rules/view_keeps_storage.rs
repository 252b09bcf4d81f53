//! # view-keeps-storage
//!
//! ## What it does
//! Finds slices of outputs that are collected without a copy. It is a note where the slice may be the
//! whole.
//!
//! ## Why
//! A slice shares the storage of the whole tensor and keeps it alive. `.detach()` does not change that;
//! `.clone()` copies the part, so that the whole can be freed. Measured: a column of each of three outputs of
//! 8 MiB holds 24 MiB; copied, 48 KiB.
//!
//! ## Example
//! ```python
//! for x in loader:
//!     features.append(model(x)[:, 0].detach())
//! ```
//! Use instead:
//! ```python
//! for x in loader:
//!     features.append(model(x)[:, 0].detach().clone())
//! ```
//!
//! ## Fix safety
//! Unsafe: code that writes to the whole tensor through the slice no longer does.
//!
//! ## References
//! - [Tensor views](https://docs.pytorch.org/docs/stable/tensor_view.html)

use memfit_source::{Device, Flags, StoreKind};

use crate::query::grows;
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "view-keeps-storage", severity: Severity::Warning, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for store in facts.kept().filter(|store| store.kind == StoreKind::Append) {
        let view =
            store.value.is(Flags::VIEW) && store.value.is(Flags::OUTPUT) && store.value.graph.is_none();
        if !view || grows(facts, store).is_none() {
            continue;
        }
        let text = context.slice(store.value_span).to_owned();
        findings
            .report(
                store.value_span,
                format!("`{text}` is a slice: it keeps the storage of the whole tensor in every iteration"),
            )
            .note_unless(store.value.device != Device::Cpu && takes_one(&text))
            .help("copy the part with `.clone()`, or move it to the host with `.cpu()`")
            .fix(Fix::unsafe_("Copy the part", vec![Edit::insert(store.value_span.end, ".clone()")]));
    }
}

/// Returns `true` for a slice that takes one of several by its number, as of the class token: a dimension
/// of which the last one or a range is taken may be no longer.
fn takes_one(text: &str) -> bool {
    let Some((_, keys)) = text.split_once('[') else { return false };
    let keys = keys.split(']').next().unwrap_or_default();
    let mut keys = keys.split(',').map(str::trim);
    keys.clone().count() > 1 && keys.any(|key| key.chars().all(|c| c.is_ascii_digit()) && !key.is_empty())
}
