//! Evaluation with gradients outside of loops of its own: the evaluating phase of a function or loop that
//! also trains, a test pass now and then, and methods of a model in evaluation mode.

use memfit_source::{
    Call, Facts, FunctionId, Grad, GuardId, IterableKind, Kind, LoopId, Op, OpKind, Site, Span,
};

use crate::passes::{is_pass, mode_of, passes};
use crate::query::{backwards, mode_at, words};
use crate::rule::{Context, Findings};

/// Branch around a backward pass that depends on a phase: `if train:`, `if split == "train":`.
struct Phase<'a> {
    /// Name in the condition.
    name: &'a str,
    /// Values under which the pass runs; none for the truth of the name.
    texts: Vec<&'a str>,
    /// `true` if the pass runs where the condition holds.
    runs: bool,
    /// `true` if the test is whether it was given at all.
    is_presence: bool,
}

/// Reports evaluation in phases, in methods of models and in branches of a training loop.
pub(crate) fn report(context: &Context<'_>, findings: &mut Findings<'_>) {
    phases(context, findings);
    methods(context, findings);
    now_and_then(context, findings);
    between_modes(context, findings);
    single_passes(context, findings);
    engines(context, findings);
}

pub(crate) const WHY: &str =
    "this evaluates with gradients enabled: activations are saved for a backward pass that never comes";
pub(crate) const HELP: &str = "run it under `with torch.no_grad():`";

/// Forward passes that certainly record gradients.
fn recorded(facts: &Facts, function: FunctionId) -> impl Iterator<Item = &Op> {
    facts.ops.iter().filter(move |op| {
        op.kind == OpKind::Forward && op.site.function == function && op.site.grad == Grad::On
    })
}

/// Finds functions and loops that skip the backward pass in a phase.
fn phases(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut seen: Vec<Span> = Vec::new();
    for op in &facts.ops {
        let OpKind::Backward(backward) = &op.kind else { continue };
        if op.via.is_some()
            || backward.managed
            || op.site.looped.is_none() && facts.function(op.site.function).name.is_empty()
        {
            continue;
        }
        let Some(phase) = facts.guards_of(op.site.guard).find_map(|id| phase(context, id)) else { continue };
        let body = context.slice(facts.function(op.site.function).span);
        // The function chooses the mode itself.
        let own = if facts.function(op.site.function).name.is_empty() { facts.text.as_ref() } else { body };
        if chooses_mode(facts, own, op.site.function) {
            continue;
        }
        // A branch on the phase around the forward pass may choose the mode as well.
        let depends = |forward: &Op| {
            facts
                .guards_of(forward.site.guard)
                .any(|id| words(context.slice(facts.guard(id).test)).any(|word| word == phase.name))
        };
        let both = recorded(facts, op.site.function).find(|forward| {
            forward.site.looped == op.site.looped && forward.site.order < op.site.order && !depends(forward)
        });
        let Some(forward) = both else { continue };
        // A called function that differentiates by itself needs gradients in each phase.
        let adapts = facts.ops.iter().any(|other| {
            other.site.function == op.site.function && other.via.is_some() && other.kind.differentiates()
        });
        // The other branch of the test may differentiate as well.
        let test = |id: GuardId| (facts.guard(id).test, facts.guard(id).negated);
        let around: Vec<(Span, bool)> = facts.guards_of(op.site.guard).map(test).collect();
        let both = facts.ops.iter().filter(|other| backwards_of(other)).any(|other| {
            other.site.function == op.site.function
                && facts
                    .guards_of(other.site.guard)
                    .map(test)
                    .any(|(span, negated)| around.contains(&(span, !negated)))
        });
        if adapts || both {
            continue;
        }
        for at in evaluating(context, op, &phase) {
            let span = forward.call.unwrap_or(forward.span);
            if !seen.contains(&span) {
                seen.push(span);
                let found = findings.report(span, WHY).help(HELP);
                if let Some(at) = at {
                    found.label(at, "this evaluates");
                }
            }
        }
    }
}

