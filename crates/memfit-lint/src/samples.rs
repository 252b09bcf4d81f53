//! Passes whose graph nothing can use: called functions that evaluate, branches that do not train, and
//! functions that call a model in a loop and return numbers.

use memfit_source::{Call, Facts, FunctionId, Grad, GraphState, Op, OpKind, Span};

use crate::evaluation::{
    HELP, WHY, feeds_back, is_tested, is_trained_through, runs_in_training, wants_gradients,
};
use crate::passes::{Pass, is_fallback, is_fed_by, is_pass, is_switched_off, passes, runs_once};
use crate::query::backwards;
use crate::rule::{Context, Findings};

/// Reports passes outside of evaluation loops.
pub(crate) fn report(context: &Context<'_>, findings: &mut Findings<'_>) {
    if context.project.differentiates {
        return;
    }
    evaluating_calls(context, findings);
    other_branches(context, findings);
    generations(context, findings);
}

fn is_reported(findings: &Findings<'_>, span: Span) -> bool {
    findings.found.iter().any(|found| found.rule.name == findings.rule.name && found.span == span)
}

/// Finds calls of functions that put a model into evaluation mode, call it and return its output, of which
/// the caller differentiates nothing.
fn evaluating_calls(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut seen: Vec<Span> = Vec::new();
    for mode in facts.ops.iter().filter(|op| op.kind == OpKind::EvalMode) {
        let Some(at) = mode.call.filter(|at| !seen.contains(at)) else { continue };
        seen.push(at);
        let Some(call) = facts.calls.iter().find(|call| call.span == at) else { continue };
        let inside = || facts.ops.iter().filter(|op| op.call == Some(at));
        let trains = inside().any(|op| op.kind.updates());
        let evaluated = inside()
            .any(|op| is_pass(context, op) && op.site.grad == Grad::On && op.site.order > mode.site.order);
        let function = call.site.function;
        let is_handed_on = function != FunctionId::MODULE && facts.function(function).hands_on;
        // Its own findings are in its own text.
        let is_elsewhere = call.function.is_none();
        if evaluated
            && !trains
            && is_elsewhere
            && !is_handed_on
            && !call.is_statement
            && call.result.graph.has_passes()
            && call.site.grad == Grad::On
            && (call.site.looped.is_some() || runs_in_training(context, function))
            && !is_tested(facts, function)
            && !is_trained_through(facts, at)
            && !context.may_be_without_grad(function)
            && !is_reported(findings, at)
        {
            findings.report(at, WHY).help(HELP);
        }
    }
}

/// Finds `else: loss = loss_fn(model, batch)`, where the same call is differentiated in the branch that
/// trains.
fn other_branches(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for (op, pass) in backwards(facts).filter(|(op, pass)| op.via.is_none() && !pass.managed) {
        let function = op.site.function;
        // The loss by its graph, or by the name on which `backward()` is called.
        let loss = context.slice(pass.loss_span);
        let made = facts.calls.iter().filter(|call| {
            let is_loss = call.result.graph.is_certain() && pass.loss.graph.contains(&call.result.graph)
                || facts.bound_to(call.span) == Some(loss);
            call.site.function == function
                && call.site.order < op.site.order
                && is_loss
                && !call.arguments.is_empty()
        });
        for trained in made {
            let other = facts.calls.iter().find(|call| {
                call.site.function == function
                    && call.span != trained.span
                    && call.site.grad == Grad::On
                    && context.slice(call.callee) == context.slice(trained.callee)
                    && are_branches_of_phase(context, op, call)
            });
            let Some(other) = other.filter(|call| !call.is_statement && !is_reported(findings, call.span))
            else {
                continue;
            };
            let around: Vec<_> = facts.guards_of(other.site.guard).collect();
            let trains = facts.ops.iter().any(|op| {
                op.kind.updates()
                    && op.site.function == function
                    && (op.site.guard.is_none()
                        || op.site.order > other.site.order
                            && facts.guards_of(op.site.guard).any(|id| around.contains(&id)))
            });
            if trains || wants_gradients_of(context, function) || context.may_be_without_grad(function) {
                continue;
            }
            findings.report(other.span, WHY).label(trained.span, "the same call is trained here").help(HELP);
            break;
        }
    }
}

/// Returns `true` if an operation is in the branch of a test, and a call in the other branch of it.
fn are_branches_of_phase(context: &Context<'_>, op: &Op, call: &Call) -> bool {
    let facts = context.facts;
    let phase = |test: Span| {
        let text = context.slice(test);
        crate::query::words(text).any(|word| PHASES.contains(&word.to_ascii_lowercase().as_str()))
    };
    facts.guards_of(op.site.guard).any(|a| {
        facts.guards_of(call.site.guard).any(|b| {
            let (a, b) = (facts.guard(a), facts.guard(b));
            a.test == b.test && a.negated != b.negated && phase(a.test)
        })
    })
}

