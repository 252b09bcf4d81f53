//! Generators through which a discriminator's loss is differentiated: their gradients are cleared before
//! their own optimizer steps.

use memfit_source::{Call, Facts, FunctionId, Op, OpKind, Overlap};

use crate::query::{backwards, optimizers_of};
use crate::rule::{Context, Findings};

/// Reports forward passes of generators whose output should be detached. `seen` has what is reported already.
pub(crate) fn report(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for (pass, _) in backwards(facts) {
        let forwards: Vec<&Op> = facts
            .ops
            .iter()
            .filter(|op| op.kind == OpKind::Forward && !op.deep && op.via != Some(FunctionId::MODULE))
            .filter(|op| op.site.function == pass.site.function && op.site.order < pass.site.order)
            .filter(|op| pass.graph.contains(&op.graph))
            .collect();
        for generator in &forwards {
            let judged = forwards.iter().find(|other| {
                other.receiver != generator.receiver
                    && other.site.order > generator.site.order
                    && other.graph.contains(&generator.graph)
                    && !generator.graph.contains(&other.graph)
            });
            let Some(judge) = judged else { continue };
            // The same judgement may train the generator as well, in a second pass through its graph.
            let again = backwards(facts).any(|(other, _)| {
                other.site.function == pass.site.function
                    && other.site.order != pass.site.order
                    && other.graph.contains(&judge.graph)
            });
            // A model that requires no gradients gets none.
            let is_set = facts.ops.iter().any(|op| {
                matches!(op.kind, OpKind::RequireGrad { on } if on != Some(true))
                    && (op.receiver == generator.receiver
                        || facts.overlap(&op.weights, &generator.weights) == Overlap::Yes)
            });
            if again || is_set {
                continue;
            }
            let known = optimizer_of(context, generator).zip(optimizer_of(context, judge));
            let stepped = || optimizers_by_steps(facts, pass, &forwards, generator, judge);
            let Some((own, of_judge)) = known.or_else(stepped) else { continue };
            let is_said = findings.found.iter().any(|found| {
                found.span == generator.span && found.labels.iter().any(|label| label.span == pass.span)
                    || found.span == judge.span
            });
            let is_real =
                |other: &&&Op| other.receiver == judge.receiver && !other.graph.contains(&generator.graph);
            let is_mixed = || {
                forwards.iter().any(|other| is_real(&other))
                    && is_stepped(facts, pass, generator, &own, &of_judge)
            };
            if own == of_judge || is_said {
                continue;
            }
            let why = if is_cleared(facts, pass, generator, &own, &of_judge)
                || is_cleared_elsewhere(facts, pass, generator, &own, &of_judge)
            {
                "are computed for nothing: they are cleared before its optimizer steps"
            } else if is_mixed() {
                "for this loss are added to those of its own: it is also trained against itself"
            } else {
                continue;
            };
            let name = &generator.receiver;
            findings
                .report(judge.span, format!("gradients of `{name}` {why}"))
                .label(pass.span, "by this backward pass")
                .label(generator.span, "computed here")
                .help("detach the output for this loss");
        }
    }
}

/// Names of the optimizers of a generator and of its judge, which an object is given: the step after a loss
/// that also judges real data is the judge's, and another method of the object steps the generator's, with
/// a loss that judges only what the generator makes.
fn optimizers_by_steps(
    facts: &Facts,
    pass: &Op,
    forwards: &[&Op],
    generator: &Op,
    judge: &Op,
) -> Option<(String, String)> {
    let class = facts.function(pass.site.function).class?;
    let same = |a: &Op, b: &Op| facts.overlap(&a.weights, &b.weights) == Overlap::Yes;
    let judges_real = |of: &[&Op], made: &Op| {
        of.iter().any(|other| same(other, judge) && !other.graph.contains(&made.graph))
    };
    let step_after = |pass: &Op| {
        facts.ops.iter().find(|op| {
            op.site.function == pass.site.function && op.site.order > pass.site.order && is_step(op)
        })
    };
    if !judges_real(forwards, generator) {
        return None;
    }
    let of_judge = step_after(pass)?.receiver.clone();
    let mut found = backwards(facts).filter_map(|(other, _)| {
        let there = other.site.function;
        if there == pass.site.function || facts.function(there).class != Some(class) {
            return None;
        }
        let through: Vec<&Op> = facts
            .ops
            .iter()
            .filter(|op| op.kind == OpKind::Forward && op.site.function == there)
            .filter(|op| op.site.order < other.site.order && other.graph.contains(&op.graph))
            .collect();
        let made = through.iter().find(|op| same(op, generator))?;
        let judged = through.iter().any(|op| same(op, judge));
        let step = step_after(other).filter(|_| judged && !judges_real(&through, made))?;
        (step.receiver != of_judge).then(|| step.receiver.clone())
    });
    let own = found.next()?;
    found.all(|another| another == own).then_some((own, of_judge))
}

