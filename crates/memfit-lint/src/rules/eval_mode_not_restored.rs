//! # eval-mode-not-restored
//!
//! ## What it does
//! Finds training loops in which the model goes into evaluation mode and never back.
//!
//! ## Why
//! From the second round on, the model trains in evaluation mode: dropout is off and batch normalisation uses
//! running statistics. The result is another model, and the memory of the first round is not that of the
//! others. Measured on `Dropout(0.5)`: of 256 values 0 are dropped, and 125 in training mode.
//!
//! ## Example
//! ```python
//! model.train()
//! for epoch in range(epochs):
//!     for x, y in loader:
//!         criterion(model(x), y).backward()
//!     model.eval()
//! ```
//! Use instead:
//! ```python
//! for epoch in range(epochs):
//!     model.train()
//!     for x, y in loader:
//!         criterion(model(x), y).backward()
//!     model.eval()
//! ```
//!
//! ## Fix safety
//! Unsafe: it puts `train()` at the beginning of the round, and a model may be meant to stay in evaluation
//! mode.
//!
//! ## References
//! - [torch.nn.Module.eval](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html)

use memfit_source::OpKind;

use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "eval-mode-not-restored", severity: Severity::Error, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for op in facts.ops.iter().filter(|op| op.kind == OpKind::EvalMode) {
        // The loop around the evaluation that also trains.
        let Some(looped) = facts.enclosing(op.place.looped).find(|id| facts.trains(*id)) else { continue };
        // The one model is put into evaluation mode and trained.
        let trained = facts.ops_in(looped).any(|other| {
            matches!(other.kind, OpKind::Forward)
                && other.receiver == op.receiver
                && other.place.grad == memfit_source::Grad::On
        });
        let restored = facts.ops_in(looped).any(|other| other.kind == OpKind::TrainMode);
        let text = context.slice(facts.looped(looped).span);
        let maybe = text.contains(".train(")
            || text.contains("train_epoch")
            || text.contains("train_one")
            || text.contains(".training");
        if !trained
            || restored
            || maybe
            || !facts.ops.iter().any(|other| other.kind == OpKind::TrainMode || other.place.looped.is_some())
        {
            continue;
        }
        // A round that ends with the evaluation is the last.
        if ends_loop(context, op, looped) {
            continue;
        }
        let found = facts.looped(looped);
        let body =
            facts.text[found.header.end as usize..].find('\n').map(|at| found.header.end + at as u32 + 1);
        let indent = body.map(|at| facts.line_start(at));
        let fix =
            indent.filter(|(_, blank)| !blank.is_empty() && op.via.is_none()).and_then(|(start, blank)| {
                Fix::unsafe_(
                    "Go back to training mode in each round",
                    vec![Edit::insert(start, format!("{blank}{}.train()\n", op.receiver))],
                )
            });
        findings
            .at(op.span, format!("`{}` is not put back into training mode: from the second round on it trains as if it were evaluated", op.receiver))
            .label(found.header, "the rounds of this loop train")
            .help(format!("call `{}.train()` at the beginning of each round", op.receiver))
            .fix(fix);
    }
}

/// Behind the evaluation the loop is left.
fn ends_loop(context: &Context<'_>, op: &memfit_source::Op, looped: memfit_source::LoopId) -> bool {
    let found = context.facts.looped(looped);
    let rest =
        &context.facts.text[(op.span.end as usize).min(found.span.end as usize)..found.span.end as usize];
    let guarded =
        context.facts.guards_of(op.place.guard).any(|id| context.facts.guard(id).looped == Some(looped));
    guarded
        && rest
            .lines()
            .take(30)
            .any(|line| matches!(line.trim(), "break" | "return") || line.trim().starts_with("return "))
}
