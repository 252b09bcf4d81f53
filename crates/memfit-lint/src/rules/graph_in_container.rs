//! # graph-in-container
//!
//! ## What it does
//! Finds outputs and losses that a loop stores in a container while their graph is alive: in lists and
//! dictionaries, in tensors that grow by concatenation, in replay buffers. Attributes that other methods of
//! the object compute count as well, and so do values that a module keeps in each forward pass, also the
//! attention of the last one. The class of a replay buffer may be in another file. Arrays that a function
//! returns under a condition have no graph.
//!
//! ## Why
//! A tensor keeps its graph alive, and the graph keeps the activations of its forward pass. Without a
//! `backward()` that frees them, or after `backward(retain_graph=True)`, each iteration's activations stay.
//! Measured: one iteration holds 32 MiB, five hold 160 MiB. After a plain `backward()` they are freed (2 KiB
//! stay), and the rule reports nothing.
//!
//! ## Example
//! ```python
//! losses = []
//! for x, y in loader:
//!     loss = criterion(model(x), y)
//!     losses.append(loss)
//! ```
//! Use instead:
//! ```python
//! losses = []
//! for x, y in loader:
//!     loss = criterion(model(x), y)
//!     losses.append(loss.item())
//! ```
//!
//! ## Fix safety
//! Unsafe: a number, or a tensor without a graph, is stored instead of the tensor. The fix uses `.item()` for
//! losses that are only used as numbers, as in `sum(losses) / len(losses)`, and `.detach().cpu()` for
//! everything but losses; otherwise, and where the values are joined or given to a model, it uses
//! `.detach()`.
//!
//! ## References
//! - [Autograd mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html)

use memfit_source::{Backward, Flags, Grad, GraphState, Kind, Op, OpKind, Store, StoreKind, Value};

use crate::query::{
    backwards, grows, grows_in_object, has_constant_key, is_fed_to_models, joined_on_device, joins, repeats,
    words,
};
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "graph-in-container", severity: Severity::Error, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    of_parameters(context, findings);
    in_forward(context, findings);
    maps_in_forward(context, findings);
    for store in &facts.stores {
        let sampled = is_sampled(context, store);
        let into = matches!(store.kind, StoreKind::Append | StoreKind::Join)
            || store.kind == StoreKind::Give && sampled
            || (store.kind == StoreKind::Item
                && matches!(store.target_value.kind, Kind::Container { .. })
                && !has_constant_key(context, store));
        if !into && !sums_retained(context, store) {
            continue;
        }
        // A concatenated tensor contains the graphs of earlier iterations.
        let grown = match store.kind {
            StoreKind::Join | StoreKind::Give | StoreKind::Add => store.grows,
            _ if sampled => store.grows,
            _ => grows(facts, store),
        };
        let Some(looped) = grown else { continue };
        let kept = match store.graph {
            // A random selection may repeat elements, so nothing selected can be trained through.
            _ if sampled => {
                (store.graph_then == GraphState::Live || store.live_somewhere)
                    && !matches!(store.graph, GraphState::Freed | GraphState::None)
                    && !context.may_be_without_grad(store.site.function)
            }
            GraphState::Retained => true,
            // A returned container may still be trained on.
            GraphState::Live => {
                let is_held_anyway = store.carried && store.kind == StoreKind::Append;
                // A model computes its output from what it collects.
                let class = facts.function(store.site.function).class;
                let is_of_model = class.is_some_and(|class| facts.class(class).is_module);
                (!store.escapes || is_only_reported(context, store))
                    && !is_of_model
                    && !is_held_anyway
                    && !context.project.differentiates
                    && !context.may_be_without_grad(store.site.function)
            }
            _ => false,
        };
        // Parts of one graph keep no more than it.
        if !kept || store.graph == GraphState::Live && !store.built_there {
            continue;
        }
        if is_joined_and_trained(context, store) {
            continue;
        }
        let text = context.slice(store.value_span).to_owned();
        let scalar = store.value.is(Flags::SCALAR);
        let retained = store.graph == GraphState::Retained;
        let why = if retained {
            "`backward(retain_graph=True)` keeps its graph"
        } else {
            "no backward pass frees its graph"
        };
        // What joins tensors, or a model that gets them, takes no numbers, and needs them where they are.
        let is_joined = joins(facts, &store.target).next().is_some();
        let stays = is_fed_to_models(context, &store.target) || joined_on_device(facts, &store.target);
        let way = match scalar {
            true if !stays && !is_joined && takes_numbers(&facts.text, &store.target) => ".item()",
            false if !stays => ".detach().cpu()",
            _ => ".detach()",
        };
        let simple = text.chars().all(|c| c.is_alphanumeric() || "_.()[]'\"".contains(c));
        findings
            .report(store.value_span, format!("`{text}` keeps the activations of every iteration: {why}"))
            .label(facts.looped(looped).header, "they add up over the iterations of this loop")
            .help(format!("store `{text}{way}`"))
            .fix(if simple {
                Fix::unsafe_(format!("Store `{text}{way}`"), vec![Edit::insert(store.value_span.end, way)])
            } else {
                None
            });
    }
}

