//! # recurrent-state-not-detached
//!
//! ## What it does
//! Finds backward passes through a graph that an earlier iteration has freed, for example when the hidden
//! state of a recurrent network is carried from batch to batch, in a variable, an attribute, or the model
//! itself. A state that is set anew on one path only, such as the end of an episode, is carried on the
//! others. With `retain_graph=True`, the pass raises no error, and goes through all iterations before.
//!
//! ## Why
//! The second `backward()` reaches the first batch's graph, which was freed, and raises `RuntimeError: Trying
//! to backward through the graph a second time`. With `retain_graph=True` it runs, and the graph grows by a
//! batch in every iteration. Measured: it holds 4 MiB after one iteration and 16 MiB after four; detached, 32
//! KiB after four.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     out, h = rnn(x, h)
//!     criterion(out, y).backward()
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     h = h.detach()
//!     out, h = rnn(x, h)
//!     criterion(out, y).backward()
//! ```
//!
//! ## Fix safety
//! No fix: a state may be a tensor, a tuple or a list of tensors.
//!
//! ## References
//! - [torch.nn.RNN](https://docs.pytorch.org/docs/stable/generated/torch.nn.RNN.html)

use memfit_source::{Backward, Call, Facts, Grad, Kind, LoopId, Op, OpKind, Span};

use crate::query::backwards;
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "recurrent-state-not-detached",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    in_models(context, findings);
    for (op, backward) in backwards(facts) {
        let Some((call, state)) = carried_state(context, op, backward) else { continue };
        let keeps = backward.retain.is_some() && backward.carried;
        let (effect, what) = if keeps {
            (
                "the backward pass goes through all iterations before, whose activations are kept",
                "this backward pass keeps them",
            )
        } else {
            (
                "the backward pass goes through it again, and raises an error",
                "this backward pass frees the graph in each iteration",
            )
        };
        findings
            .report(call, format!("`{state}` comes from the previous iteration with its graph: {effect}"))
            .label(if op.via.is_some() { call } else { op.span }, what)
            .help(format!(
                "detach it first: `{state} = {state}.detach()`, or each part of it if it is a tuple"
            ));
    }
}

/// Call and state by which a backward pass goes through the graphs of iterations before: a value that a call
/// in the loop both takes and returns.
pub(super) fn carried_state(context: &Context<'_>, op: &Op, backward: &Backward) -> Option<(Span, String)> {
    let facts = context.facts;
    // With `retain_graph`, it goes through the graphs of all iterations before. The step may be a function
    // that takes the state and returns it.
    let keeps = backward.retain.is_some() && backward.carried;
    let by_step = op.via.is_some() && backward.carried;
    let known = !backward.freed.is_none() || keeps || by_step;
    let looped = op.site.looped.filter(|_| known && (op.via.is_none() || by_step && !op.deep))?;
    let earlier = if keeps || by_step { &backward.loss.graph } else { &backward.freed };
    // The first iteration of an inner loop gets what the outer one carries.
    let is_inner = |call: &Call| call.site.looped != Some(looped);
    let takes = |call: &&Call| {
        if by_step { op.call == Some(call.span) } else { facts.within(&call.site, looped) }
    };
    facts
        .calls
        .iter()
        .filter(takes)
        .find_map(|call| {
            let bound = facts.bound_to(call.span)?;
            if cuts_state(facts, call) {
                return None;
            }
            let own = |name: &&str| {
                names(bound).any(|word| word == *name) || is_unpacked(context, looped, bound, name)
            };
            call.arguments.iter().find_map(|argument| {
                // A returned number or device has no graph. What this iteration computed before is new.
                let hangs = argument.value.graph.overlaps(earlier)
                    && (keeps || by_step || is_inner(call) || argument.value.graph.is_no_later_than(earlier))
                    && matches!(argument.value.kind, Kind::Tensor | Kind::Unknown | Kind::Tuple(_));
                let name = names(context.slice(argument.value_span)).find(own).filter(|_| hangs)?;
                Some((call.span, name.to_owned()))
            })
        })
        .or_else(|| state_of_object(context, looped).filter(|_| !backward.freed.is_none()))
}