/// Returns `true` if a function sets the autograd mode by a value; `set_grad_enabled(True)` always turns it
/// on.
fn chooses_mode(facts: &Facts, text: &str, function: FunctionId) -> bool {
    let always_on = facts.calls.iter().filter(|call| {
        call.is("torch.set_grad_enabled")
            && call.site.function == function
            && call.argument(0, "mode").is_some_and(|mode| mode.value.kind == Kind::Bool(true))
    });
    // `with torch.enable_grad() if training else torch.no_grad():`
    let chosen =
        text.lines().any(|line| line.contains("_grad") && line.contains(" if ") && line.contains(" else "));
    chosen || text.matches("set_grad_enabled").count() > always_on.count()
}

/// Meaning of a branch, if it is that of a phase.
fn phase<'a>(context: &'a Context<'_>, id: GuardId) -> Option<Phase<'a>> {
    let guard = context.facts.guard(id);
    let test = context.slice(guard.test).trim_matches(['(', ')']);
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    // `train = optimizer is not None` earlier in the function
    let test = flag_of(context, guard.test).unwrap_or(test);
    if let Some(name) = test.strip_suffix(" is not None").filter(|name| is_name(name)) {
        return Some(Phase { name, texts: Vec::new(), runs: !guard.negated, is_presence: true });
    }
    let (name, texts, runs) = if let Some(name) = test.strip_prefix("not ") {
        (name.trim(), Vec::new(), false)
    } else if test.contains("==") {
        // `mode == "train" or mode == "train+log"`
        let compared: Option<Vec<(&str, &str)>> =
            test.split(" or ").map(|part| part.split_once("==")).collect();
        let compared = compared?;
        let name = compared.first()?.0.trim();
        if !compared.iter().all(|(other, _)| other.trim() == name) {
            return None;
        }
        (name, compared.iter().map(|(_, text)| text.trim().trim_matches(['"', '\''])).collect(), true)
    } else {
        (test, Vec::new(), true)
    };
    is_name(name).then_some(Phase { name, texts, runs: runs != guard.negated, is_presence: false })
}

/// Test that a flag holds, which the function assigns before: `train = optimizer is not None`.
fn flag_of<'a>(context: &'a Context<'_>, test: Span) -> Option<&'a str> {
    let name = context.slice(test);
    let before = &context.facts.text[..test.start as usize];
    let line = before.lines().rev().take(80).find_map(|line| memfit_source::assigned_text(line, name))?;
    Some(line.trim().trim_matches(['(', ')'])).filter(|line| line.ends_with(" is not None"))
}

/// Places that run the other phase: calls of the function, or, for a loop over phases, the forward pass
/// (`None`).
fn evaluating(context: &Context<'_>, op: &Op, phase: &Phase<'_>) -> Vec<Option<Span>> {
    let facts = context.facts;
    let function = facts.function(op.site.function);
    let targets = |id: LoopId| facts.looped(id).targets.iter().any(|name| name == phase.name);
    if phase.texts.iter().any(|text| text.contains("train")) && facts.enclosing(op.site.looped).any(targets) {
        return vec![None];
    }
    // `for part, is_train in [(train_part, True), (valid_part, False)]:`
    let takes_both = |id: LoopId| {
        let found = facts.looped(id);
        let named = |truth: &str| words(context.slice(found.iterable)).filter(|word| *word == truth).count();
        targets(id)
            && matches!(found.iterable_kind, IterableKind::Literal(_))
            && phase.texts.is_empty()
            && named("True") > 0
            && named("False") > 0
    };
    if facts.enclosing(op.site.looped).any(takes_both) {
        return vec![None];
    }
    let Some(position) = function.parameters.iter().position(|name| name == phase.name) else {
        return Vec::new();
    };
    let last = function.name.rsplit('.').next().unwrap_or_default();
    let skipped = usize::from(function.parameters.first().is_some_and(|name| name == "self"));
    let calls = facts.calls.iter().filter(|call| {
        call.function == Some(op.site.function)
            || call.function.is_none()
                && !call.receiver.as_ref().is_some_and(|receiver| receiver.value.is_module())
                && context.slice(call.callee).rsplit('.').next().is_some_and(|name| name == last)
    });
    // `test = partial(run, train=False)`
    let partial = facts.calls.iter().filter(|call| {
        let of = call.arguments.first().map(|first| &first.value.kind);
        call.is("functools.partial") && of == Some(&Kind::Function(op.site.function))
    });
    let switched = partial.filter(|call| {
        call.keyword(phase.name).is_some_and(|given| given.value.truth() == Some(!phase.runs))
    });
    let held: Vec<Option<Span>> =
        switched.filter(|_| phase.texts.is_empty()).map(|call| Some(call.span)).collect();
    if !held.is_empty() {
        return vec![None];
    }
    calls
        .filter(|call| call.site.grad == Grad::On && !context.may_be_without_grad(call.site.function))
        .filter(|call| {
            let given =
                position.checked_sub(skipped).and_then(|position| call.argument(position, phase.name));
            if phase.is_presence {
                let missing = given.is_none_or(|argument| argument.value.kind == Kind::None);
                return phase.runs && missing && !call.is_open();
            }
            given.is_some_and(|argument| match &argument.value.kind {
                Kind::Bool(truth) if phase.texts.is_empty() => *truth != phase.runs,
                Kind::Str(given) if !phase.texts.is_empty() => phase.texts.contains(&&**given) != phase.runs,
                _ => false,
            })
        })
        .map(|call| Some(call.span))
        .collect()
}

