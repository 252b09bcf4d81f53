//! Options of the optimizer, where it is created, and of the allocator, where the script sets them.

use memfit_source::{Call, Edit, ExpressionKind as Kind, OpKind, Span, StatementKind};
use memfit_vocabulary::Lever;

use super::{Change, Edits, Refusal};
use crate::Why;
use crate::code::{Code, Scene, Site};
use crate::optimizer::{makes_optimizer, with_kernel};

/// Optimizers with a fused implementation.
const FUSED_OPTIMIZERS: &[&str] = &["Adam", "AdamW", "SGD"];

/// Sets `fused=True` or `foreach=False` on the optimizer that steps on a line.
pub(super) fn optimizer(scene: &Scene<'_>, site: &Site, lever: Lever) -> Result<Edits, Why> {
    let script = &*scene.script;
    let facts = &script.facts;
    let step = facts
        .ops
        .iter()
        .find(|op| {
            op.via.is_none() && script.is_on(op.span, site.line) && matches!(op.kind, OpKind::Step { .. })
        })
        .ok_or("no optimizer step was found there")?;
    let mut made: Vec<&Call> = facts.calls.iter().filter(|call| makes_optimizer(call)).collect();
    made.sort_by_key(|call| call.span);
    made.dedup_by_key(|call| call.span);
    let bound = |call: &&&Call| {
        let path = script.statement_around(call.span);
        path.is_some_and(|path| {
            let statement = path.statement();
            statement.kind == StatementKind::Assign
                && statement
                    .targets
                    .iter()
                    .any(|target| target.path().as_deref() == Some(step.receiver.as_str()))
        })
    };
    let named: Vec<&&Call> = made.iter().filter(bound).collect();
    let call = match (&named[..], &made[..]) {
        ([call], _) => **call,
        ([], [call]) => *call,
        ([], []) => {
            return Err("no line of the file was found that creates an optimizer of torch.optim".to_owned());
        }
        _ => return Err(format!("`{}` is created in several places", step.receiver)),
    };
    let class = call.path.as_deref().unwrap_or_default().rsplit('.').next().unwrap_or_default();
    if lever == Lever::FusedOptimizer && !FUSED_OPTIMIZERS.contains(&class) {
        return Err(format!("`{class}` has no fused kernel"));
    }
    if call.is_open() {
        return Err("its options are not in this call".to_owned());
    }
    let path =
        script.statement_around(call.span).ok_or("the optimizer is not created in a statement of its own")?;
    if !scene.was_reached(&path) {
        return Err("the recording does not show that the line that creates the optimizer ran".to_owned());
    }
    let mut edits = Edits::default();
    edits.push(with_kernel(facts, call, lever)?);
    Ok(edits)
}

/// Changes the line of the script that sets the allocator's settings.
pub(super) fn settings(code: &Code<'_>, now: &str, then: &str) -> Result<Change, Refusal> {
    let mut refusal = Refusal::NotHere;
    for scene in code.scenes() {
        let script = &*scene.script;
        let mut found: Option<(Span, Span)> = None;
        for statement in &script.statements {
            statement.visit(&mut |each| {
                for value in each.values.iter().filter(|_| sets(each)) {
                    value.visit(&mut |part| {
                        if matches!(&part.kind, Kind::Text(text) if text == now) {
                            found.get_or_insert((each.span, part.span));
                        }
                    });
                }
            });
        }
        let Some((statement, text)) = found.filter(|_| !now.is_empty()) else { continue };
        let shown = script.statement_around(statement).is_some_and(|path| scene.was_reached(&path));
        if !shown {
            refusal = "the recording does not show that the line that sets it ran".into();
            continue;
        }
        let mut edits = Edits::default();
        let whole = script.statements.iter().any(|each| each.span == statement);
        match script.facts.whole_lines(statement).filter(|_| whole && then.is_empty()) {
            Some(lines) => edits.push(Edit::delete(lines)),
            None => edits.push(Edit::replace(text, format!("\"{then}\""))),
        }
        return edits.change(&scene).map_err(Refusal::Unproven);
    }
    Err(refusal)
}

/// Sets the fraction of the GPU that the script gives itself to all of it.
pub(super) fn memory_fraction(code: &Code<'_>) -> Result<Change, Refusal> {
    let sets = |call: &&Call| {
        let name = call.path.as_deref().or(call.method.as_deref()).unwrap_or_default();
        name.rsplit('.').next() == Some("set_per_process_memory_fraction")
    };
    let scenes: Vec<Scene<'_>> = code.scenes().collect();
    let calls =
        || scenes.iter().flat_map(|scene| scene.script.facts.calls.iter().map(move |call| (scene, call)));
    let calls: Vec<(&Scene<'_>, &Call)> = calls().filter(|(_, call)| sets(call)).collect();
    // The recording shows that a fraction was set, so a single call must be the one that set it.
    let (scene, call) = match &calls[..] {
        [] => return Err(Refusal::NotHere),
        [only] => *only,
        _ => return Err("the fraction is set in several places".into()),
    };
    let fraction = call.argument(0, "fraction").ok_or("the fraction is not in this call")?;
    let mut edits = Edits::default();
    edits.push(Edit::replace(fraction.value_span, "1.0".to_owned()));
    edits.change(scene).map_err(Refusal::Unproven)
}

/// Returns `true` if a statement concerns the variable of the allocator's settings.
fn sets(statement: &memfit_source::Statement) -> bool {
    let of_variable = |part: &memfit_source::Expression| matches!(&part.kind, Kind::Text(text) if text.ends_with("ALLOC_CONF"));
    matches!(statement.kind, StatementKind::Assign | StatementKind::Expression)
        && statement.expressions().any(|expression| expression.any(&of_variable))
}
