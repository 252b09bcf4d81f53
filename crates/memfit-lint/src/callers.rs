//! What the callers in other files tell of a function or a class: loops around the calls, models that no
//! optimizer of theirs holds, criteria, containers.

use std::path::{Path, PathBuf};

use memfit_source::{Call, Facts, Flags, FunctionId, GivenValue, Grad, Kind, Op, OpKind, Overlap, StoreKind};

use crate::calls::{Called, Calls, GivenArgument, GivenModel, MAX_KEPT, Parameter};
use crate::query::{is_differentiated, optimizers_of, outlives_iterations, words};
use crate::rule::Context;

/// Maximum number of functions of other files that are looked at to find a loop around a function.
const MAX_FUNCTIONS: usize = 16;

/// Adds the calls in a file.
pub(crate) fn add(facts: &Facts, file: &Path, calls: &mut Calls) {
    let folder = file.parent().unwrap_or(Path::new(""));
    for call in facts.calls.iter().filter(|call| call.function.is_none()) {
        let Some(elsewhere) = facts.called_elsewhere(call) else { continue };
        let called = calls.entry(elsewhere.name, elsewhere.module, folder);
        add_loops(facts, file, call, called);
        called.differentiated |= is_differentiated(facts, call);
        for (index, argument) in call.arguments.iter().enumerate().filter(|_| !call.is_open()) {
            let parameter = || match &argument.name {
                Some(name) => Parameter::Named((**name).to_owned()),
                None => Parameter::At(index),
            };
            let stays = call
                .site
                .looped
                .is_some_and(|looped| outlives_iterations(facts, facts.slice(argument.value_span), looped));
            if matches!(argument.value.kind, Kind::Container { bounded: false })
                && stays
                && called.kept.len() < MAX_KEPT
            {
                called.kept.push(parameter());
            }
            if called.arguments.len() < MAX_KEPT {
                called.arguments.extend(given(facts, argument, parameter()));
            }
        }
    }
}

/// Adds what runs a call.
fn add_loops(facts: &Facts, file: &Path, call: &Call, called: &mut Called) {
    let id = call.site.function;
    let loops = facts.loops_around(&call.site);
    let is_training = |id: FunctionId| {
        id != FunctionId::MODULE
            && facts.ops.iter().any(|op| op.site.function == id && matches!(op.kind, OpKind::Backward(_)))
    };
    called.recorded |= call.site.grad == Grad::On;
    called.looped |= !loops.is_empty();
    called.trained |= loops.iter().any(|(_, looped)| facts.trains(*looped)) || is_training(id);
    if loops.is_empty() {
        let callers = facts.callers(id).into_iter().filter(|id| *id != FunctionId::MODULE);
        let callers = callers.map(|id| (file.to_owned(), facts.function(id).name.clone()));
        called.callers.extend(callers.take(MAX_KEPT.saturating_sub(called.callers.len())));
    }
}

/// What is known of an argument, if it is a model, an optimizer, or another value that tells a function
/// something.
fn given(facts: &Facts, argument: &memfit_source::Argument, parameter: Parameter) -> Option<GivenArgument> {
    let criterion = match argument.value.kind {
        Kind::Criterion { which, .. } if !argument.value.is(Flags::BY_NAME) => Some(which),
        _ => None,
    };
    let model =
        argument.value.is_module().then(|| model_of(facts, facts.slice(argument.value_span), argument));
    let clears = matches!(argument.value.kind, Kind::Optimizer).then(|| {
        facts.ops.iter().any(|op| {
            let is_clear = matches!(op.kind, OpKind::ZeroGrad { .. } | OpKind::WriteGrad { .. });
            let steps = |other: &&Op| matches!(other.kind, OpKind::Step { .. });
            let own = facts.slice(argument.value_span);
            let of_another = op.receiver != own
                && facts.ops.iter().filter(steps).any(|step| step.receiver == op.receiver)
                && facts.overlap(&op.weights, &argument.value.weights) != Overlap::Yes;
            is_clear && !of_another
        })
    });
    let value = GivenValue::of(&argument.value);
    (criterion.is_some() || model.is_some() || clears.is_some() || value.is_some()).then(|| GivenArgument {
        parameter,
        value,
        model,
        last: argument.value.flags,
        criterion,
        clears,
    })
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
    let may_hold = made.iter().any(|made| may_hold_parts(facts, made));
    GivenModel {
        loose: !made.is_empty() && made.iter().all(told) && !held && !may_hold,
        built: facts.text.lines().any(|line| is_made_by(line, last)),
        held,
        evaluated: evaluated || loaded,
        frozen,
    }
}

