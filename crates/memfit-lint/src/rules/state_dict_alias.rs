//! # state-dict-alias
//!
//! ## What it does
//! Finds a `state_dict()` that is kept as the best one without a copy while training continues, or in a copy
//! of the dictionary only. Finds models that are kept in a shallow copy, `copy.copy(model)`, as the model of
//! before.
//!
//! ## Why
//! `state_dict()` returns the weights themselves, not a copy: the next step changes the kept values, and the
//! 'best' weights are the last ones. Measured: 2 of 2 tensors that were kept change with the model.
//! A copy of the dictionary or of the module has the same tensors.
//! `copy.deepcopy` copies on the GPU: 4 MiB for a model of 4 MiB; a copy on the host needs no device memory.
//!
//! ## Example
//! ```python
//! for epoch in range(epochs):
//!     loss = train(model)
//!     if loss < best:
//!         best, weights = loss, model.state_dict()
//! model.load_state_dict(weights)
//! ```
//! Use instead:
//! ```python
//! for epoch in range(epochs):
//!     loss = train(model)
//!     if loss < best:
//!         best = loss
//!         weights = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
//! model.load_state_dict(weights)
//! ```
//!
//! ## Fix safety
//! Unsafe: the kept weights are on the host.
//!
//! ## References
//! - [state_dict](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html)

use memfit_source::{FunctionId, Kind, LoopId, Site, Store, StoreKind};

use crate::query::words;
use crate::rule::{Context, Edit, Findings, Fix, Fixes, Rule, Severity};

pub(super) static RULE: Rule =
    Rule { name: "state-dict-alias", severity: Severity::Error, fixes: Fixes::Unsafe, on: true, check };

fn check(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    shallow_models(context, findings);
    let states = facts.stores.iter().filter(|store| matches!(store.value.kind, Kind::StateDict));
    let (built, kept): (Vec<&Store>, Vec<&Store>) = states.partition(|store| builds_states(context, store));
    let mut builders: Vec<FunctionId> = built.iter().map(|store| store.site.function).collect();
    builders.dedup();
    for call in builders.iter().flat_map(|id| facts.calls_of(*id)) {
        let Some((target, looped)) = facts.bound_to(call.span).zip(call.site.looped) else { continue };
        let guarded = facts.guards_of(call.site.guard).any(|id| facts.guard(id).looped == Some(looped));
        if guarded && used_after(context, target, &call.site, looped) {
            findings
                .report(call.span, changed_by_the_next_step(target))
                .label(facts.looped(looped).header, "training continues in this loop")
                .help("keep a copy on the host");
        }
    }
    for store in kept {
        let kept = matches!(store.kind, StoreKind::Assign | StoreKind::Append | StoreKind::Item);
        let Some(looped) = store.site.looped.filter(|_| kept) else { continue };
        let guarded = facts.guards_of(store.site.guard).any(|id| facts.guard(id).looped == Some(looped));
        if !guarded || !used_after(context, &store.target, &store.site, looped) {
            continue;
        }
        let text = context.slice(store.value_span).to_owned();
        let plain = text.ends_with(".state_dict()");
        let copy = format!("{{key: value.detach().cpu().clone() for key, value in {text}.items()}}");
        findings
            .report(store.value_span, changed_by_the_next_step(&store.target))
            .label(facts.looped(looped).header, "training continues in this loop")
            .help("keep a copy on the host")
            .fix(if plain {
                Fix::unsafe_("Keep a copy on the host", vec![Edit::replace(store.value_span, copy)])
            } else {
                None
            });
    }
}

fn changed_by_the_next_step(target: &str) -> String {
    format!("`{target}` refers to the weights themselves: the next step changes it")
}

/// Returns `true` for the state of another model in each iteration, in a dictionary or list that the function
/// builds and returns: `for name, model in models.items(): states[name] = model.state_dict()`. No step of the
/// loop follows; what the caller does with the states decides.
fn builds_states(context: &Context<'_>, store: &Store) -> bool {
    let facts = context.facts;
    let Some(looped) = store.site.looped else { return false };
    let owner = context.slice(store.value_span).split(".state_dict").next().unwrap_or_default();
    let of_iteration = words(owner).any(|word| facts.looped(looped).targets.iter().any(|own| own == word));
    let is_outermost = facts.enclosing(Some(looped)).all(|id| id == looped);
    let function = facts.function(store.site.function);
    let is_returned = function.returned_first().any(|span| context.slice(span) == store.target);
    matches!(store.kind, StoreKind::Append | StoreKind::Item) && of_iteration && is_outermost && is_returned
}

/// Words in the names of models that are to stay as they are.
const KEPT: &[&str] = &[
    "prev",
    "previous",
    "old",
    "best",
    "teacher",
    "frozen",
    "ref",
    "reference",
    "initial",
    "backup",
    "snapshot",
];

/// Finds `previous = copy.copy(model)`: both modules have the same parameters.
fn shallow_models(context: &Context<'_>, findings: &mut Findings<'_>) {
    let facts = context.facts;
    for call in facts.calls.iter().filter(|call| call.is("copy.copy")) {
        let Some(of) = call.arguments.first().filter(|of| of.value.is_module()) else { continue };
        // `copy.copy(model).eval()` has the name before it as well.
        let kept = facts.bound_to(call.span).is_some_and(|name| {
            let lower = name.to_ascii_lowercase();
            words(&lower).flat_map(|word| word.split('_')).any(|part| KEPT.contains(&part))
        });
        if kept {
            findings
                .report(
                    call.span,
                    format!(
                        "a shallow copy of `{}` has the same parameters: each step changes both",
                        context.slice(of.value_span)
                    ),
                )
                .help("copy it with `copy.deepcopy`");
        }
    }
}

/// Returns `true` if the name is read after the loop.
fn used_after(context: &Context<'_>, target: &str, site: &Site, looped: LoopId) -> bool {
    let facts = context.facts;
    let outermost = facts.enclosing(Some(looped)).last().unwrap_or(looped);
    let end = facts.looped(outermost).span.end;
    let function = facts.function(site.function).span.end;
    let rest = context.slice(memfit_source::Span::new(end.min(function), function));
    // `state = model.state_dict()` after the loop reads nothing that the loop kept.
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let first = rest
        .match_indices(target)
        .find(|(at, name)| !rest[..*at].ends_with(part) && !rest[at + name.len()..].starts_with(part));
    let is_read = first.is_some_and(|(at, name)| {
        let line = rest[at..].lines().next().unwrap_or_default();
        memfit_source::assigned_text(line, name).is_none()
    });
    is_read || (target.starts_with("self.") && facts.text.matches(target).count() > 1)
}
