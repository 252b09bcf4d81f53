//! # reentrant-checkpoint-without-gradients
//!
//! ## What it does
//! Finds reentrant checkpoints of layers whose inputs require no gradient: batches, and the images that the
//! first layer of a model gets. Found as well: models with adapters of PEFT whose frozen layers are
//! checkpointed.
//!
//! ## Why
//! With `use_reentrant=True`, the output requires a gradient only if an input does. The input of a model's
//! first layers is the batch, which does not: their parameters get no gradient and are not trained. PyTorch
//! warns once, `None of the inputs have requires_grad=True. Gradients will be None`, and continues. Measured:
//! 0 of 2 parameters of such a layer have a gradient after the backward pass.
//!
//! ## Example
//! ```python
//! for x, y in loader:
//!     features = checkpoint(stem, x, use_reentrant=True)
//!     criterion(head(features), y).backward()
//! ```
//! Use instead:
//! ```python
//! for x, y in loader:
//!     features = checkpoint(stem, x, use_reentrant=False)
//!     criterion(head(features), y).backward()
//! ```
//!
//! ## Fix safety
//! No fix: more parameters would be trained, so the author must decide.
//!
//! ## References
//! - [torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html)

use memfit_source::{Argument, Call, ClassId, Facts, Grad, Kind};

use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "reentrant-checkpoint-without-gradients",
    severity: Severity::Error,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    of_adapters(context, findings);
    // The code that enables gradients for inputs may be elsewhere.
    if facts.text.contains("requires_grad") || facts.text.contains("input_require_grads") {
        return;
    }
    for call in &facts.calls {
        let reentrant = call.is("torch.utils.checkpoint.checkpoint")
            && !call.is_open()
            // Releases that do not raise an error without the argument take it as `True`.
            && call.keyword("use_reentrant").is_none_or(|how| how.value.truth() == Some(true));
        if !reentrant || call.site.grad == Grad::Off {
            continue;
        }
        let Some((layer, inputs)) = call.arguments.split_first() else { continue };
        let inputs: Vec<&Argument> = inputs.iter().filter(|input| input.name.is_none()).collect();
        if !layer.value.is_module()
            || inputs.is_empty()
            || !inputs.iter().all(|input| is_leaf(context, call, input))
        {
            continue;
        }
        let name = context.slice(layer.value_span);
        findings
            .report(call.span, format!("no input needs a gradient: `{name}` gets none, and is not trained"))
            .help("pass `use_reentrant=False`");
    }
}

/// Finds models with adapters of PEFT whose layers are checkpointed: the base model is frozen, and so are the
/// embeddings. PEFT sees to it only where checkpoints are on before and the model is not quantized.
fn of_adapters(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    let elsewhere = [
        "enable_input_require_grads",
        "prepare_model_for",
        "use_reentrant",
        "gradient_checkpointing_kwargs",
        "modules_to_save",
    ];
    let wraps = |call: &&Call| call.path.as_deref().is_some_and(|path| path.ends_with("get_peft_model"));
    let Some(wrapped) = facts.calls.iter().find(wraps) else { return };
    let text = &facts.text;
    // The embeddings may be trained as well.
    if elsewhere.iter().any(|word| text.contains(word)) || text.contains("requires_grad") {
        return;
    }
    let is_on = |call: &Call, name: &str| {
        call.keyword(name).is_some_and(|option| !matches!(option.value.kind, Kind::Bool(false) | Kind::None))
    };
    let is_quantized = facts.calls.iter().any(|call| {
        ["load_in_8bit", "load_in_4bit", "quantization_config"].iter().any(|name| is_on(call, name))
    });
    let enables = |call: &&Call| call.is_method("gradient_checkpointing_enable");
    for enabled in facts.calls.iter().filter(enables).filter(|call| call.site.guard.is_none()) {
        let same = enabled.site.function == wrapped.site.function;
        if same && (is_quantized || enabled.site.order > wrapped.site.order) {
            findings
                .report(enabled.span, "no input of a checkpoint needs a gradient: the adapters get none, and are not trained")
                .label(wrapped.span, "the base model is frozen here")
                .help("call `enable_input_require_grads()` as well, or pass `gradient_checkpointing_kwargs={\"use_reentrant\": False}`");
        }
    }
}

/// Returns `true` if a value has no graph: it was created without one, or every caller passes such values to
/// the model.
fn is_leaf(context: &Context<'_>, call: &Call, input: &Argument) -> bool {
    let facts = context.facts;
    if input.value.graph.is_none() {
        return !matches!(input.value.kind, Kind::Module | Kind::Tuple(_) | Kind::Container { .. });
    }
    let function = facts.function(call.site.function);
    if function.class.is_none() {
        return is_given_leaves(facts, call, input);
    }
    let Some(class) = function.class.filter(|_| function.name.ends_with(".forward")) else { return false };
    let Some(index) = function.inputs.iter().position(|graph| *graph == input.value.graph) else {
        return false;
    };
    // A part of another model receives intermediate values of that model.
    let is_part = facts.calls.iter().any(|made| {
        made.target.kind == Kind::Class(class)
            && facts.function(made.site.function).class.is_some_and(|class| facts.class(class).is_module)
    });
    let mut fed =
        facts.model_arguments.iter().filter(|fed| fed.class == class && fed.position + 1 == index).peekable();
    if index == 0 || is_part || context.project.parts.contains(&facts.class(class).name) {
        return false;
    }
    // A model that is made elsewhere gets its images first.
    let layer = call.arguments.first().map_or("", |layer| context.slice(layer.value_span));
    if fed.peek().is_none() {
        index == 1 && takes_images(facts, layer) && is_outermost(facts, class)
    } else {
        fed.all(|fed| fed.is_leaf)
    }
}

/// Returns `true` for a layer that is made for the channels of images.
fn takes_images(facts: &Facts, layer: &str) -> bool {
    let channels = ["input_channels", "in_chans", "img_channels", "image_channels", "n_channels", "3", "1"];
    facts.calls.iter().filter(|call| facts.bound_to(call.span) == Some(layer)).any(|call| {
        let first = call.arguments.first().map_or("", |first| facts.slice(first.value_span));
        let last = first.rsplit('.').next().unwrap_or(first);
        channels.contains(&last) && !call.is("torch.nn.Linear")
    })
}

/// Returns `true` for a parameter of a function that each call of the text gives a value without a graph.
fn is_given_leaves(facts: &Facts, call: &Call, input: &Argument) -> bool {
    let function = facts.function(call.site.function);
    let Some(index) = function.inputs.iter().position(|graph| *graph == input.value.graph) else {
        return false;
    };
    let name = function.parameters.get(index).map_or("", String::as_str);
    let mut calls = facts.calls_of(call.site.function).peekable();
    calls.peek().is_some()
        && calls.all(|call| {
            call.argument(index, name).is_some_and(|given| {
                let is_tensor =
                    !matches!(given.value.kind, Kind::Module | Kind::Tuple(_) | Kind::Container { .. });
                given.value.graph.is_none() && is_tensor
            })
        })
}

/// Returns `true` for a class that no other class of its file has as a base, and that is no discriminator of
/// generated images.
fn is_outermost(facts: &Facts, class: ClassId) -> bool {
    let name = &facts.class(class).name;
    let judges = ["discriminator", "critic"].iter().any(|word| name.to_ascii_lowercase().contains(word));
    !judges && !facts.classes.iter().any(|other| other.bases.contains(name))
}
