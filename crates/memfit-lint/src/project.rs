//! Facts that a project's files share.

use std::path::Path;

use memfit_source::{Call, Facts, FunctionId, Kind, OpKind, StoreKind};

use crate::query::words;
use crate::rule::Project;
use crate::rules::has_workers;

impl Project {
    /// Returns `true` if all functions and methods of a name run a pass with gradients on and do nothing
    /// else, by themselves or by a method to which they give the model.
    pub(crate) fn runs_pass(&self, name: &str, depth: usize) -> bool {
        self.methods.get(name).is_some_and(|known| {
            !known.others
                && (known.passes || !known.hands_to.is_empty())
                && known.hands_to.iter().all(|next| depth > 0 && self.runs_pass(next, depth - 1))
        })
    }

    /// Adds the facts of one file.
    pub(crate) fn add(&mut self, file: &Path, facts: &Facts) {
        self.layers.extend(facts.stores.iter().filter_map(|store| {
            let class = facts.function(store.site.function).class?;
            let is_layer =
                store.kind == StoreKind::Assign && store.value.is_module() && facts.class(class).is_module;
            store.target.strip_prefix("self.").filter(|_| is_layer).map(str::to_owned)
        }));
        crate::passes::add_methods(facts, &mut self.methods);
        crate::divisors::add(facts, &mut self.divisors);
        crate::meters::add(facts, &mut self.meters);
        crate::callers::add(facts, file, &mut self.calls);
        crate::rules::add_scalers(facts, &mut self.scalers);
        let clears =
            facts.ops.iter().filter(|op| matches!(op.kind, OpKind::ZeroGrad { .. }) && op.via.is_none());
        let others = clears.filter(|op| !op.receiver.starts_with("self.") && op.receiver.contains('.'));
        self.cleared.extend(others.filter_map(|op| words(&op.receiver).last()).map(str::to_owned));
        self.on_card |= facts
            .calls
            .iter()
            .any(|call| (call.is_method("cuda") || call.is_method("to")) && call.result.device.is_gpu());
        self.empties.extend(crate::rules::emptying(facts));
        self.called_without_grad.extend(facts.called_without_grad.iter().cloned());
        let in_model = |call: &&Call| {
            facts.function(call.site.function).class.is_some_and(|class| facts.class(class).is_module)
        };
        self.parts.extend(facts.calls.iter().filter(in_model).filter_map(|call| {
            let name = facts.slice(call.callee);
            name.rsplit('.').next().map(str::to_owned)
        }));
        let mut loaders = facts.loaders.iter().filter_map(|index| facts.calls.get(*index));
        self.has_workers |= loaders.any(|call| has_workers(facts, call));
        let loaders = facts.loaders.iter().filter_map(|index| facts.calls.get(*index));
        for set in
            loaders.filter(|call| has_workers(facts, call)).filter_map(|call| call.argument(0, "dataset"))
        {
            let given = facts.slice(set.value_span);
            let made = facts.calls.iter().filter(|call| facts.bound_to(call.span) == Some(given));
            let made = made.map(|call| facts.slice(call.callee)).chain([given]);
            let classes = made.filter_map(|text| words(text.split('(').next().unwrap_or(text)).last());
            self.worker_sets.extend(classes.map(str::to_owned));
        }
        let loaders = facts.loaders.iter().filter_map(|index| facts.calls.get(*index));
        let collating = loaders
            .filter(|call| has_workers(facts, call) && call.keyword("multiprocessing_context").is_none())
            .filter_map(|call| call.keyword("collate_fn"))
            .filter(|given| !matches!(given.value.kind, Kind::Function(_)))
            .map(|given| facts.slice(given.value_span));
        let is_path = |text: &&str| {
            text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.') && !text.contains("self")
        };
        self.worker_functions
            .extend(collating.filter(is_path).filter_map(|text| text.rsplit('.').next()).map(str::to_owned));
        self.volatile |= facts.calls.iter().any(crate::passes::makes_volatile);
        self.has_no_grad |= crate::passes::needs_no_grad_release(facts);
        self.detaches |= facts.classes.iter().any(|class| class.is_module && class.detaches);
        self.spawns |=
            facts.text.contains("set_start_method") || facts.text.contains("multiprocessing_context");
        let set =
            facts.ops.iter().filter(|op| matches!(op.kind, OpKind::RequireGrad { on } if on != Some(true)));
        self.frozen.extend(set.flat_map(|op| words(&op.receiver)).map(str::to_owned));
        self.differentiates |= facts.ops.iter().any(|op| {
            let function = facts.function(op.site.function);
            // A wrapper that attacks a model differentiates in methods of that model.
            let is_own = op.via.is_none_or(|id| {
                id == FunctionId::MODULE
                    || facts.function(id).class.is_none_or(|class| function.class == Some(class))
            });
            // What it computes in training alone, or with gradients that it turns on itself, needs none of an
            // evaluation.
            let looks_after_itself = facts.slice(function.span).contains("enable_grad")
                || facts
                    .guards_of(op.site.guard)
                    .map(|id| facts.guard(id))
                    .any(|guard| !guard.negated && guard.what.training);
            op.kind == OpKind::AutogradGrad
                && is_own
                && !looks_after_itself
                && function.name.ends_with(".forward")
                && function.class.is_some_and(|class| facts.class(class).is_module)
        });
    }
}