/// Returns `true` if a model is in evaluation mode at a site of the same function.
fn is_evaluating(facts: &Facts, site: &Site, model: &str) -> bool {
    mode_at(facts, site, model).is_some_and(|last| last.kind == OpKind::EvalMode)
}

/// Finds `model.sample(…)` in evaluation mode, whose loop calls the model.
fn methods(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in &facts.calls {
        let (Some(receiver), Some(function)) = (&call.receiver, called(context, call)) else { continue };
        let model = context.slice(receiver.span);
        if call.site.grad != Grad::On
            || !is_evaluating(facts, &call.site, model)
            || facts.function(function).grad == Grad::Off
            || context.may_be_without_grad(call.site.function)
        {
            continue;
        }
        let loops = recorded(facts, function).any(|op| op.site.looped.is_some() || op.deep);
        let trains = facts.ops.iter().any(|op| op.site.function == function && op.kind.differentiates());
        if loops && !trains {
            findings.report(call.span, WHY).help(HELP);
        }
    }
}

/// Method of a model of this file that a call runs.
fn called(context: &Context<'_>, call: &Call) -> Option<FunctionId> {
    let facts = context.facts;
    let receiver = call.receiver.as_ref()?;
    let name = call.method.as_deref()?;
    if call.function.is_some() || !receiver.value.is_module() {
        return call.function.filter(|_| receiver.value.is_module());
    }
    let ends = format!(".{name}");
    let mut found = facts.function_ids().filter(|id| {
        let function = facts.function(*id);
        function.name.ends_with(&ends) && function.class.is_some_and(|class| facts.class(class).is_module)
    });
    found.next().filter(|_| found.next().is_none())
}

/// Finds test passes in a branch of a training loop.
fn now_and_then(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let backwards = || facts.ops.iter().filter(|op| matches!(op.kind, OpKind::Backward(_)));
    let mut seen: Vec<GuardId> = Vec::new();
    for op in facts.ops.iter().filter(|op| is_pass(context, op)) {
        if op.site.grad != Grad::On || context.may_be_without_grad(op.site.function) {
            continue;
        }
        // Samples may be drawn in loops of their own.
        let around = facts.enclosing(op.site.looped).find_map(|id| {
            let trains = |other: &&Op| other.site.looped == Some(id);
            Some((id, backwards().find(trains)?))
        });
        let Some((looped, backward)) = around else { continue };
        let around: Vec<GuardId> = facts.guards_of(backward.site.guard).collect();
        let branch = facts.guards_of(op.site.guard).find(|id| {
            let guard = facts.guard(*id);
            !around.contains(id)
                && !guard.negated
                && guard.looped == Some(looped)
                && guard.what.counted.is_some()
        });
        let Some(branch) = branch.filter(|branch| !seen.contains(branch)) else { continue };
        let differentiates = facts.ops.iter().any(|other| {
            matches!(other.kind, OpKind::Backward(_) | OpKind::Step { .. } | OpKind::AutogradGrad)
                && facts.guards_of(other.site.guard).any(|id| id == branch)
        });
        // A function that the branch calls may run the pass.
        let at = op.call.unwrap_or(op.span);
        let inputs = context.slice(at).split_once('(').map_or("", |(_, inputs)| inputs);
        // A sampler calls the model again and again.
        let samples =
            op.via.is_none() && op.site.looped != Some(looped) && !is_trained_through(facts, op.span);
        let evaluates = names_evaluation(inputs) || is_evaluating(facts, &op.site, &op.receiver) || samples;
        if differentiates || !evaluates || op.via.is_some_and(|id| looks_after_itself(context, op, id)) {
            continue;
        }
        seen.push(branch);
        findings.report(at, WHY).label(backward.span, "the training step of the same loop").help(HELP);
    }
}

