//! # tensor-running-loss
//!
//! ## What it does
//! Finds losses that are summed, averaged or collected while they still have their autograd graph.
//!
//! - `total += loss`, `self.total += loss`, `total["loss"] += loss`;
//! - `losses.append(loss)`, also into a list that the caller passes, and `losses = torch.cat([losses, ...])`;
//! - `meter.update(loss)`, with meters of the project, of timm or of a logger;
//! - `total.update(Statistics(loss))`;
//! - `average.mul_(decay).add_(parameter, alpha=1 - decay)` with gradients on.
//!
//! Values that are computed from a loss count as well.
//!
//! ## Why
//! After `backward()` no activation is kept (measured: 0 bytes), so this is no leak. The sum keeps a chain of
//! graph nodes that grows by one in each iteration, and a block of 512 B on the GPU. `.detach()` keeps the
//! sum on the device without the chain. In a list, each loss keeps the nodes of its own iteration.
//!
//! ## Example
//! ```python
//! running = 0
//! for x, y in loader:
//!     loss = criterion(model(x), y)
//!     loss.backward()
//!     running += loss
//! ```
//! Use instead:
//! ```python
//! running = 0
//! for x, y in loader:
//!     loss = criterion(model(x), y)
//!     loss.backward()
//!     running += loss.detach()
//! ```
//!
//! ## Fix safety
//! Safe: the numbers are the same.
//!
//! ## References
//! - [torch.Tensor.detach](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html)

use memfit_source::{Flags, Grad, GraphState, Kind, LoopId, Store, StoreKind, Value};

use crate::passes::runs_model;
use crate::query::{
    backwards, grows, grows_by_calls, grows_in_object, has_constant_key, is_emptied, loss_texts, words,
};
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "tensor-running-loss", severity: Severity::Note, fixes: Fixes::Safe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    of_meters(context, findings);
    of_steps(context, findings);
    of_methods(context, findings);
    of_helpers(context, findings);
    for store in &facts.stores {
        if !matches!(store.graph, GraphState::Freed | GraphState::Kept) {
            continue;
        }
        // A sum within a step may be trained on at its end.
        let steps = |looped: LoopId| facts.trains(looped);
        let how = match store.kind {
            StoreKind::Add if store.grows.is_some_and(steps) => How::Sum,
            // `history[step] = loss`, where the history is a tensor.
            StoreKind::Item
                if matches!(store.target_value.kind, Kind::Tensor)
                    && store.grows.is_some_and(steps)
                    && !has_constant_key(context, store) =>
            {
                How::Sum
            }
            StoreKind::Add if sums_in_object(context, store) => How::Sum,
            StoreKind::GiveSum if store.grows.is_some() => How::Given,
            StoreKind::Give if store.grows.is_some() && store.stays => How::Kept,
            StoreKind::Append | StoreKind::Join => How::List,
            StoreKind::Item
                if matches!(store.target_value.kind, Kind::Container { .. })
                    && !has_constant_key(context, store) =>
            {
                How::List
            }
            _ => continue,
        };
        // Where gradients are off, a sum has no graph.
        if how == How::Sum && store.site.grad == Grad::Off {
            continue;
        }
        let loss = match &store.value.kind {
            // Of the arguments of a method, the loss.
            Kind::Tuple(parts) if [How::Given, How::Kept].contains(&how) => {
                parts.iter().any(|part| is_loss(part) || is_differentiated(context, store, part))
            }
            // Each concatenation adds a node, whatever it concatenates.
            // So does each sum of values after their backward pass.
            _ => {
                let passed = matches!(store.graph_then, GraphState::Freed | GraphState::Kept);
                let sums = store.kind == StoreKind::Add && passed && store.value.graph.has_passes();
                store.kind == StoreKind::Join || sums || is_loss(&store.value)
            }
        };
        let grown = || match store.kind {
            StoreKind::Join => store.grows.is_some(),
            _ => grows(facts, store).is_some(),
        };
        let adds_up = how != How::List
            || grown()
            || grows_in_object(context, store)
            || grows_by_calls(context, store)
            || grows_between_resets(context, store);
        if !loss || !adds_up {
            continue;
        }
        // A sum that is trained on is no running loss.
        let trained = backwards(facts).any(|(op, backward)| {
            op.site.function == store.site.function
                && loss_texts(context, op, backward).iter().any(|text| has_word(text, &store.target))
        });
        // A loss stored before the backward pass is freed by its own pass, or it is part of another loss.
        let own = store.graph_then != GraphState::Live
            || backwards(facts).any(|(op, backward)| match how {
                // `0.9 * mean + 0.1 * loss`
                How::Sum => {
                    let names = context.slice(store.value_span);
                    let mut names = names.split(|c: char| !(c.is_alphanumeric() || "_.".contains(c)));
                    names.any(|name| has_word(context.slice(backward.loss_span), name) && is_name(name))
                        || backward.loss.graph.contains(&store.value.graph)
                }
                How::List | How::Given | How::Kept => {
                    // The loss of the iteration's backward pass may come from several branches, or be a sum.
                    let here = op.site.looped == store.site.looped && store.value.graph.has_passes();
                    let is_it = |value: &Value| {
                        backward.loss.graph == value.graph
                            || here && backward.loss.graph.contains(&value.graph)
                    };
                    let one = |parts: &[Value]| parts.iter().any(|part| is_loss(part) && is_it(part));
                    is_it(&store.value) || matches!(&store.value.kind, Kind::Tuple(parts) if one(parts))
                }
            });
        if trained || !own {
            continue;
        }
        let text = context.slice(store.value_span).to_owned();
        let simple = text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
        let (message, verb, title) = match how {
            How::Sum => (
                format!("`{}` stays a tensor: its graph grows by a node in every iteration", store.target),
                "add",
                "Add the detached loss",
            ),
            How::Given => (
                format!(
                    "`{}` sums its argument, which stays a tensor: the sum's graph grows by a node in every iteration",
                    store.target
                ),
                "pass",
                "",
            ),
            How::Kept => (
                format!(
                    "`{}` keeps its argument, with the graph nodes of every iteration's loss",
                    store.target
                ),
                "pass",
                "",
            ),
            How::List => (
                format!("`{}` keeps the graph nodes of every iteration's loss", store.target),
                "store",
                "Store the detached loss",
            ),
        };
        let help = match how {
            How::Given | How::Kept => "pass a number: `loss.item()`".to_owned(),
            _ => format!("{verb} `{text}.detach()`"),
        };
        let is_given = [How::Given, How::Kept].contains(&how);
        findings.report(store.value_span, message).help(help).fix(if simple && !is_given {
            Fix::safe(title, vec![Edit::insert(store.value_span.end, ".detach()")])
        } else {
            None
        });
    }
    crate::meters::report(context, findings);
    crate::averages::report(context, findings);
}

