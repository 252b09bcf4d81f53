//! # scaler-call-missing
//!
//! ## What it does
//! Finds training with a gradient scaler without a call of `scale()` or `update()`.
//!
//! ## Why
//! Measured over three rounds: without `scale()` the first step raises ("Attempted step but _scale is None"),
//! and without `update()` the second ("has already been called since the last update").
//!
//! ## Example
//! ```python
//! scaler = torch.amp.GradScaler("cuda")
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     scaler.scale(criterion(model(x), y)).backward()
//!     scaler.step(optimizer)
//! ```
//! Use instead:
//! ```python
//! scaler = torch.amp.GradScaler("cuda")
//! for x, y in loader:
//!     optimizer.zero_grad()
//!     scaler.scale(criterion(model(x), y)).backward()
//!     scaler.step(optimizer)
//!     scaler.update()
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [Automatic mixed precision examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html)

use memfit_source::{Call, Kind, OpKind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "scaler-call-missing", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    // Only for scalers created in this file are all uses known, and whether they are enabled.
    let made: Vec<_> = facts
        .calls
        .iter()
        .filter(|call| {
            matches!(call.result.kind, Kind::Scaler(Some(_)))
                && call.path.as_deref().is_some_and(|path| path.ends_with("GradScaler"))
        })
        .collect();
    let Some(first) = made.first() else { return };
    let scales = facts.text.contains(".scale(") || facts.text.contains(".scale_loss(");
    let updates = facts.text.contains(".update(");
    let handed =
        facts.functions.iter().flat_map(|function| &function.parameters).any(|name| name.contains("scaler"));
    if (scales && updates) || handed || made.iter().any(|call| may_be_off(call)) {
        return;
    }
    for step in &facts.ops {
        let plain = matches!(step.kind, OpKind::Step { scaled: true, .. }) && step.via.is_none();
        if !plain || step.site.looped.is_none() {
            continue;
        }
        let (message, help) = if scales {
            ("`update()` is never called: the second step raises", "call `scaler.update()` after the step")
        } else {
            ("no loss is scaled: this raises", "call `scaler.scale(loss).backward()`")
        };
        findings.report(step.span, message).label(first.span, "the scaler is made here").help(help);
    }
}

/// Returns `true` if the scaler may be disabled, so that it needs no calls.
fn may_be_off(call: &Call) -> bool {
    call.is_open() || call.keyword("enabled").is_some_and(|argument| argument.value.truth() != Some(true))
}
