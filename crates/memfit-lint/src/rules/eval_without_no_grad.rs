//! # eval-without-no-grad
//!
//! ## What it does
//! Finds evaluation that calls a model with gradients on: loops, single passes between `eval()` and
//! `train()` in a training loop, and functions that training calls, of which no graph leaves. The model may
//! be called by a method of the same object, by a function of another module, or by a method that only other
//! classes of the project define. Found as well: sampling in loops whose results carry no graph, samplers
//! whose forward pass calls a model in a loop, the branch of a step that does not train, and functions that
//! loops call, in this file or in another one, and whose results carry no graph, such as the one by which an
//! agent acts. What chooses the branch may be a flag, a phase, whether there is an optimizer, or an argument
//! that `functools.partial` holds.
//!
//! ## Why
//! Each forward pass saves its activations for a backward pass that never comes. They are freed when the
//! output's name is bound again, after the next forward pass: at the peak, the activations of two passes are
//! alive, whatever the number of batches. If the loop collects the outputs, the activations of all passes
//! stay. Measured with activations of 32 MiB: the peak of one batch is 40 MiB, of two 72 MiB, of five 72 MiB.
//! Under `torch.no_grad()` nothing is saved, and it is 25 MiB.
//!
//! ## Example
//! ```python
//! model.eval()
//! for x in val_loader:
//!     out = model(x)
//! ```
//! Use instead:
//! ```python
//! model.eval()
//! with torch.no_grad():
//!     for x in val_loader:
//!         out = model(x)
//! ```
//!
//! ## Fix safety
//! Unsafe: the function is decorated with `@torch.no_grad()`, which disables gradients for everything in it.
//!
//! ## References
//! - [torch.no_grad](https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html)

use memfit_source::{
    Facts, FunctionId, GraphState, IterableKind, LoopId, Op, OpKind, Overlap, Span, Store, StoreKind,
};

use crate::data::is_over_data;
use crate::passes::{Pass, is_fallback, is_fed_by, is_switched_off, is_volatile, mode_of, passes, runs_once};
use crate::query::{grows, words};
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "eval-without-no-grad", severity: Severity::Error, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut seen: Vec<LoopId> = Vec::new();
    for pass in looped_passes(context) {
        let Some(looped) = pass.site.looped else { continue };
        if seen.contains(&looped)
            || runs_once(context, looped)
            || crate::evaluation::is_tested(facts, pass.site.function)
            || is_fallback(context, &pass)
            || !evaluates(context, &pass, looped)
        {
            continue;
        }
        seen.push(looped);
        let message = match collecting(facts, looped) {
            Some(store) => format!(
                "this evaluates with gradients enabled: `{}` keeps the activations of every pass for a backward pass that never comes",
                store.target
            ),
            None => "this evaluates with gradients enabled: activations of up to two passes are kept for a backward pass that never comes".to_owned(),
        };
        findings
            .report(pass.span, message)
            .label(facts.looped(looped).header, "in this loop")
            .help("run the loop under `with torch.no_grad():`")
            .fix(decorate(context, pass.site.function));
    }
    crate::evaluation::report(context, findings);
    crate::samples::report(context, findings);
    findings.withdraw(|span| is_volatile(context, span) || is_unpickled(context, span));
}

/// Returns `true` for the pass of a model that comes out of a pickle: its parameters may require no
/// gradients, as those of a moving average that was pickled.
fn is_unpickled(context: &Context<'_>, span: Span) -> bool {
    let facts = context.facts;
    let op = facts.ops.iter().find(|op| op.call.unwrap_or(op.span) == span);
    let Some(model) = op.map(|op| op.receiver.as_str()).filter(|name| !name.is_empty()) else { return false };
    ["pickle.load", "pickle.loads", "dill.load", "joblib.load"]
        .iter()
        .any(|path| facts.calls.iter().any(|call| call.is(path) && facts.bound_to(call.span) == Some(model)))
}