/// Returns `true` for a line that binds a name to a model of a class, or to a copy of one.
pub(crate) fn is_made_by(line: &str, name: &str) -> bool {
    let Some((target, made)) = line.split_once('=') else { return false };
    let class = |word: &str| word.starts_with(|c: char| c.is_ascii_uppercase());
    let callee = made.split('(').next().unwrap_or_default().trim();
    words(target).any(|word| word == name)
        && (made.contains("deepcopy(") || callee.rsplit('.').next().is_some_and(class))
}

/// Returns `true` for an optimizer of the parameters of what the caller gives, and what is never called as a
/// whole: the caller may have put parts of any model into it.
pub(crate) fn may_hold_parts(facts: &Facts, optimizer: &Call) -> bool {
    let function = facts.function(optimizer.site.function);
    let inside = |call: &&Call| optimizer.span.start < call.span.start && call.span.end <= optimizer.span.end;
    let listed = facts.calls.iter().filter(inside).filter(|call| call.is_method("parameters"));
    let mut owners = listed.filter_map(|call| Some(facts.slice(call.receiver.as_ref()?.span)));
    owners.any(|owner| {
        let is_called = |op: &Op| {
            op.site.function == optimizer.site.function
                && matches!(op.kind, OpKind::Forward | OpKind::Method { .. })
                && op.receiver == owner
        };
        let is_handed = |call: &Call| {
            call.site.function == optimizer.site.function
                && call.arguments.iter().any(|argument| facts.slice(argument.value_span) == owner)
        };
        function.parameters.iter().any(|name| name == owner)
            && !facts.ops.iter().any(is_called)
            && !facts.calls.iter().any(is_handed)
    })
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
        let calls = self.project.calls.of(self.file, callee);
        calls
            .flat_map(|called| &called.arguments)
            .filter(|argument| argument.parameter.is(index, name))
            .collect()
    }

    /// Calls of a function, or of one that calls it, that other files of the project have, directly or not. A
    /// file that only such a function of another file runs is run where that is called.
    fn calls_from_others(&self, function: FunctionId) -> Vec<&Called> {
        let names = self.facts.callers(function).into_iter().map(|id| self.facts.function(id));
        let names = names.filter(|function| !function.name.is_empty());
        let mut functions: Vec<(PathBuf, String)> =
            names.map(|function| (self.file.to_owned(), function.name.clone())).collect();
        let mut found: Vec<&Called> = Vec::new();
        let mut at = 0;
        while let Some((file, name)) = functions.get(at).cloned() {
            let class = name.strip_suffix(".__init__").unwrap_or(&name);
            for called in self.project.calls.of(&file, class).collect::<Vec<_>>() {
                found.push(called);
                for caller in &called.callers {
                    if functions.len() < MAX_FUNCTIONS && !functions.contains(caller) {
                        functions.push(caller.clone());
                    }
                }
            }
            at += 1;
        }
        found
    }

    /// Returns `true` if a loop of another file runs a function, directly or not.
    pub(crate) fn is_looped_by_others(&self, function: FunctionId) -> bool {
        function != FunctionId::MODULE
            && self.calls_from_others(function).into_iter().any(|called| called.looped)
    }

    /// Returns `true` if a training of another file runs a function, directly or not.
    pub(crate) fn is_trained_by_others(&self, function: FunctionId) -> bool {
        function != FunctionId::MODULE
            && self.calls_from_others(function).into_iter().any(|called| called.trained)
    }

    /// Returns `true` if another file calls a function while gradients are on.
    pub(crate) fn is_recorded_by_others(&self, function: FunctionId) -> bool {
        let name = &self.facts.function(function).name;
        self.project.calls.of(self.file, name).any(|called| called.recorded)
    }

    /// Returns `true` if a file of the project differentiates what a function returns.
    pub(crate) fn is_differentiated_by_callers(&self, function: FunctionId) -> bool {
        let name = &self.facts.function(function).name;
        self.facts.calls_of(function).any(|call| is_differentiated(self.facts, call))
            || self.project.calls.of(self.file, name).any(|called| called.differentiated)
    }

    /// What other files tell of a container that a function gets: `Some(true)` if a loop gives the same one
    /// to each call, `None` if no other file calls the function.
    pub(crate) fn is_kept_by_others(&self, function: FunctionId, parameter: &str) -> Option<bool> {
        let own = self.facts.function(function);
        let skipped = usize::from(own.class.is_some());
        let position = own.parameters.iter().position(|name| name == parameter)?.checked_sub(skipped)?;
        let mut calls = self.project.calls.of(self.file, &own.name).peekable();
        calls.peek()?;
        Some(calls.any(|called| called.kept.iter().any(|kept| kept.is(position, parameter))))
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
                built: all.built && one.built,
                held: all.held || one.held,
                evaluated: all.evaluated && one.evaluated,
                frozen: all.frozen || one.frozen,
            })
        })
    }
}