/// Returns `true` for a container of an object of which the text only takes numbers, in functions that run no
/// backward pass: nothing trains on what it has.
fn is_only_reported(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    let Some(attribute) = store.target.strip_prefix("self.").filter(|name| !name.contains('.')) else {
        return false;
    };
    let text: &str = &facts.text;
    let dotted = format!(".{attribute}");
    // Another object, or one of a subclass elsewhere, may have it as well.
    let is_own = text.matches(dotted.as_str()).count() == text.matches(store.target.as_str()).count();
    let trains = |(op, _): (&Op, &Backward)| {
        let function = context.slice(facts.function(op.site.function).span);
        words(function).any(|word| word == attribute)
    };
    let is_handed_on = facts.function(store.site.function).returned.overlaps(&store.value.graph);
    is_own && !is_handed_on && takes_numbers(text, &store.target) && !backwards(facts).any(trains)
}

/// Returns `true` for a running sum of values whose graphs `retain_graph` keeps, which nothing trains on.
fn sums_retained(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    let is_trained = || {
        backwards(facts).any(|(op, backward)| {
            op.site.function == store.site.function
                && words(context.slice(backward.loss_span)).any(|word| word == store.target)
        })
    };
    store.kind == StoreKind::Add
        && store.graph == GraphState::Retained
        && store.grows.is_some_and(|looped| facts.trains(looped))
        && !is_trained()
}

/// Returns `true` if the loop around a backward pass keeps what the pass retains: the store is reported, with
/// `retain_graph` as its cause.
pub(super) fn keeps_retained(context: &Context<'_>, op: &Op, backward: &Backward) -> bool {
    let facts = context.facts;
    facts.stores.iter().any(|store| {
        let adds = matches!(store.kind, StoreKind::Append | StoreKind::Join);
        store.graph == GraphState::Retained
            && store.site.function == op.site.function
            && (store.value.graph.overlaps(&backward.loss.graph) || store.value.graph.overlaps(&op.graph))
            && (adds && grows(facts, store).is_some() || sums_retained(context, store))
    })
}

/// Returns `true` if what a container has is joined, and a backward pass goes through it after that.
fn is_joined_and_trained(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    joins(facts, &store.target).filter(|join| join.site.function == store.site.function).any(|join| {
        backwards(facts).any(|(pass, backward)| {
            pass.site.function == join.site.function
                && pass.site.order > join.site.order
                && backward.loss.graph.overlaps(&join.result.graph)
        })
    })
}

/// Functions that take a list of numbers.
const OF_NUMBERS: [&str; 10] =
    ["len", "sum", "min", "max", "mean", "average", "median", "plot", "print", "sorted"];

/// Returns `true` if each use of a container in the text takes numbers in it: `sum(losses) / len(losses)`.
/// What calls methods of its elements, or may, needs tensors: `[loss.item() for loss in losses]`.
fn takes_numbers(text: &str, target: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(target).all(|(start, _)| {
        let (before, after) = (&text[..start], &text[start + target.len()..]);
        if before.ends_with(|character| is_word(character) || character == '.') || after.starts_with(is_word)
        {
            return true;
        }
        let callee =
            before.strip_suffix('(').map(|before| before.rsplit(|c| !is_word(c)).next().unwrap_or(""));
        let after = after.trim_start_matches([' ', '\t']);
        // The last element, unless something is called on it.
        let element = after.strip_prefix("[-1]").is_some_and(|rest| !rest.starts_with('.'));
        let is_kept = [".append(", ".clear()", "= [", ": list"].iter().any(|start| after.starts_with(start));
        let is_given =
            after.starts_with([')', ',']) && callee.is_some_and(|callee| OF_NUMBERS.contains(&callee));
        is_given || element || is_kept
    })
}