/// Returns `true` for a list that the loop makes anew now and then, such as at each line of a log, of
/// losses whose backward pass is done when they are stored.
fn grows_between_resets(context: &Context<'_>, store: &Store) -> bool {
    let Some(looped) = store.grows_between_resets else { return false };
    let is_bounded = matches!(store.target_value.kind, Kind::Container { bounded: true });
    let is_emptied = context
        .facts
        .enclosing(store.site.looped)
        .take_while(|id| Some(*id) != context.facts.looped(looped).parent)
        .any(|id| context.facts.looped(id).emptied.contains(&store.target));
    store.kind == StoreKind::Append
        && matches!(store.graph_then, GraphState::Freed | GraphState::Kept)
        && !is_bounded
        && !is_emptied
}

/// Finds losses that the training step of a framework collects until the end of an epoch.
fn of_steps(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for store in facts.stores.iter().filter(|store| matches!(store.kind, StoreKind::Append | StoreKind::Add))
    {
        let function = facts.function(store.site.function);
        let Some(class) = function.class.filter(|class| facts.class(*class).is_managed) else { continue };
        let sums = store.kind == StoreKind::Add;
        let text = context.slice(store.value_span);
        let is_it =
            |returned: &str| returned == text || sums && has_word(text, returned) && is_name(returned);
        // `return loss` or `return {"loss": loss}`
        let is_returned = function.returned_parts().any(|part| {
            part.key.as_ref().is_none_or(|key| key.contains("loss")) && is_it(context.slice(part.span))
        });
        if function.name.ends_with(".training_step")
            && store.target.starts_with("self.")
            && !store.value.graph.is_none()
            && (is_returned || is_loss(&store.value) || store.value.graph.is_certain())
            && !(sums && is_set_before(context, store))
        {
            let target = &store.target;
            let message = if sums {
                format!("`{target}` stays a tensor: its graph grows by a node in every step")
            } else if is_emptied(context, class, target) {
                format!("`{target}` keeps the graph nodes of every step's loss until it is cleared")
            } else {
                format!("`{target}` keeps the graph nodes of every step's loss: nothing clears it")
            };
            findings.report(store.value_span, message).help(format!("store `{text}.detach()`")).fix(
                Fix::safe("Store the detached loss", vec![Edit::insert(store.value_span.end, ".detach()")]),
            );
        }
    }
}

/// Returns `true` if the function that adds to a sum sets it anew, other than by adding to it.
fn is_set_before(context: &Context<'_>, store: &Store) -> bool {
    context.facts.stores.iter().any(|other| {
        other.site.function == store.site.function
            && other.kind == StoreKind::Assign
            && other.target == store.target
            && other.span != store.span
    })
}

