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
            let (own, of_judge) = (optimizer_of(context, generator), optimizer_of(context, judge));
            let (Some(own), Some(of_judge)) = (own, of_judge) else { continue };
            let is_said = findings.found.iter().any(|found| {
                found.span == generator.span && found.labels.iter().any(|label| label.span == pass.span)
                    || found.span == judge.span
            });
            if own == of_judge || is_said || !is_cleared(facts, pass, generator, &own, &of_judge) {
                continue;
            }
            let name = &generator.receiver;
            findings
                .report(judge.span, format!("gradients of `{name}` are computed for nothing: they are cleared before its optimizer steps"))
                .label(pass.span, "by this backward pass")
                .label(generator.span, "computed here")
                .help("detach the output for this loss");
        }
    }
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

/// Returns `true` if the step after a backward pass is the judge's, and the generator's gradients are cleared
/// before its own step.
fn is_cleared(facts: &Facts, pass: &Op, generator: &Op, own: &str, of_judge: &str) -> bool {
    let here = |op: &&Op| op.site.function == pass.site.function;
    let is_step = |op: &Op| matches!(op.kind, OpKind::Step { .. });
    // Iterations repeat: operations before the pass follow those after it.
    let mut ops: Vec<&Op> = facts.ops.iter().filter(here).collect();
    ops.sort_by_key(|op| (op.site.order < pass.site.order, op.site.order));
    let Some(next) = ops.iter().find(|op| is_step(op)) else { return false };
    let is_its = |op: &Op| {
        [own, generator.receiver.as_str()].contains(&op.receiver.as_str())
            || facts.overlap(&op.weights, &generator.weights) == Overlap::Yes
    };
    let first = ops.iter().find(|op| {
        is_step(op) && op.receiver == own || matches!(op.kind, OpKind::ZeroGrad { .. }) && is_its(op)
    });
    next.receiver == of_judge && first.is_some_and(|first| matches!(first.kind, OpKind::ZeroGrad { .. }))
}