/// Returns `true` if a called function that runs a pass sets the mode of gradients or of its models itself:
/// it is looked at by itself, where it is defined.
fn looks_after_itself(context: &Context<'_>, op: &Op, called: FunctionId) -> bool {
    let facts = context.facts;
    let switches =
        |other: &&Op| other.call == op.call && matches!(other.kind, OpKind::EvalMode | OpKind::TrainMode);
    let callee = context.slice(op.call.unwrap_or(op.span)).split('(').next().unwrap_or_default();
    let said = callee.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    facts.ops.iter().filter(switches).any(|other| other.via.is_some())
        || ["val", "eval", "test"].iter().any(|word| said.contains(word))
        || called != FunctionId::MODULE
            && (wants_gradients(context, called) || facts.function(called).grad == Grad::Off)
}

/// `test_x`, `val_images.to(device)`
fn names_evaluation(inputs: &str) -> bool {
    inputs.split(|c: char| !c.is_alphanumeric()).any(|word| {
        ["test", "val", "valid", "validation", "eval"].contains(&word.to_ascii_lowercase().as_str())
    })
}

/// Finds the process function of an Ignite engine that evaluates.
fn engines(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in facts.calls.iter().filter(|call| call.is("ignite.engine.Engine")) {
        let Some(Kind::Function(function)) = call.arguments.first().map(|first| &first.value.kind) else {
            continue;
        };
        let here = |op: &&Op| op.site.function == *function;
        let evaluates = facts.ops.iter().filter(here).any(|op| op.kind == OpKind::EvalMode);
        let trains = facts.ops.iter().filter(here).any(|op| matches!(op.kind, OpKind::Backward(_)));
        if let Some(forward) = recorded(facts, *function).next().filter(|_| evaluates && !trains) {
            findings.report(forward.span, WHY).label(call.span, "in this engine").help(HELP);
        }
    }
}

/// Words in the text of functions that need gradients in evaluation mode.
const WANTS: &[&str] =
    &["requires_grad", "requires_grad_", "autograd", "backward", "grad", "set_grad_enabled", "attack"];

pub(crate) fn wants_gradients(context: &Context<'_>, function: FunctionId) -> bool {
    let text = context.slice(context.facts.function(function).span);
    let mut code = text.lines().map(|line| line.split('#').next().unwrap_or(line));
    code.any(|line| words(line).any(|word| WANTS.contains(&word)))
}