/// Passes with gradients on in loops: those that functions run by themselves first.
fn looped_passes<'a>(context: &'a Context<'_>) -> Vec<Pass<'a>> {
    let facts = context.facts;
    let mut functions: Vec<FunctionId> = facts.loops.iter().map(|looped| looped.function).collect();
    functions.sort_unstable();
    functions.dedup();
    let mut found: Vec<Pass<'_>> = functions
        .into_iter()
        .flat_map(|id| passes(context, id))
        .filter(|pass| pass.site.looped.is_some())
        .collect();
    found.sort_by_key(|pass| (!pass.is_own, pass.site.order));
    found
}

/// Store that collects values with their graphs in a loop.
fn collecting(facts: &Facts, looped: LoopId) -> Option<&Store> {
    facts.stores.iter().find(|store| {
        matches!(store.kind, StoreKind::Append | StoreKind::Join)
            && store.graph_then == GraphState::Live
            && facts.within(&store.site, looped)
            && grows(facts, store).is_some()
    })
}

fn evaluates(context: &Context<'_>, pass: &Pass<'_>, looped: LoopId) -> bool {
    let facts = context.facts;
    let function = pass.site.function;
    // A loop in a function that trains or differentiates is no evaluation.
    let outermost = facts.enclosing(Some(looped)).last().unwrap_or(looped);
    let differentiates = facts.ops.iter().any(|other| {
        let near = facts.within(&other.site, looped)
            || other.site.function == function && !facts.within(&other.site, outermost);
        facts.within(&other.site, looped) && (other.kind.updates() || other.kind == OpKind::TrainMode)
            || near && matches!(other.kind, OpKind::AutogradGrad)
    });
    // Models that differentiate or disable gradients themselves are excluded.
    if context.project.differentiates
        || is_switched_off(facts)
        || is_dropped(context, pass)
        || adapts(context, pass)
        || is_frozen_before(context, pass)
    {
        return false;
    }
    let body = context.slice(facts.looped(looped).span);
    let wants = [
        "requires_grad",
        "autograd",
        "backward",
        ".grad",
        "attack",
        "train_step",
        "training_step",
        "optimizer",
    ];
    // The result of an environment's or a sampler's step is used, that of an optimizer's is not.
    let steps = facts
        .calls
        .iter()
        .any(|call| call.is_statement && call.is_method("step") && facts.within(&call.site, looped));
    // A number of steps, which the file counts, trains nothing: `model(x, train_step=train_step)`.
    let is_counted = |word: &str| {
        facts
            .text
            .lines()
            .filter_map(|line| line.split_once("+= 1"))
            .any(|(target, _)| words(target).last() == Some(word))
    };
    if differentiates
        || steps
        || wants.iter().any(|word| body.contains(word) && !is_counted(word))
        || context.may_be_without_grad(function)
        || crate::evaluation::feeds_back(context, looped)
    {
        return false;
    }
    let eval_mode = mode_of(facts, pass).is_some_and(|last| last.kind == OpKind::EvalMode);
    let over = facts.looped(looped);
    let named = word_of_evaluation(context.slice(over.iterable)) && facts.over_batches(looped)
        || word_of_evaluation(context.slice(over.iterable))
            && !over.is_while
            && is_plain_name(context.slice(over.iterable));
    let within_batches =
        facts.enclosing(Some(looped)).any(|id| is_over_data(context, id) || moves_targets(context, id));
    // An evaluation may go over users or files, one in each iteration. What predicts may train as well.
    let goes_over = || {
        over.iterable_kind == IterableKind::Other
            && tests(&facts.function(function).name)
            && is_fed_by(context, pass, looped)
    };
    let said =
        names_evaluation(&facts.function(function).name) && (within_batches || !over.is_while && goes_over());
    let plays = over.is_while && names_evaluation(&facts.function(function).name);
    eval_mode && (!over.is_while || plays) && is_fed_by(context, pass, looped) || named && pass.is_own || said
}

/// Returns `true` if a function that the pass is in sets the mode itself, or differentiates, as one does that
/// adapts a model to each task.
fn adapts(context: &Context<'_>, pass: &Pass<'_>) -> bool {
    let facts = context.facts;
    let by = facts.ops.iter().filter(|op| op.call.unwrap_or(op.span) == pass.span).filter_map(|op| op.via);
    let called = facts.calls.iter().filter(|call| call.span == pass.span).filter_map(|call| call.function);
    by.chain(called)
        .filter(|id| *id != FunctionId::MODULE)
        .any(|id| crate::evaluation::wants_gradients(context, id))
}