/// Returns `true` if elements of a container are selected at random, as in a replay buffer.
fn is_sampled(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    if store.sampled {
        return true;
    }
    let (function, target) = match &store.by {
        Some((function, target)) => (*function, &**target),
        None => (store.site.function, store.target.as_str()),
    };
    let class = facts.function(function).class;
    facts.calls.iter().any(|call| {
        ["random.sample", "random.choices", "random.choice", "numpy.random.choice"]
            .iter()
            .any(|path| call.is(path))
            && call.arguments.first().is_some_and(|first| {
                // `pools["fake"]`
                let rest = context.slice(first.value_span).strip_prefix(target);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
            })
            && (facts.function(call.site.function).class == class && class.is_some()
                || call.site.function == function
                || !target.contains('.'))
    })
}

/// Finds `self.map = attention` in the forward pass of a module that does not use the attribute: each layer
/// keeps the map of its last pass with the graph.
fn maps_in_forward(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for store in facts.stores.iter().filter(|store| store.kind == StoreKind::Assign) {
        let function = facts.function(store.site.function);
        let Some(class) = function.class.filter(|class| facts.class(*class).is_module) else { continue };
        let Some(name) = store.target.strip_prefix("self.").filter(|name| !name.contains('.')) else {
            continue;
        };
        let is_map = store.value.is(Flags::SOFTMAX)
            && matches!(store.value.kind, Kind::Tensor)
            && !store.value.graph.is_none();
        if !is_map
            || !function.name.ends_with(".forward")
            || store.site.grad == Grad::Off
            || store.site.guard.is_some()
            || facts.class(class).is_managed
            || is_read(facts, name)
            || context.may_be_without_grad(store.site.function)
        {
            continue;
        }
        let text = context.slice(store.value_span);
        // `x, self.map = attention(…)` has no method to call on the result.
        let is_one_of =
            context.slice(store.span).split('=').next().is_some_and(|targets| targets.contains(','));
        let text = if is_one_of { store.target.as_str() } else { text };
        findings
            .report(
                store.value_span,
                format!(
                    "`{}` keeps the attention of the last pass with its graph until the next one",
                    store.target
                ),
            )
            .help(format!("store `{text}.detach()`, and only when it is looked at"));
    }
}

/// Returns `true` if a text does more with an attribute than to assign it.
fn is_read(facts: &memfit_source::Facts, name: &str) -> bool {
    let text: &str = &facts.text;
    let dotted = format!(".{name}");
    text.match_indices(dotted.as_str()).any(|(at, _)| {
        let rest = &text[at + dotted.len()..];
        let is_whole = !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let rest = rest.trim_start_matches(' ');
        let assigned = rest.starts_with('=') && !rest.starts_with("==");
        is_whole && !assigned
    })
}