/// Finds losses that a method, which computes a loss for its caller, collects in a container of its object:
/// nothing empties it.
fn of_methods(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for store in &facts.stores {
        let function = facts.function(store.site.function);
        let Some(class) = function.class else { continue };
        let into = store.kind == StoreKind::Append
            || store.kind == StoreKind::Item && !has_constant_key(context, store);
        let computed = store.value.is(Flags::SCALAR) && !store.value.graph.is_none();
        // The frameworks' own steps, and a loss that is handed on with its graph.
        let hands_on = function.hands_on && !function.name.ends_with(".forward");
        let passes = || {
            facts.ops.iter().any(|op| {
                op.site.function == store.site.function && runs_model(op) && op.site.grad == Grad::On
            })
        };
        if into
            && computed
            && hands_on
            && matches!(store.graph, GraphState::Unknown | GraphState::Live)
            && store.site.grad == Grad::On
            && !facts.class(class).is_module
            && passes()
            && grows_in_object(context, store)
            && !context.may_be_without_grad(store.site.function)
        {
            let text = context.slice(store.value_span);
            findings
                .report(
                    store.value_span,
                    format!("`{}` keeps the graph of every call's loss: nothing empties it", store.target),
                )
                .help(format!("store `{text}.item()`"));
        }
    }
}

/// Finds losses that a function, which computes a loss for its caller to train on, also adds to what it is
/// given: `metrics["loss"] += loss`.
fn of_helpers(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let adds = |store: &&Store| matches!(store.kind, StoreKind::Add | StoreKind::Append);
    for store in facts.stores.iter().filter(adds) {
        let id = store.site.function;
        let function = facts.function(id);
        let text = context.slice(store.value_span);
        let is_returned = || {
            function
                .returned_parts()
                .map(|part| context.slice(part.span))
                .any(|returned| is_name(returned) && has_word(text, returned))
        };
        let trains =
            || facts.calls_of(id).any(|call| call.site.looped.is_some_and(|looped| facts.trains(looped)));
        if !store.value.graph.is_none()
            && matches!(store.graph, GraphState::Unknown | GraphState::Live)
            && store.site.grad != Grad::Off
            && is_returned()
            && grows_by_calls(context, store)
            && trains()
            && !context.may_be_without_grad(id)
        {
            let verb = if store.kind == StoreKind::Add { "sums" } else { "keeps" };
            findings
                .report(
                    store.value_span,
                    format!("`{}` {verb} the losses of all calls, with their graph nodes", store.target),
                )
                .help(format!("use a number: `{text}.item()`"));
        }
    }
}

/// Finds losses that are given to an average of another library.
fn of_meters(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in facts.calls.iter().filter(|call| call.is_method("update") && call.function.is_none()) {
        let (Some(receiver), Some(first)) = (&call.receiver, call.arguments.first()) else { continue };
        if !is_loss(&first.value) || !first.value.graph.is_certain() {
            continue;
        }
        let name = context.slice(receiver.span);
        if matches!(&receiver.value.kind, Kind::Imported(class) if METERS.contains(&&**class)) {
            findings
                .report(
                    call.span,
                    format!("`{name}` sums its argument, which stays a tensor: the sum's graph grows by a node in every iteration"),
                )
                .help("pass a number: `loss.item()`");
        }
    }
}

/// Classes of libraries whose `update(value, n)` adds the value to a sum.
const METERS: &[&str] = &["timm.utils.AverageMeter", "timm.utils.metrics.AverageMeter"];

/// Way in which losses add up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// In a sum of the text.
    Sum,
    /// In a sum of an object that a method adds to.
    Given,
    /// In a container of an object that a method adds to.
    Kept,
    /// In a list, a dict or a concatenated tensor.
    List,
}

/// Returns `true` for a sum in an attribute to which a training step adds the loss that it differentiates,
/// each time that it is called.
fn sums_in_object(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    let here = |other: &Store| other.site.function == store.site.function;
    let set = facts.stores.iter().any(|other| {
        here(other)
            && other.kind == StoreKind::Assign
            && other.target == store.target
            && other.span != store.span
    });
    let trains = backwards(facts).any(|(op, _)| op.site.function == store.site.function && op.via.is_none());
    let is_init = facts.function(store.site.function).name.ends_with("__init__");
    store.target.starts_with("self.") && !set && trains && !is_init && store.value.graph.is_certain()
}

fn is_loss(value: &Value) -> bool {
    let parts = match &value.kind {
        Kind::Tuple(parts) => parts.iter().any(is_loss),
        _ => value.elements().is_some_and(is_loss),
    };
    parts || value.is(Flags::SCALAR) && !value.graph.is_none()
}

/// Returns `true` for a value with the graph of a loss that the same function differentiates, or a list of
/// them.
fn is_differentiated(context: &Context<'_>, store: &Store, value: &Value) -> bool {
    let own = |value: &Value| {
        value.graph.is_known()
            && backwards(context.facts).any(|(op, pass)| {
                // `losses["all"]` is one of `losses`.
                let name = context.slice(pass.loss_span).split('[').next().unwrap_or_default();
                op.site.function == store.site.function
                    && pass.loss.graph == value.graph
                    && context.slice(store.span).split(',').any(|part| {
                        let cut = ["detach(", "item(", ".data", "float(", "numpy(", "tolist("];
                        words(part).any(|word| word == name) && !cut.iter().any(|way| part.contains(way))
                    })
            })
    };
    own(value) || value.elements().is_some_and(own)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns `true` if a name occurs in a text as a whole word.
fn has_word(text: &str, name: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).any(|word| word == name)
}
