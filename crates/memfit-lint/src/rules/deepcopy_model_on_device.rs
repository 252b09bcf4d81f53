//! # deepcopy-model-on-device
//!
//! ## What it does
//! Finds models and their weights that are copied while they are on the GPU, in a loop, in an object that a
//! loop calls or in a hook, and lists of such copies. A model that an object or a hook is given is where the
//! project moves its models.
//!
//! ## Why
//! `copy.deepcopy` of a model on the GPU allocates all of its parameters and buffers there a second time.
//! Measured: a model of 4 MiB takes 4 MiB more; its weights on the host take none. (Gradients are not
//! copied.)
//!
//! ## Example
//! ```python
//! model = torch.nn.Linear(4, 4).cuda()
//! for epoch in range(10):
//!     best = copy.deepcopy(model)
//! ```
//! Use instead:
//! ```python
//! model = torch.nn.Linear(4, 4).cuda()
//! for epoch in range(10):
//!     best = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
//! ```
//!
//! ## Fix safety
//! No fix: the right change depends on the program.
//!
//! ## References
//! - [copy](https://docs.python.org/3/library/copy.html)

use memfit_source::{Argument, Call, Device, Flags, Function, Kind, Store, StoreKind};

use crate::query::{grows, has_constant_key, is_callback, repeats, words};
use crate::rule::{Context, Findings, Fixes, Rule, Severity};

pub(super) static RULE: Rule = Rule {
    name: "deepcopy-model-on-device",
    severity: Severity::Warning,
    fixes: Fixes::Never,
    on: true,
    check,
};

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    for call in context.facts.calls.iter().filter(|call| call.is("copy.deepcopy")) {
        let Some(first) = call.arguments.first() else { continue };
        let model = first.value.is_module() && first.value.device == Device::Cuda;
        // Copied weights of a model on the GPU are on the GPU as well.
        // A model that another file made is where the project moves its models.
        let made_elsewhere = first.value.device == Device::Unknown
            && context.project.on_card
            && is_given(context, call, first);
        let is_state = matches!(first.value.kind, Kind::StateDict)
            || first.value.is_unknown() && model_in(state_text(context, call, first)).is_some();
        let weights = is_state && (first.value.device.is_gpu() || made_elsewhere);
        let is_again = repeats(context, &call.site) || is_callback(context.facts, call.site.function);
        if weights && is_again {
            findings
                .report(call.span, "the copy of the weights is on the GPU, too, and is made again in every iteration")
                .help("copy them to the host: `{name: value.cpu() for name, value in model.state_dict().items()}`");
        }
        // A copy in a loop is repeated; a single one may be a teacher or a moving average.
        if model && call.site.looped.is_some() && !is_handed_on(context, call) {
            findings
                .report(
                    call.span,
                    "the copy of the model is on the GPU, too: its parameters and gradients are held twice",
                )
                .help("keep its `state_dict()` on the host");
        }
    }
    let facts = context.facts;
    for store in facts.kept() {
        let into = store.kind == StoreKind::Append
            || store.kind == StoreKind::Item
                && matches!(store.target_value.kind, Kind::Container { .. })
                && !has_constant_key(context, store);
        let of_model = into && store.value.is_module() && is_copy(context, store);
        if !into || !(store.value.is(Flags::COPIED) || of_model) || !store.value.device.is_gpu() {
            continue;
        }
        let Some(looped) = grows(facts, store).filter(|id| facts.looped(*id).parent.is_none()) else {
            continue;
        };
        // Reported for the copy itself already.
        let said = |call: &memfit_source::Call| {
            call.span == store.value_span && call.is("copy.deepcopy") && call.result.device == Device::Cuda
        };
        if facts.calls.iter().any(said) {
            continue;
        }
        let what = if of_model { "model" } else { "weights" };
        findings
            .report(
                store.value_span,
                format!("`{}` grows by a copy of the {what} on the GPU in every iteration", store.target),
            )
            .label(facts.looped(looped).header, "over the iterations of this loop")
            .help(
                "copy them to the host: `{name: value.cpu() for name, value in model.state_dict().items()}`",
            );
    }
}

/// Returns `true` for a copy that is an argument of a function: what gets it may train it, where it is. A
/// container keeps it, and what saves it only reads it.
fn is_handed_on(context: &Context<'_>, copy: &Call) -> bool {
    context.facts.calls.iter().any(|call| {
        let keeps = ["append", "save"].iter().any(|way| call.is_method(way)) || call.is("torch.save");
        !keeps && call.arguments.iter().any(|given| given.value_span == copy.span)
    })
}

/// Returns `true` for a store of a deep copy that the same function makes.
fn is_copy(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    let name = context.slice(store.value_span);
    facts.calls.iter().any(|call| {
        call.is("copy.deepcopy")
            && call.site.function == store.site.function
            && call.site.looped == store.site.looped
            && (facts.bound_to(call.span) == Some(name) || call.span == store.value_span)
    })
}

/// `state` of `state["model"].state_dict()`, for a model in a dictionary.
fn model_in(text: &str) -> Option<&str> {
    let (owner, key) = text.strip_suffix("].state_dict()")?.rsplit_once('[')?;
    let key = key.trim_matches(['"', '\'']).to_ascii_lowercase();
    let is_model = ["model", "net", "network", "generator", "encoder"].iter().any(|name| key.ends_with(name));
    is_model.then_some(owner)
}

/// Text of a state, or of what the same function has bound it to: `model.state_dict()`.
fn state_text<'a>(context: &'a Context<'_>, copy: &Call, state: &Argument) -> &'a str {
    let facts = context.facts;
    let text = context.slice(state.value_span);
    let made = facts.calls.iter().find(|made| {
        made.is_method("state_dict")
            && made.site.function == copy.site.function
            && made.site.order < copy.site.order
            && facts.bound_to(made.span) == Some(text)
    });
    made.map_or(text, |made| context.slice(made.span))
}

/// Returns `true` for the state of a model that the function, or the constructor of its class, gets as an
/// argument.
fn is_given(context: &Context<'_>, call: &Call, state: &Argument) -> bool {
    let facts = context.facts;
    let text = state_text(context, call, state);
    let Some(model) = text.strip_suffix(".state_dict()") else { return false };
    let model = model_in(text).unwrap_or(model);
    let model = model.strip_suffix(".module").unwrap_or(model);
    let function = facts.function(call.site.function);
    let has = |function: &Function, name: &str| function.parameters.iter().any(|known| known == name);
    if !model.starts_with("self.") {
        return has(function, model);
    }
    let mut set = facts.stores.iter().filter(|store| {
        store.kind == StoreKind::Assign
            && store.target == model
            && facts.function(store.site.function).class == function.class
    });
    let of_argument = |store: &Store| {
        let init = facts.function(store.site.function);
        init.name.ends_with(".__init__") && words(context.slice(store.value_span)).any(|word| has(init, word))
    };
    set.next().is_some_and(|store| of_argument(store) && set.next().is_none())
}
