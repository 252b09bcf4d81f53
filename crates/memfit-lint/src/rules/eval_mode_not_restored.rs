//! # eval-mode-not-restored
//!
//! ## What it does
//! Finds training loops in which the model is switched to evaluation mode and never back, by the loop or by a
//! function that it calls. A model that no optimizer of the loop holds is left alone: what is trained may be
//! its input. So is one that the training function itself puts into evaluation mode, as for a classifier on
//! frozen features. It is a note where it is not certain that the same model is trained, or where an option
//! decides. Found as well: a step for several phases that only ever puts the model into evaluation mode.
//!
//! ## Why
//! From the second iteration on, the model trains in evaluation mode: dropout is off and batch normalisation
//! uses running statistics. The result is a different model, and the first iteration's memory use is not
//! representative. Measured on `Dropout(0.5)`: of 256 values 0 are dropped, and 125 in training mode.
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
//! No fix: it changes the training results, so the author must decide.
//!
//! ## References
//! - [torch.nn.Module.eval](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html)

use memfit_source::{
    Call, ClassId, Facts, FunctionId, GuardId, Kind, LoopId, Op, OpKind, Overlap, StoreKind,
};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "eval-mode-not-restored", severity: Severity::Error, fixes: Fixes::Never, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    in_phases(context, findings);
    for op in facts.ops.iter().filter(|op| op.kind == OpKind::EvalMode) {
        // Loop around the evaluation that also trains.
        let Some(looped) = facts.enclosing(op.site.looped).find(|id| facts.trains(*id)) else { continue };
        // The same model is switched to evaluation mode and trained.
        let trained = facts.ops_in(looped).any(|other| {
            matches!(other.kind, OpKind::Forward)
                && (other.receiver == op.receiver
                    || op.via.is_some() && facts.overlap(&other.weights, &op.weights) == Overlap::Yes)
                && other.site.grad == memfit_source::Grad::On
                && !is_of_one_call(op, other)
        }) && !is_apart(facts, op, looped);
        let restored = facts.ops_in(looped).any(|other| other.kind == OpKind::TrainMode);
        let text = context.slice(facts.looped(looped).span);
        let maybe = text.contains(".train(")
            || text.contains("train_epoch")
            || text.contains("train_one")
            || text.contains(".training");
        if !trained
            || restored
            || maybe
            || !facts.ops.iter().any(|other| other.kind == OpKind::TrainMode || other.site.looped.is_some())
        {
            continue;
        }
        // An iteration that ends with the evaluation and leaves the loop is the last.
        if ends_loop(context, op, looped)
            || is_modeless(context, op)
            || is_never_stepped(facts, op, looped)
            || is_meant(facts, op, looped)
        {
            continue;
        }
        let found = facts.looped(looped);
        // Options of the object may keep the evaluation out of a training.
        let by_option = facts.guards_of(op.site.guard).map(|id| facts.guard(id)).any(|guard| {
            guard.what.counted.is_none()
                && context.slice(guard.test).trim_start_matches("not ").starts_with("self.")
        });
        // A backward pass of the loop certainly reaches the model.
        let is_trained =
            facts.ops_in(looped).filter(|pass| matches!(pass.kind, OpKind::Backward(_))).any(|pass| {
                facts.overlap(&pass.weights, &op.weights) == Overlap::Yes
                    || facts.ops_in(looped).any(|other| {
                        other.kind == OpKind::Forward
                            && other.receiver == op.receiver
                            && pass.graph.contains(&other.graph)
                    })
            });
        findings
            .report(op.span, format!("`{}` is not put back into training mode: from the second iteration on, it trains in evaluation mode", op.receiver))
            .note_unless(is_trained && !by_option)
            .label(found.header, "this loop trains")
            .help(format!("call `{}.train()` at the beginning of each iteration", op.receiver));
    }
}