/// Name of the only optimizer that is created with the parameters of a model.
fn optimizer_of(context: &Context<'_>, model: &Op) -> Option<String> {
    let facts = context.facts;
    // Optimizers that a function of another file makes are known by their steps.
    let mut steps: Vec<&str> = facts
        .ops
        .iter()
        .filter(|op| matches!(op.kind, OpKind::Step { .. }) && op.site.function == model.site.function)
        .filter(|op| op.weights.is_exact() && facts.overlap(&op.weights, &model.weights) == Overlap::Yes)
        .map(|op| op.receiver.as_str())
        .collect();
    steps.dedup();
    if let [one] = steps.as_slice() {
        return Some((*one).to_owned());
    }
    let mut made = optimizers_of(facts, &model.receiver, &model.weights);
    let target = facts.bound_to(made.next()?.span)?;
    // Other branches create it under the same name.
    let same = |call: &Call| facts.bound_to(call.span) == Some(target);
    made.all(same).then(|| target.to_owned())
}

fn is_step(op: &Op) -> bool {
    matches!(op.kind, OpKind::Step { .. })
}

/// Returns `true` if an operation clears the gradients of a generator, whose optimizer is `own`.
fn clears(facts: &Facts, op: &Op, generator: &Op, own: &str) -> bool {
    matches!(op.kind, OpKind::ZeroGrad { .. }) && is_of(facts, op, generator, own)
}

/// Returns `true` if an operation is one of a generator or of its optimizer.
fn is_of(facts: &Facts, op: &Op, generator: &Op, own: &str) -> bool {
    [own, generator.receiver.as_str()].contains(&op.receiver.as_str())
        || facts.overlap(&op.weights, &generator.weights) == Overlap::Yes
}

/// Returns `true` if the step after a backward pass is the judge's, and the generator's gradients are cleared
/// before its own step.
fn is_cleared(facts: &Facts, pass: &Op, generator: &Op, own: &str, of_judge: &str) -> bool {
    let here = |op: &&Op| op.site.function == pass.site.function;
    // Iterations repeat: operations before the pass follow those after it.
    let mut ops: Vec<&Op> = facts.ops.iter().filter(here).collect();
    ops.sort_by_key(|op| (op.site.order < pass.site.order, op.site.order));
    let Some(next) = ops.iter().find(|op| is_step(op)) else { return false };
    let first = ops.iter().find(|op| is_step(op) && op.receiver == own || clears(facts, op, generator, own));
    next.receiver == of_judge && first.is_some_and(|first| !is_step(first))
}

/// Returns `true` if the step after a backward pass is the judge's, and the generator steps after it with
/// these gradients and those of a loss of its own before.
fn is_stepped(facts: &Facts, pass: &Op, generator: &Op, own: &str, of_judge: &str) -> bool {
    let here = |op: &&Op| op.site.function == pass.site.function && op.site.looped == pass.site.looped;
    let ends = |op: &Op| is_step(op) && op.receiver == own || clears(facts, op, generator, own);
    let after = || facts.ops.iter().filter(here).filter(|op| op.site.order > pass.site.order);
    let next = after().find(|op| is_step(op));
    let first = after().find(|op| ends(op));
    // Its own loss, whose gradients are still there.
    let mut before = facts.ops.iter().filter(here).filter(|op| op.site.order < pass.site.order);
    let own_loss = before.rfind(|op| {
        ends(op) || matches!(op.kind, OpKind::Backward(_)) && op.graph.contains(&generator.graph)
    });
    next.is_some_and(|next| next.receiver == of_judge)
        && first.is_some_and(is_step)
        && own_loss.is_some_and(|op| matches!(op.kind, OpKind::Backward(_)))
}

/// Returns `true` if the step after a backward pass is the judge's, and each other method of the object that
/// steps the generator's optimizer clears its gradients first.
fn is_cleared_elsewhere(facts: &Facts, pass: &Op, generator: &Op, own: &str, of_judge: &str) -> bool {
    let class = facts.function(pass.site.function).class;
    let concerns = |op: &&Op| {
        let ends = is_step(op) || matches!(op.kind, OpKind::ZeroGrad { .. });
        op.via.is_none() && ends && is_of(facts, op, generator, own)
    };
    let here = |op: &&Op| op.via.is_none() && op.site.function == pass.site.function;
    let mut after = facts.ops.iter().filter(here).filter(|op| op.site.order > pass.site.order);
    let next_is_its = after.find(|op| is_step(op)).is_some_and(|next| next.receiver == of_judge);
    if class.is_none()
        || !own.starts_with("self.")
        || !next_is_its
        || facts.ops.iter().filter(here).any(|op| concerns(&op))
    {
        return false;
    }
    let mut firsts = facts.function_ids().filter(|id| facts.function(*id).class == class).filter_map(|id| {
        let mut ops = facts.ops.iter().filter(|op| op.site.function == id).filter(concerns).peekable();
        let first = ops.peek().copied();
        ops.any(is_step).then_some(first?)
    });
    firsts.next().is_some_and(|first| !is_step(first) && firsts.all(|first| !is_step(first)))
}