/// Words in tests for the phase of a program.
const PHASES: &[&str] = &[
    "train",
    "training",
    "is_train",
    "is_training",
    "trainable",
    "mode",
    "phase",
    "split",
    "evaluate",
    "eval",
    "is_eval",
    "test",
    "valid",
    "val",
    "optimizer",
    "stage",
];

fn wants_gradients_of(context: &Context<'_>, function: FunctionId) -> bool {
    let text = context.slice(context.facts.function(function).span);
    ["requires_grad", "autograd", "attack", "set_grad_enabled"].iter().any(|word| text.contains(word))
}

/// Methods and functions that take outputs, and differentiate nothing.
const READERS: &[&str] = &[
    "append",
    "extend",
    "add",
    "update",
    "write",
    "print",
    "log",
    "info",
    "debug",
    "add_scalar",
    "add_image",
    "add_images",
    "set_postfix",
    "set_description",
    "imshow",
    "plot",
    "save",
    "save_image",
    "imsave",
    "imwrite",
    "add_batch",
    "process",
    "insert",
    "synchronize",
    "all_reduce",
    "all_gather",
    "barrier",
    "display",
    "show",
];

/// Finds functions that call a model in a loop, or that loops call, and that return and store no graph.
fn generations(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut running: Vec<FunctionId> =
        facts.ops.iter().filter(|op| is_pass(context, op)).map(|op| op.site.function).collect();
    running.sort_unstable();
    running.dedup();
    if is_switched_off(facts) {
        return;
    }
    for id in running.into_iter().filter(|id| *id != FunctionId::MODULE) {
        let function = facts.function(id);
        let name = function.name.rsplit('.').next().unwrap_or_default();
        let trains = facts.ops.iter().any(|op| op.site.function == id && op.kind.trains());
        let called = facts.calls_of(id).any(|call| call.site.grad == Grad::On);
        if trains
            || function.hands_on
            || function.grad != Grad::On
            || name == "forward"
            || name == "__init__"
            || !(called || runs_in_training(context, id) || context.is_looped_by_others(id))
            || is_tested(facts, id)
            || name.starts_with("test_")
            || wants_gradients(context, id)
            || context.may_be_without_grad(id)
            || keeps(facts, id)
        {
            continue;
        }
        // An agent acts in each step. What a model computes in its own methods may be part of its training.
        let is_model = function.class.is_some_and(|class| facts.class(class).is_module);
        let is_said = facts.calls_of(id).any(|call| is_reported(findings, call.span));
        let is_looped = !is_model
            && !is_said
            && (facts.calls_of(id).any(|call| call.site.looped.is_some() && call.site.grad == Grad::On)
                || context.is_looped_by_others(id));
        let mut reported: Vec<Pass<'_>> = Vec::new();
        let found = passes(context, id).into_iter().filter(|pass| {
            let is_bound = facts
                .calls
                .iter()
                .any(|call| call.span == pass.span && !call.is_statement && !call.result.graph.is_none());
            let is_repeated = match pass.site.looped {
                Some(id) => {
                    pass.is_own
                        && is_fed_by(context, pass, id)
                        && !feeds_back(context, id)
                        && !runs_once(context, id)
                }
                // What wraps a model may turn gradients off itself.
                None => is_looped && !is_made_here(facts, id, pass.receiver),
            };
            is_repeated && !is_fallback(context, pass) && is_bound
        });
        // One of each branch. What another search has found in the function is enough.
        let is_known = findings.found.iter().any(|found| {
            let at = found.span.start;
            found.rule.name == findings.rule.name && (function.span.start..function.span.end).contains(&at)
        });
        if is_known {
            continue;
        }
        for pass in found.collect::<Vec<_>>() {
            let is_other = reported.iter().all(|other| facts.are_alternatives(other.site, pass.site));
            if is_other && !is_reported(findings, pass.span) {
                findings.report(pass.span, WHY).help(HELP);
                reported.push(pass);
            }
        }
    }
}

/// Returns `true` for a model that a function makes, or gets from a call.
fn is_made_here(facts: &Facts, id: FunctionId, model: &str) -> bool {
    facts.calls.iter().any(|call| call.site.function == id && facts.is_bound_to(call.span, model))
}

/// Returns `true` if a function stores a graph where others may use it, or hands one to code that may.
fn keeps(facts: &Facts, id: FunctionId) -> bool {
    let stored = facts.stores.iter().any(|store| {
        // A list of the function may hold its inputs, which have the caller's graph.
        let is_kept = store.target.contains('.') || store.escapes && store.graph.is_there();
        store.site.function == id
            && is_kept
            && !store.value.graph.is_none()
            && !matches!(store.graph, GraphState::None)
    });
    let handed = facts.calls.iter().any(|call| {
        let name = facts.slice(call.callee).rsplit('.').next().unwrap_or_default();
        call.site.function == id
            && call.is_statement
            && call.function.is_none()
            && !READERS.contains(&name)
            && call
                .arguments
                .iter()
                .any(|argument| !argument.value.graph.is_none() && argument.value.graph.is_certain())
    });
    stored || handed
}
