//! What the callers in other files give to a function or to the constructor of a class: models that no
//! optimizer of theirs holds, and criteria.

use memfit_source::{Call, Facts, Flags, FunctionId, Kind, OpKind, Overlap, StoreKind};

use crate::given::{Given, GivenArgument, GivenModel};
use crate::query::{optimizers_of, words};
use crate::rule::Context;

/// Adds the arguments of the calls of a file.
pub(crate) fn add(facts: &Facts, given: &mut Given) {
    for call in facts.calls.iter().filter(|call| call.function.is_none() && !call.is_open()) {
        let Some(path) = call.path.as_deref() else { continue };
        if path.starts_with("torch.") || path.starts_with("builtins.") || path.starts_with("numpy.") {
            continue;
        }
        let name = path.rsplit('.').next().unwrap_or(path);
        for (index, argument) in call.arguments.iter().enumerate() {
            let criterion = match argument.value.kind {
                Kind::Criterion { which, .. } if !argument.value.is(Flags::BY_NAME) => Some(which),
                _ => None,
            };
            let model = argument
                .value
                .is_module()
                .then(|| model_of(facts, facts.slice(argument.value_span), argument));
            let clears = matches!(argument.value.kind, Kind::Optimizer).then(|| {
                facts.ops.iter().any(|op| {
                    let is_clear = matches!(op.kind, OpKind::ZeroGrad { .. } | OpKind::WriteGrad { .. });
                    let steps = |other: &&memfit_source::Op| matches!(other.kind, OpKind::Step { .. });
                    let own = facts.slice(argument.value_span);
                    let of_another = op.receiver != own
                        && facts.ops.iter().filter(steps).any(|step| step.receiver == op.receiver)
                        && facts.overlap(&op.weights, &argument.value.weights) != Overlap::Yes;
                    is_clear && !of_another
                })
            });
            if criterion.is_none() && model.is_none() && clears.is_none() {
                continue;
            }
            given.entry(name.to_owned()).or_default().push(GivenArgument {
                position: argument.name.is_none().then_some(index),
                keyword: argument.name.as_deref().map(str::to_owned),
                model,
                last: argument.value.flags,
                criterion,
                clears,
            });
        }
    }
}

fn model_of(facts: &Facts, name: &str, argument: &memfit_source::Argument) -> GivenModel {
    let weights = &argument.value.weights;
    let made: Vec<&Call> = optimizers(facts).collect();
    let told = |call: &&Call| {
        call.result.weights.is_exact()
            || facts.slice(call.span).contains(".parameters()")
            || call.arguments.iter().any(|argument| argument.value.is_module())
    };
    let last = words(name).last().unwrap_or_default();
    let held = optimizers_of(facts, name, weights).next().is_some()
        || made.iter().any(|call| words(facts.slice(call.span)).any(|word| word == last));
    let of = |receiver: &str, other: &memfit_source::Weights| {
        receiver == name || facts.overlap(other, weights) == Overlap::Yes
    };
    let evaluated = facts
        .ops
        .iter()
        .any(|op| op.kind == OpKind::EvalMode && op.via.is_none() && of(&op.receiver, &op.weights));
    let loaded = facts.calls.iter().any(|call| {
        let own = call.receiver.as_ref().is_some_and(|owner| facts.slice(owner.span) == name);
        let bound = facts.bound_to(call.span) == Some(name);
        own && call.is_method("load_state_dict")
            || bound && call.path.as_deref().is_some_and(|path| path.ends_with(".from_pretrained"))
    });
    let frozen = facts.ops.iter().any(|op| {
        matches!(op.kind, OpKind::RequireGrad { on } if on != Some(true)) && of(&op.receiver, &op.weights)
    }) || facts.calls.iter().any(|call| freezes(facts, call, last));
    GivenModel {
        loose: !made.is_empty() && made.iter().all(told) && !held,
        held,
        evaluated: evaluated || loaded,
        frozen,
    }
}