/// Finds a step that evaluates in one phase and trains in another, with one forward pass for both, and that
/// puts the model into evaluation mode only: after the first evaluation, it trains in that mode.
fn in_phases(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let own = |op: &&Op| op.via.is_none() && op.site.function != FunctionId::MODULE;
    for eval in facts.ops.iter().filter(own).filter(|op| op.kind == OpKind::EvalMode) {
        let id = eval.site.function;
        let here = |op: &&Op| op.site.function == id && op.via.is_none();
        let Some(phase) = phase_of(context, eval) else { continue };
        let opposite = |op: &Op| {
            facts.guards_of(op.site.guard).filter_map(|guard| test_of(context, guard)).any(|other| {
                other.0 == phase.0
                    && (other.1 != phase.1 && other.2 == phase.2 || other.2 != phase.2 && other.1 && phase.1)
            })
        };
        let pass = facts.ops.iter().filter(here).find(|op| {
            matches!(op.kind, OpKind::Backward(_)) && op.site.order > eval.site.order && opposite(op)
        });
        // One forward pass for both phases, or a call of unknown code that gets the model.
        let text = context.slice(facts.function(id).span);
        let shared = facts.ops.iter().filter(|op| op.site.function == id).any(|op| {
            op.kind == OpKind::Forward
                && !opposite(op)
                && pass.is_some_and(|pass| (eval.site.order..pass.site.order).contains(&op.site.order))
        });
        let Some(pass) = pass.filter(|_| shared && !text.contains(".train(") && !text.contains(".training"))
        else {
            continue;
        };
        let mut loops =
            facts.calls_of(id).filter_map(|call| facts.enclosing(call.site.looped).last()).peekable();
        let Some(looped) = loops.peek().copied() else { continue };
        if loops.all(|id| !context.slice(facts.looped(id).span).contains(".train(")) {
            findings
                .report(eval.span, format!("`{}` is never put back into training mode: after this phase, it trains in evaluation mode", eval.receiver))
                .label(pass.span, "trained here, in another phase")
                .label(facts.looped(looped).header, "this loop runs both")
                .help(format!("call `{}.train()` in the other phase", eval.receiver));
        }
    }
}

/// Test of the innermost branch around an operation: what is tested, whether it has to hold, and what it is
/// compared with.
fn phase_of<'a>(context: &'a Context<'_>, op: &Op) -> Option<(&'a str, bool, &'a str)> {
    test_of(context, op.site.guard?)
}

fn test_of<'a>(context: &'a Context<'_>, id: GuardId) -> Option<(&'a str, bool, &'a str)> {
    let guard = context.facts.guard(id);
    let test = context.slice(guard.test).trim_matches(['(', ')']);
    let (name, is_not, value) = if let Some((name, value)) = test.split_once("==") {
        (name, false, value)
    } else if let Some((name, value)) = test.split_once("!=") {
        (name, true, value)
    } else {
        test.strip_prefix("not ").map_or((test, false, ""), |name| (name, true, ""))
    };
    let name = name.trim();
    let is_path = name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    (is_path && !name.is_empty()).then_some((name, guard.negated == is_not, value.trim()))
}

/// Returns `true` if one called function does both: its own passes evaluate.
fn is_of_one_call(op: &Op, other: &Op) -> bool {
    let is_elsewhere = op.span == other.span;
    op.via.is_some() && op.via == other.via && (is_elsewhere || op.via != Some(FunctionId::MODULE))
}

/// Returns `true` if a function that trains puts the model into evaluation mode first, as for a classifier on
/// frozen features: it trains in that mode on purpose.
fn is_meant(facts: &Facts, op: &Op, looped: LoopId) -> bool {
    facts.ops_in(looped).any(|mode| {
        let same_call =
            |other: &&Op| other.call.is_some() && other.call == mode.call && other.via == mode.via;
        let switches = || {
            facts
                .ops_in(looped)
                .filter(same_call)
                .filter(|other| matches!(other.kind, OpKind::EvalMode | OpKind::TrainMode))
        };
        let is_same =
            mode.receiver == op.receiver || facts.overlap(&mode.weights, &op.weights) == Overlap::Yes;
        let trains = facts.ops_in(looped).filter(same_call).any(|other| {
            matches!(other.kind, OpKind::Backward(_))
                && other.site.order > mode.site.order
                && switches()
                    .filter(|next| next.site.order < other.site.order)
                    .last()
                    .is_some_and(|last| last.site.order == mode.site.order)
        });
        // An attack differentiates, and steps nothing.
        let steps =
            || facts.ops_in(looped).filter(same_call).any(|other| matches!(other.kind, OpKind::Step { .. }));
        mode.kind == OpKind::EvalMode && is_same && trains && steps()
    })
}

/// Returns `true` if no backward pass of the loop reaches the model, for example a moving average of the
/// trained one.
fn is_apart(facts: &Facts, op: &Op, looped: LoopId) -> bool {
    let mut passes = facts.ops_in(looped).filter(|other| matches!(other.kind, OpKind::Backward(_)));
    passes.all(|backward| facts.overlap(&backward.weights, &op.weights) == Overlap::No)
}