/// Returns `true` if the function sets the model's parameters to require no gradients before the pass, as far
/// as it does not set them back.
fn is_frozen_before(context: &Context<'_>, pass: &Pass<'_>) -> bool {
    let facts = context.facts;
    let mut sets = facts.ops.iter().filter(|op| {
        facts.precedes(&op.site, pass.site)
            && matches!(op.kind, OpKind::RequireGrad { .. })
            && (op.receiver == pass.receiver
                || pass.weights.is_some_and(|weights| facts.overlap(&op.weights, weights) == Overlap::Yes))
    });
    sets.next_back().is_some_and(|last| last.kind != OpKind::RequireGrad { on: Some(true) })
}

/// Returns `true` for a loop that moves its variables to the GPU: they are batches.
fn moves_targets(context: &Context<'_>, looped: LoopId) -> bool {
    let facts = context.facts;
    let targets = &facts.looped(looped).targets;
    facts.calls.iter().any(|call| {
        (call.is_method("to") || call.is_method("cuda"))
            && call.result.device.is_gpu()
            && facts.within(&call.site, looped)
            && call
                .receiver
                .as_ref()
                .is_some_and(|of| targets.iter().any(|name| name == context.slice(of.span)))
    })
}

/// Returns `true` if the model's output is not bound to a name, so that it is freed before the next forward
/// pass. A function of the text may bind it until it returns.
fn is_dropped(context: &Context<'_>, pass: &Pass<'_>) -> bool {
    let facts = context.facts;
    let is_statement = |span: Span| facts.calls.iter().any(|call| call.span == span && call.is_statement);
    let is_bound = |op: &Op| {
        let is_it =
            op.kind == OpKind::Forward && op.call == Some(pass.span) && op.via != Some(FunctionId::MODULE);
        is_it && !op.deep && facts.bound_to(op.span).is_some()
    };
    is_statement(pass.span) && !facts.ops.iter().any(is_bound)
}

fn is_plain_name(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// `evaluate`, `Trainer.validate_epoch`, `test`
fn names_evaluation(function: &str) -> bool {
    let last = function.rsplit('.').next().unwrap_or(function);
    let mut words = last.trim_start_matches('_').split('_');
    let first = words.next().unwrap_or(last);
    let whole = ["evaluate", "evaluation", "validate", "validation", "inference"];
    ["evaluate", "eval", "validate", "validation", "valid", "val", "test", "predict", "inference"]
        .contains(&first)
        || words.any(|word| whole.contains(&word))
}

/// `evaluate`, `Trainer.validate_epoch`, not `predict`
fn tests(function: &str) -> bool {
    let last = function.rsplit('.').next().unwrap_or(function);
    let first = last.trim_start_matches('_').split('_').next().unwrap_or(last);
    ["evaluate", "eval", "validate", "validation", "valid", "val", "test"].contains(&first)
}

/// `val_loader`, `self.test_dl`, `enumerate(eval_dataloader)`
fn word_of_evaluation(text: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric()).any(|word| {
        let lower = word.to_ascii_lowercase();
        ["val", "valid", "validation", "test", "eval", "evaluation", "valloader", "testloader", "evalloader"]
            .contains(&lower.as_str())
    })
}

fn decorate(context: &Context<'_>, id: FunctionId) -> Option<Fix> {
    let function = context.facts.function(id);
    let imported =
        context.facts.text.contains("import torch\n") || context.facts.text.contains("import torch\r");
    if function.name.is_empty()
        || !imported
        || context.facts.ops.iter().any(|op| op.site.function == id && matches!(op.kind, OpKind::Backward(_)))
    {
        return None;
    }
    let (start, blank) = context.facts.line_start(function.span.start);
    Fix::unsafe_(
        "Decorate the function with `@torch.no_grad()`",
        vec![Edit::insert(start, format!("{blank}@torch.no_grad()\n"))],
    )
}