/// Returns `true` for `freeze(teacher)`, `teacher.freeze()`, `set_requires_grad(teacher, False)`.
pub(crate) fn freezes(facts: &Facts, call: &Call, last: &str) -> bool {
    let name = facts.slice(call.callee).rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let given = call
        .arguments
        .iter()
        .any(|argument| words(facts.slice(argument.value_span)).any(|word| word == last));
    let own = call.receiver.as_ref().is_some_and(|of| words(facts.slice(of.span)).last() == Some(last));
    (given || own)
        && (name.contains("freeze")
            || name.contains("grad")
            || name.contains("frozen")
            || name.contains("prepare") && given)
}

/// Calls that make optimizers, by their result or by the name that it is bound to.
pub(crate) fn optimizers(facts: &Facts) -> impl Iterator<Item = &Call> {
    facts
        .calls
        .iter()
        .filter(|call| matches!(call.result.kind, Kind::Optimizer) || is_named_optimizer(facts, call))
}

/// Returns `true` for `optimizer = build_optimizer(model, config)`.
fn is_named_optimizer(facts: &Facts, call: &Call) -> bool {
    let target = facts.bound_to(call.span).unwrap_or_default();
    let last = target.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let named = last.starts_with("opt") || last.contains("optim");
    named
        && call.result.is_unknown()
        && (facts.slice(call.span).contains("parameters()")
            || call.arguments.iter().any(|argument| argument.value.is_module()))
}

impl Context<'_> {
    /// Arguments that other files give to a parameter of a function, or to the one of `__init__` that a
    /// class keeps in an attribute.
    pub(crate) fn given_to(&self, function: FunctionId, name: &str) -> Vec<&GivenArgument> {
        let facts = self.facts;
        let own = facts.function(function);
        if let Some(attribute) = name.strip_prefix("self.") {
            let Some(class) = own.class.filter(|_| !attribute.contains('.')) else { return Vec::new() };
            let kept = facts.stores.iter().find(|store| {
                let there = facts.function(store.site.function);
                store.kind == StoreKind::Assign
                    && store.target == name
                    && there.class == Some(class)
                    && there.name.ends_with(".__init__")
            });
            let Some(kept) = kept else { return Vec::new() };
            let text = facts.slice(kept.value_span);
            let text = text
                .split(".to(")
                .next()
                .unwrap_or(text)
                .trim_end_matches(".cuda()")
                .trim_end_matches(".eval()");
            let init = facts.function(kept.site.function);
            return self.given_as(&facts.class(class).name, &init.parameters, 1, text);
        }
        if own.class.is_some() {
            return Vec::new();
        }
        self.given_as(&own.name, &own.parameters, 0, name)
    }

    fn given_as(
        &self,
        callee: &str,
        parameters: &[String],
        skipped: usize,
        name: &str,
    ) -> Vec<&GivenArgument> {
        let Some(index) = parameters.iter().position(|parameter| parameter == name) else {
            return Vec::new();
        };
        let Some(index) = index.checked_sub(skipped) else { return Vec::new() };
        let Some(all) = self.project.given.get(callee) else { return Vec::new() };
        all.iter()
            .filter(|argument| match &argument.keyword {
                Some(keyword) => keyword == name,
                None => argument.position == Some(index),
            })
            .collect()
    }

    /// Returns `true` if other files call a function with an optimizer whose gradients nothing clears.
    pub(crate) fn given_uncleared(&self, function: FunctionId, name: &str) -> bool {
        let given = self.given_to(function, name);
        !given.is_empty() && given.iter().all(|argument| argument.clears == Some(false))
    }

    /// What all callers in other files know of a model that they give to a function: `None` if there are
    /// none.
    pub(crate) fn given_model(&self, function: FunctionId, name: &str) -> Option<GivenModel> {
        let models = self.given_to(function, name);
        let mut known = models.iter().map(|argument| argument.model);
        let first = known.next()??;
        known.try_fold(first, |all, one| {
            let one = one?;
            Some(GivenModel {
                loose: all.loose && one.loose,
                held: all.held || one.held,
                evaluated: all.evaluated && one.evaluated,
                frozen: all.frozen || one.frozen,
            })
        })
    }
}