/// Call in a method that a loop calls by which the object hands a state to the next iteration:
/// `out, self.hidden = net(x, self.hidden)`.
fn state_of_object(context: &Context<'_>, looped: LoopId) -> Option<(Span, String)> {
    let facts = context.facts;
    let runs = |op: &&Op| op.kind == OpKind::Forward && op.site.grad == Grad::On && !op.deep;
    facts.ops_in(looped).filter(runs).find_map(|op| {
        let id = op.via.filter(|id| facts.function(*id).class.is_some() && op.call.is_some())?;
        let call = facts.calls.iter().find(|call| call.span == op.span && call.site.function == id)?;
        let bound = facts.bound_to(call.span).filter(|_| !cuts_state(facts, call))?;
        let given = call.arguments.iter().flat_map(|given| names(context.slice(given.value_span)));
        let state = given
            .filter(|name| name.starts_with("self."))
            .find(|name| names(bound).any(|own| own == *name))?;
        Some((call.span, state.to_owned()))
    })
}

/// Returns `true` for the call of a model whose class detaches values: the state that it returns may be cut.
fn cuts_state(facts: &Facts, call: &Call) -> bool {
    facts.ops.iter().any(|op| {
        op.kind == OpKind::Forward && op.call.unwrap_or(op.span) == call.span && facts.detaches(&op.weights)
    })
}

/// Returns `true` if a loop takes a name from the result of a call: `result = rnn(x, h)`, `h = result[1]`. A
/// model of the project that detaches something may be what is called.
fn is_unpacked(context: &Context<'_>, looped: LoopId, result: &str, name: &str) -> bool {
    let body = context.slice(context.facts.looped(looped).span);
    !context.project.detaches
        && body.lines().filter_map(|line| line.split_once(" = ")).any(|(targets, value)| {
            let part = format!("{result}[");
            names(targets).any(|word| word == name) && value.contains(&part)
        })
}

/// Methods of models that leave their attributes alone.
const HARMLESS: &[&str] = &[
    "train",
    "eval",
    "zero_grad",
    "parameters",
    "named_parameters",
    "state_dict",
    "to",
    "cuda",
    "cpu",
    "forward",
    "modules",
    "children",
    "buffers",
    "half",
    "float",
];

/// Finds models whose forward pass hands a state to the next one: nothing in the training loop sets it anew.
fn in_models(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let mut seen: Vec<&str> = Vec::new();
    for forward in facts.ops.iter().filter(|op| op.kind == OpKind::Forward && op.via.is_none()) {
        let model = forward.receiver.as_str();
        let (Some(state), Some(looped)) = (facts.carried(&forward.weights), forward.site.looped) else {
            continue;
        };
        let mut ops = facts.ops_in(looped);
        let trained = ops.find(|op| {
            matches!(op.kind, OpKind::Backward(_)) && op.site.looped == Some(looped) && op.via.is_none()
        });
        let Some(pass) = trained.filter(|_| forward.site.grad == Grad::On && !seen.contains(&model)) else {
            continue;
        };
        let of_model =
            |name: &str| name == model || name.strip_prefix(model).is_some_and(|rest| rest.starts_with('.'));
        let set = facts.looped(looped).assigned.iter().any(|name| of_model(name));
        let called = facts.calls.iter().any(|call| {
            let resets =
                call.receiver.as_ref().is_some_and(|receiver| of_model(context.slice(receiver.span)))
                    && !call.method.as_deref().is_some_and(|method| HARMLESS.contains(&method));
            // A function that gets the model may do so as well.
            let given = call.arguments.iter().any(|argument| context.slice(argument.value_span) == model);
            call.span != forward.span && facts.within(&call.site, looped) && (resets || given)
        });
        if set || called {
            continue;
        }
        seen.push(model);
        findings
            .report(forward.span, format!("`{model}.{state}` comes from the previous iteration with its graph: the backward pass goes through it again, and raises an error"))
            .label(pass.span, "this backward pass frees the graph in each iteration")
            .help(format!("set the state anew or detach it before each call: `{model}.{state} = {model}.{state}.detach()`"));
    }
}

/// Names in a text, with their attributes: `self.hidden`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).filter(|word| !word.is_empty())
}
