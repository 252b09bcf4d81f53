//! # hook-stores-activation
//!
//! ## What it does
//! Finds forward hooks, functions and methods, that store the output without detaching it. It is a note
//! where the hook runs once, or where what it gets may be no tensor.
//!
//! ## Why
//! The stored output keeps its graph, and thereby the activations of the whole forward pass before it, until
//! the next call overwrites it or forever. Measured on four layers: 32 MiB for an output of 8 MiB; detached,
//! the output alone.
//!
//! ## Example
//! ```python
//! def hook(module, inputs, output):
//!     features["layer"] = output
//! model.layer.register_forward_hook(hook)
//! ```
//! Use instead:
//! ```python
//! def hook(module, inputs, output):
//!     features["layer"] = output.detach()
//! model.layer.register_forward_hook(hook)
//! ```
//!
//! ## Fix safety
//! Unsafe: a loss computed from the stored output no longer trains the layers before it.
//!
//! ## References
//! - [register_forward_hook](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html)

use memfit_source::{Call, Facts, Function, FunctionId, Grad, Kind, OpKind, Span, StoreKind};

use crate::query::{backwards, has_constant_key, returns_tensor, words};
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "hook-stores-activation",
    severity: Severity::Warning,
    fixes: Fixes::Unsafe,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let hooks: Vec<FunctionId> = facts
        .calls
        .iter()
        .filter(|call| call.is_method("register_forward_hook"))
        .filter_map(|call| {
            let hook = call.arguments.first()?;
            if let Kind::Function(id) = hook.value.kind {
                return Some(id);
            }
            if let Some(made) = made_by_call(facts, hook.value_span) {
                return Some(made);
            }
            // `register_forward_hook(self.keep)`
            let name = context.slice(hook.value_span).strip_prefix("self.")?;
            let class = facts.function(call.site.function).class?;
            facts.function_ids().find(|id| {
                let method = facts.function(*id);
                method.class == Some(class) && method.name.rsplit('.').next() == Some(name)
            })
        })
        .collect();
    // If models are only called without gradients, there is no graph.
    let forwards = || facts.ops.iter().filter(|op| matches!(op.kind, OpKind::Forward));
    if forwards().count() > 0 && forwards().all(|op| op.site.grad == Grad::Off) {
        return;
    }
    lambdas(context, &hooks, findings);
    for store in facts.kept().filter(|store| hooks.contains(&store.site.function)) {
        if store.site.grad == Grad::Off {
            continue;
        }
        let function = facts.function(store.site.function);
        let parameters = &function.parameters;
        let skipped =
            usize::from(function.class.is_some() && parameters.first().is_some_and(|name| name == "self"));
        let text = context.slice(store.value_span);
        let root = text.split(['[', '.']).next().unwrap_or_default();
        let output = parameters.get(skipped + 2).is_some_and(|name| name == root);
        let plain = text == root
            || text.strip_prefix(root).is_some_and(|rest| rest.starts_with('[') && !rest.contains('('));
        let into = match store.kind {
            StoreKind::Append | StoreKind::Item => true,
            StoreKind::Assign => store.target.contains('.'),
            StoreKind::Add | StoreKind::Join | StoreKind::Give | StoreKind::GiveSum => false,
        };
        // A loss may use the stored output.
        let trained =
            backwards(facts).any(|(_, backward)| context.slice(backward.loss_span).contains(&store.target));
        let computes = is_computed_with(context, &hooks, &store.target);
        if !output || !plain || !into || trained || computes {
            continue;
        }
        let adds = store.kind == StoreKind::Append
            || store.kind == StoreKind::Item && !has_constant_key(context, store);
        let is_one = layers_return_a_tensor(context, function);
        let edit = Edit::insert(store.value_span.end, ".detach()");
        findings
            .report(
                store.value_span,
                format!("`{text}` keeps the graph of its forward pass, and all activations in it"),
            )
            .note_unless(adds && is_one && runs_again(facts))
            .help(detached(is_one, text))
            .fix(is_one.then_some(edit).and_then(|edit| Fix::unsafe_("Store it detached", vec![edit])));
    }
}

/// Function that a called function defines and returns: `register_forward_hook(keep("layer"))`.
fn made_by_call(facts: &Facts, span: Span) -> Option<FunctionId> {
    let maker = facts.calls.iter().find(|call| call.span == span)?.function?;
    let outer = facts.function(maker);
    let mut returned = outer.returned_first().map(|returned| facts.slice(returned));
    let name = returned.next()?;
    facts.function_ids().find(|id| {
        let inner = facts.function(*id);
        let inside = outer.span.start < inner.span.start && inner.span.end <= outer.span.end;
        inside && inner.name.rsplit('.').next() == Some(name)
    })
}