/// Returns `true` if no optimizer of the loop may hold parameters of the model: the gradients are those of an
/// input, such as a patch or a perturbation.
fn is_never_stepped(facts: &Facts, op: &Op, looped: LoopId) -> bool {
    let holds = |step: &Op| match facts.overlap(&step.weights, &op.weights) {
        Overlap::No => false,
        Overlap::Yes => true,
        // `SGD([patch])`
        Overlap::Unknown => !facts.calls.iter().any(|call| {
            matches!(call.result.kind, Kind::Optimizer)
                && facts.bound_to(call.span) == Some(step.own_receiver())
                && call.arguments.first().is_some_and(|first| {
                    let given = facts.slice(first.value_span);
                    given.starts_with('[') && !given.contains('(') && !given.contains("param")
                })
        }),
    };
    let mut steps = facts.ops_in(looped).filter(|other| matches!(other.kind, OpKind::Step { .. })).peekable();
    let mut passes = facts.ops_in(looped).filter(|other| matches!(other.kind, OpKind::Backward(_)));
    match steps.peek() {
        Some(_) => !steps.any(holds),
        // A called function differentiates, and steps nothing.
        None => passes.all(|pass| pass.via.is_some()),
    }
}

/// Returns `true` if the loop is left after the evaluation.
fn ends_loop(context: &Context<'_>, op: &Op, looped: LoopId) -> bool {
    let found = context.facts.looped(looped);
    let here = op.call.unwrap_or(op.span);
    let rest = &context.facts.text[(here.end as usize).min(found.span.end as usize)..found.span.end as usize];
    // Lines of the same block.
    let depth = context.facts.line_start(here.start).1.len();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let block = rest
        .lines()
        .skip(1)
        .filter(|line| !line.trim().is_empty())
        .take_while(|line| indent(line) >= depth)
        .take(30);
    let guarded =
        context.facts.guards_of(op.site.guard).any(|id| context.facts.guard(id).looped == Some(looped));
    guarded && { block }
        .any(|line| matches!(line.trim(), "break" | "return") || line.trim().starts_with("return "))
}

/// Substrings in the names of layers and functions that behave differently in training and evaluation.
const MODES: &[&str] = &["drop", "norm", "rrelu", "transformer", "attention", "training", "quant"];

fn says_mode(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    MODES.iter().any(|word| lower.contains(word))
}

/// Returns `true` if all layers of the model are known and none behaves differently in training and
/// evaluation.
fn is_modeless(context: &Context<'_>, op: &Op) -> bool {
    let facts = context.facts;
    let same = |call: &&Call| {
        let made = &call.result.weights;
        call.result.is_module()
            && (call.path.is_some() || matches!(call.target.kind, Kind::Class(_)))
            && facts.covers(made, &op.weights)
            && facts.covers(&op.weights, made)
    };
    let mut makers = facts.calls.iter().filter(same).peekable();
    makers.peek().is_some() && makers.all(|call| is_plain_call(context, call))
}

fn is_plain_call(context: &Context<'_>, call: &Call) -> bool {
    let facts = context.facts;
    match (&call.path, &call.target.kind) {
        (Some(path), _) if path.starts_with("torch.nn.") => {
            let inside = |other: &&Call| {
                other.span.start > call.span.start
                    && other.span.end < call.span.end
                    && other.result.is_module()
            };
            !says_mode(context.slice(call.span))
                && facts.calls.iter().filter(inside).all(|other| is_plain_call(context, other))
        }
        (None, Kind::Class(class)) => is_plain_class(context, *class),
        _ => false,
    }
}

fn is_plain_class(context: &Context<'_>, class: ClassId) -> bool {
    let facts = context.facts;
    let found = facts.class(class);
    let own = |site: &memfit_source::Site| facts.function(site.function).class == Some(class);
    let mut methods = facts.functions.iter().filter(|function| function.class == Some(class));
    // An argument may be a layer.
    let known = |store: &memfit_source::Store| {
        matches!(store.value.kind, Kind::Module | Kind::Int(_) | Kind::Number | Kind::Str(_) | Kind::Bool(_))
    };
    found.bases.len() == 1
        && found.bases[0].ends_with("nn.Module")
        && !methods.any(|method| says_mode(context.slice(method.span)))
        && facts.stores.iter().filter(|store| own(&store.site) && store.kind == StoreKind::Assign).all(known)
        && facts.calls.iter().filter(|call| own(&call.site) && call.result.is_module()).all(|call| {
            call.path.as_deref().is_none_or(|path| path.starts_with("torch.nn."))
                && !matches!(call.target.kind, Kind::Class(_))
        })
}