/// Finds `self.maps.append(attention)` in the forward pass of a module that never empties the list.
fn in_forward(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let adds = |store: &&Store| {
        store.kind == StoreKind::Append || store.kind == StoreKind::Item && !has_constant_key(context, store)
    };
    for store in facts.stores.iter().filter(adds) {
        let function = facts.function(store.site.function);
        // An object around a model has a forward pass as well.
        let module = function.class.is_some_and(|class| {
            facts.class(class).is_module
                || !facts.class(class).is_dataset
                    && facts.ops.iter().any(|op| {
                        op.kind == OpKind::Forward
                            && op.via.is_none()
                            && op.site.function == store.site.function
                            && store.value.graph.contains(&op.graph)
                    })
        });
        let attribute = store.target.strip_prefix("self.").unwrap_or_default();
        // What trains on the losses of layers empties their lists from outside.
        let is_collected = attribute.contains("loss") || attribute.is_empty();
        let emptied = [format!("{attribute}.clear("), format!("{attribute}[:]")];
        let is_made = |line: &&str| {
            let owned =
                line.split_once(&format!(".{attribute}")).map(|(_, rest)| format!("{attribute}{rest}"));
            owned.is_some_and(|line| memfit_source::assigned_text(&line, attribute) == Some("[]"))
        };
        let resets = emptied.iter().map(|text| facts.text.matches(text.as_str()).count()).sum::<usize>()
            + facts.text.lines().filter(is_made).count();
        // `if key in self.cache: return self.cache[key]`
        let is_cache = context.slice(function.span).contains(&format!(" in {}", store.target));
        if module
            && !(is_cache && store.kind == StoreKind::Item)
            && function.name.ends_with(".forward")
            && !is_collected
            && resets <= 1
            && (store.value.is(Flags::OUTPUT) || matches!(store.value.kind, Kind::Tensor | Kind::Tuple(_)))
            && !store.value.graph.is_none()
            && store.site.grad != Grad::Off
            && grows_in_object(context, store)
            && !context.may_be_without_grad(store.site.function)
        {
            let text = context.slice(store.value_span);
            findings
                .report(
                    store.value_span,
                    format!(
                        "`{}` keeps the graph of every forward pass, and all activations in it",
                        store.target
                    ),
                )
                .help(format!("store `{text}.detach().cpu()`, and empty the list"));
        }
    }
}

/// Finds moving averages of parameters that are made of the parameters themselves: each average has the graph
/// of the one before.
fn of_parameters(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for store in facts.stores.iter().filter(|store| averages_parameter(context, store)) {
        findings
            .report(
                store.span,
                format!("`{}` averages parameters with their graph: each average keeps the one before, and a copy of the weights in every iteration", store.target),
            )
            .help("use `parameter.detach()`, or update under `torch.no_grad()`");
    }
    for store in facts.stores.iter().filter(|store| store.kind == StoreKind::GiveSum) {
        let Kind::Tuple(parts) = &store.value.kind else { continue };
        // `detach()`, `data` and `no_grad` leave none.
        let is_parameter = |part: &Value| part.is(Flags::WEIGHTS) && !part.graph.is_none();
        if store.site.grad != Grad::On || store.grows.is_none() || !parts.iter().any(is_parameter) {
            continue;
        }
        findings
            .report(
                store.value_span,
                format!("`{}` averages parameters with their graph: each average keeps the one before, and a copy of the weights in every iteration", store.target),
            )
            .help("pass `parameter.detach()`, or update under `torch.no_grad()`");
    }
}

/// Returns `true` for `average[name] = decay * average[name] + (1 - decay) * p`, where a loop over parameters
/// binds `p`, and another loop, or a training step, repeats that.
fn averages_parameter(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    let Some(looped) = store.site.looped.map(|id| facts.looped(id)) else { return false };
    let over = context.slice(looped.iterable);
    let value = context.slice(store.value_span);
    let is_item = context
        .slice(store.span)
        .strip_prefix(store.target.as_str())
        .is_some_and(|rest| rest.starts_with('['));
    let of_parameter = over.contains("parameters()")
        && looped.targets.iter().any(|target| words(value).any(|word| word == target));
    store.kind == StoreKind::Add
        && is_item
        && of_parameter
        && store.site.grad == Grad::On
        && !store.value.graph.is_none()
        && repeats(context, &looped.site)
        && !context.may_be_without_grad(store.site.function)
}

#[cfg(test)]
mod tests {
    use super::takes_numbers;

    #[test]
    fn a_container_takes_numbers_where_nothing_is_called_on_its_elements() {
        for (text, numbers) in [
            ("losses = []\nlosses.append(loss)\nprint(sum(losses) / len(losses), losses[-1])", true),
            ("self.losses = []\nlosses: list = []\nlosses.append(loss)\nplt.plot(losses)", true),
            ("losses = []\nmore_losses.item()\nlosses.append(loss)\nlosses.clear()", true),
            ("losses.append(loss)\nprint(sum(loss.item() for loss in losses))", false),
            ("losses.append(loss)\nprint(losses[-1].item())", false),
            ("losses.append(loss)\nfor loss in losses: show(loss)", false),
            ("losses.append(loss)\nreturn losses", false),
        ] {
            assert_eq!(takes_numbers(text, "losses"), numbers, "{text}");
        }
    }
}