/// Returns `true` if a loop feeds a model with what unknown code computes from a model, such as an attack
/// that differentiates by its inputs: `adversary = PGD(net)`, `adv = adversary(x, y)`, `net(adv)`.
pub(crate) fn feeds_back(context: &Context<'_>, looped: LoopId) -> bool {
    let facts = context.facts;
    let takes_model = |call: &Call| call.arguments.iter().any(|given| given.value.is_module());
    let is_unknown = |call: &Call| {
        let name = context.slice(call.callee).rsplit('.').next().unwrap_or_default();
        call.function.is_none()
            && call.result.is_unknown()
            && context.project.methods.get(name).is_none_or(|known| known.others)
    };
    let here = || facts.calls.iter().filter(move |call| facts.within(&call.site, looped));
    here().filter(|call| is_unknown(call)).any(|call| {
        let owner = context.slice(call.receiver.as_ref().map_or(call.callee, |receiver| receiver.span));
        let by_owner = || {
            facts
                .calls
                .iter()
                .any(|made| takes_model(made) && is_unknown(made) && facts.bound_to(made.span) == Some(owner))
        };
        let Some(bound) = facts.bound_to(call.span) else { return false };
        let feeds = |pass: &&Op| {
            pass.kind == OpKind::Forward
                && pass.site.order > call.site.order
                && facts.within(&pass.site, looped)
                && words(context.slice(pass.span)).skip(1).any(|word| words(bound).any(|own| own == word))
        };
        (takes_model(call) || by_owner()) && facts.ops.iter().any(|pass| feeds(&pass))
    })
}

/// Returns `true` if a backward pass of the text goes through what an operation computes.
pub(crate) fn is_trained_through(facts: &Facts, pass: Span) -> bool {
    let made = facts.calls.iter().find(|call| call.span == pass).map(|call| &call.result.graph);
    backwards(facts).any(|(_, pass)| made.is_none_or(|made| pass.loss.graph.overlaps(made)))
}

/// Finds a pass of a training loop that is run between `eval()` and `train()`, and is not trained through.
fn between_modes(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut functions: Vec<FunctionId> = facts
        .ops
        .iter()
        .filter(|op| op.kind == OpKind::EvalMode && op.site.looped.is_some())
        .map(|op| op.site.function)
        .collect();
    functions.sort_unstable();
    functions.dedup();
    for pass in functions.into_iter().flat_map(|id| passes(context, id)) {
        let Some(looped) = pass.site.looped.filter(|_| !pass.deep || !pass.is_own) else { continue };
        let same = |other: &&Op| other.site.looped == Some(looped) && other.via.is_none();
        // The pass lies between the modes, and the backward pass outside of them.
        let Some(begun) = mode_of(facts, &pass).filter(|last| last.kind == OpKind::EvalMode) else {
            continue;
        };
        let restored = facts.ops.iter().filter(same).find(|other| {
            other.site.order > pass.site.order
                && other.receiver == begun.receiver
                && matches!(other.kind, OpKind::EvalMode | OpKind::TrainMode)
        });
        let Some(restored) = restored.filter(|next| next.kind == OpKind::TrainMode) else { continue };
        if begun.via.is_some() || begun.site.looped != Some(looped) {
            continue;
        }
        let between = |site: &Site| (begun.site.order..restored.site.order).contains(&site.order);
        let passed = |other: &&Op| other.site.looped == Some(looped) && backwards_of(other);
        let trains = facts.ops.iter().filter(passed).any(|other| between(&other.site));
        let Some(trained) = trained_in(context, looped).filter(|site| !trains && !between(site.1)) else {
            continue;
        };
        let known = findings.found.iter().any(|found| found.span == pass.span);
        let function = pass.site.function;
        if known
            || is_trained_through(facts, pass.span)
            || wants_gradients(context, function)
                && facts.ops.iter().any(|other| other.kind == OpKind::AutogradGrad)
            || context.project.differentiates
            || context.may_be_without_grad(function)
        {
            continue;
        }
        findings.report(pass.span, WHY).label(trained.0, "the training step of the same loop").help(HELP);
    }
}

/// Training step of a loop: its backward pass, or the step of an optimizer that a method of other files
/// prepares.
fn trained_in<'a>(context: &'a Context<'_>, looped: LoopId) -> Option<(Span, &'a Site)> {
    let ops = || context.facts.ops.iter().filter(|op| op.site.looped == Some(looped));
    let passed = ops().find(|op| backwards_of(op));
    let stepped = || ops().find(|op| matches!(op.kind, OpKind::Step { .. }));
    passed.or_else(stepped).map(|op| (op.call.unwrap_or(op.span), &op.site))
}

const fn backwards_of(op: &Op) -> bool {
    matches!(op.kind, OpKind::Backward(_))
}