/// Advice on what a hook stores: only a tensor has the method.
fn detached(is_one: bool, stored: &str) -> String {
    if is_one { format!("store `{stored}.detach()`") } else { "store the tensors of it detached".to_owned() }
}

/// Returns `true` if layers get a hook, and all of them are known to return one tensor.
fn layers_return_a_tensor(context: &Context<'_>, hook: &Function) -> bool {
    let facts = context.facts;
    let name = hook.name.rsplit('.').next().unwrap_or_default();
    let of_hook = |call: &&Call| {
        call.is_method("register_forward_hook")
            && call
                .arguments
                .first()
                .is_some_and(|given| words(context.slice(given.value_span)).any(|word| word == name))
    };
    let is_one = |call: &Call| {
        let receiver = call.receiver.as_ref();
        receiver.is_some_and(|of| returns_tensor(facts, context.slice(of.span)))
    };
    let mut hooked = facts.calls.iter().filter(of_hook).peekable();
    hooked.peek().is_some() && hooked.all(is_one)
}

/// Returns `true` if the text runs a model with gradients in a loop: each pass adds what the hook stores.
fn runs_again(facts: &Facts) -> bool {
    facts
        .ops
        .iter()
        .any(|op| op.kind == OpKind::Forward && op.site.grad == Grad::On && op.site.looped.is_some())
}

/// Returns `true` if a model or a loss may be computed from the stored output, which is then part of the
/// forward pass and trained through.
fn is_computed_with(context: &Context<'_>, hooks: &[FunctionId], target: &str) -> bool {
    let facts = context.facts;
    let others = facts.function_ids().filter(|id| !hooks.contains(id)).map(|id| facts.function(id));
    let trains = { others }.any(|function| {
        let name = function.name.rsplit('.').next().unwrap_or_default();
        // `forward_features(model, x)` is a function of its own in some projects.
        (name.starts_with("forward") || name == "training_step")
            && reads(context.slice(function.span), target)
    });
    let losses = facts.calls.iter().filter(|call| {
        let callee = context.slice(call.callee).to_ascii_lowercase();
        !hooks.contains(&call.site.function)
            && call.site.grad != Grad::Off
            && (callee.contains("loss") || matches!(call.target.kind, Kind::Criterion { .. }))
    });
    // The gradients of the stored output may be needed.
    let differentiates = facts.ops.iter().any(|op| {
        let function = facts.function(op.site.function);
        matches!(op.kind, OpKind::AutogradGrad)
            && !function.name.is_empty()
            && context.slice(function.span).contains(target)
    });
    let mut arguments = losses.flat_map(|call| &call.arguments);
    trains || differentiates || arguments.any(|argument| context.slice(argument.value_span).contains(target))
}

/// Returns `true` if a text has a name other than as that of an argument: `decode(embeddings=x)` does not
/// read `embeddings`.
fn reads(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let rest = text[at + name.len()..].trim_start();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let whole = !before.is_some_and(is_word) && !text[at + name.len()..].starts_with(is_word);
        whole && (!rest.starts_with('=') || rest.starts_with("=="))
    })
}

/// Finds `register_forward_hook(lambda module, inputs, output: outputs.append(output))`.
fn lambdas(context: &Context<'_>, hooks: &[FunctionId], findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in facts.calls.iter().filter(|call| call.is_method("register_forward_hook")) {
        let Some(hook) = call.arguments.first() else { continue };
        let Some(rest) = context.slice(hook.value_span).strip_prefix("lambda ") else { continue };
        let Some((parameters, body)) = rest.split_once(':') else { continue };
        let Some(output) = parameters.split(',').nth(2).map(str::trim) else { continue };
        let stored =
            body.trim().split_once(".append(").filter(|(_, value)| value.trim() == format!("{output})"));
        let Some((target, _)) = stored else { continue };
        let trained =
            backwards(facts).any(|(_, backward)| context.slice(backward.loss_span).contains(target));
        if trained || is_computed_with(context, hooks, target) {
            continue;
        }
        let is_one = call.receiver.as_ref().is_some_and(|of| returns_tensor(facts, context.slice(of.span)));
        findings
            .report(
                hook.value_span,
                format!("`{output}` keeps the graph of its forward pass, and all activations in it"),
            )
            .note_unless(is_one && runs_again(facts))
            .help(detached(is_one, output));
    }
}