/// Returns `true` for a method of a test case.
pub(crate) fn is_tested(facts: &Facts, id: FunctionId) -> bool {
    let function = facts.function(id);
    let class = function.class.map(|class| facts.class(class));
    let is_case = class.is_some_and(|class| class.bases.iter().any(|base| base.ends_with("TestCase")));
    let last = function.name.rsplit('.').next().unwrap_or_default();
    // A test function takes fixtures, and asserts.
    is_case
        || last.trim_start_matches('_').starts_with("test_") && facts.slice(function.span).contains("assert ")
}

/// Returns `true` if a training program calls a function again and again: from a loop, from a function that
/// trains, beside a method that trains, or from the training of another file.
pub(crate) fn runs_in_training(context: &Context<'_>, id: FunctionId) -> bool {
    let facts = context.facts;
    let trains = |function: FunctionId| {
        facts.ops.iter().any(|op| op.site.function == function && matches!(op.kind, OpKind::Backward(_)))
    };
    let class = facts.function(id).class;
    let beside = class.is_some()
        && facts.function_ids().any(|other| facts.function(other).class == class && trains(other));
    let repeats =
        |site: &Site| site.looped.is_some() || site.function != FunctionId::MODULE && trains(site.function);
    beside || facts.calls_of(id).any(|call| repeats(&call.site)) || context.is_trained_by_others(id)
}

/// Returns `true` if what a function hands on may be trained on: a backward pass goes through it, no call of
/// the text gets it, or one hands it on further.
fn is_trained_on(facts: &Facts, id: FunctionId) -> bool {
    let mut calls = facts.calls_of(id).peekable();
    calls.peek().is_none()
        || calls.any(|call| {
            let returned = facts.function(call.site.function).returned.overlaps(&call.result.graph);
            is_trained_through(facts, call.span) || returned
        })
}

/// Finds functions that put models into evaluation mode, call one outside of a loop, and hand no graph on
/// that is trained on.
fn single_passes(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for id in facts.function_ids().filter(|id| *id != FunctionId::MODULE) {
        let function = facts.function(id);
        let ops = || facts.ops.iter().filter(move |op| op.site.function == id);
        let trains = ops()
            .any(|op| matches!(op.kind, OpKind::Backward(_) | OpKind::Step { .. } | OpKind::AutogradGrad));
        if trains
            || function.hands_on && is_trained_on(facts, id)
            || function.grad != Grad::On
            || function.name.ends_with("forward")
            || is_tested(facts, id)
            || context.project.differentiates
            || wants_gradients(context, id)
            || context.may_be_without_grad(id)
        {
            continue;
        }
        let kept = facts.stores.iter().any(|store| {
            store.site.function == id && store.target.contains('.') && !store.value.graph.is_none()
        });
        if kept || !ops().any(|op| op.kind == OpKind::EvalMode) {
            continue;
        }
        let is_called_often = runs_in_training(context, id);
        let evaluated = passes(context, id).into_iter().find_map(|pass| {
            let mode = mode_of(facts, &pass).filter(|mode| mode.kind == OpKind::EvalMode)?;
            let always = facts
                .guards_of(mode.site.guard)
                .all(|guard| facts.guards_of(pass.site.guard).any(|other| other == guard));
            let is_bound = facts.calls.iter().any(|call| call.span == pass.span && !call.is_statement);
            let is_large = pass.deep || pass.weights.is_some_and(|weights| facts.loops(weights));
            // What hands its result on puts the model back into training mode, so that nobody trains on it.
            let restores = || {
                ops().any(|op| {
                    op.kind == OpKind::TrainMode
                        && op.receiver == mode.receiver
                        && op.site.order > pass.site.order
                        && op.via.is_none()
                })
            };
            let found = pass.site.looped.is_none()
                && always
                && is_bound
                && (is_called_often || is_large)
                && (!function.hands_on || restores());
            found.then_some((pass.span, mode))
        });
        let Some((at, mode)) = evaluated else { continue };
        if !findings.found.iter().any(|found| found.span == at) {
            findings.report(at, WHY).label(mode.span, "the model is put into evaluation mode").help(HELP);
        }
    }
}
