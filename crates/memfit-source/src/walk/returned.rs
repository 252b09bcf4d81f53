//! Models that a called function returns: each call makes them anew, and gives its own to their places. NumPy
//! arrays that it returns under a condition.

use ruff_python_ast::Expr;

use super::weights::Origin;
use super::{Frame, Walker};
use crate::facts::{Call, FunctionId, Graph, GraphState, Kind, Model, ModelId, ReturnedPart, Value, Weights};
use crate::position::Span;
use crate::project::{ArraySwitch, ModelOrigin, Returned, Summary};

/// Models of a function's result by those of the call.
#[derive(Debug, Default)]
pub(super) struct Adopted {
    models: Vec<(ModelId, Weights)>,
    /// Sets of models that are alternatives for one.
    ones: Vec<Vec<ModelId>>,
    /// `true` if the function is of this file, so that other models keep their meaning.
    is_here: bool,
}

impl Adopted {
    /// Weights at the call.
    pub(super) fn weights(&self, weights: &Weights) -> Weights {
        let known = |id: ModelId| {
            let own = || self.is_here.then(|| Weights::from_model(id));
            let found = self.models.iter().find(|(known, _)| *known == id);
            found.map(|(_, there)| there.clone()).or_else(own)
        };
        let is_one = self.ones.iter().any(|one| one == weights.owners());
        weights.replaced(&known, is_one)
    }
}

impl Frame<'_> {
    /// Graph of the returned value and its parts; unknown for a generator.
    pub(super) fn graph_of_result(&self) -> Graph {
        let Some((value, _)) = &self.returned else { return Graph::unknown().clone_if(self.yields) };
        let mut graph = value.graph.clone();
        graph.unknown |= self.yields;
        if let Kind::Tuple(parts) = &value.kind {
            graph = parts.iter().fold(graph, |all, part| all.union(&part.graph));
        }
        graph
    }
}

/// Elements of a tuple, items of a dictionary, or the value.
fn parts_of(value: &Expr) -> Vec<ReturnedPart> {
    let part = |key: Option<String>, value: &Expr| ReturnedPart { key, span: super::span(value) };
    match value {
        Expr::Tuple(node) => node.elts.iter().map(|element| part(None, element)).collect(),
        Expr::Dict(node) => {
            let keyed = node.items.iter().filter_map(|item| match item.key.as_ref()? {
                Expr::StringLiteral(key) => Some(part(Some(key.value.to_string()), &item.value)),
                _ => None,
            });
            keyed.collect()
        }
        _ => vec![part(None, value)],
    }
}

impl<'a> Walker<'a> {
    /// Records the parts of a `return` statement's value; whether it gives arrays, and on which parameter
    /// that depends.
    pub(super) fn record_return(&mut self, returned: Option<&'a Expr>) {
        self.frame.returns += 1;
        let parts = returned.map_or_else(Vec::new, parts_of);
        let known = &mut self.facts.functions[self.frame.function.index()].returns;
        // The body of a loop is walked more than once.
        if !parts.is_empty() && !known.contains(&parts) {
            known.push(parts);
        }
        if !returned.is_some_and(|returned| self.has_array(returned)) {
            return;
        }
        let guard = self.frame.guard.map(|id| self.facts.guard(id)).filter(|guard| !guard.negated);
        let test = guard.map(|guard| self.slice(guard.test));
        let parameters = &self.facts.function(self.frame.function).parameters;
        let switch = test.filter(|test| parameters.iter().any(|name| name == test));
        let node = self.definitions.functions[self.frame.function.index()].node;
        let is_on = |name: &str| {
            let mut all = node.into_iter().flat_map(|node| node.parameters.iter_non_variadic_params());
            let default =
                all.find(|own| own.parameter.name.id.as_str() == name).and_then(|own| own.default());
            default.is_some_and(|value| !["False", "None", "0"].contains(&self.slice(super::span(value))))
        };
        let switch = switch.map(|name| ArraySwitch { name: name.to_owned(), is_on: is_on(name) });
        self.frame.arrays.push(switch);
    }

    /// Returns `true` for an expression with a part that is a NumPy array.
    fn has_array(&mut self, expression: &'a Expr) -> bool {
        match expression {
            Expr::Tuple(node) => node.elts.iter().any(|part| self.has_array(part)),
            Expr::List(node) => node.elts.iter().any(|part| self.has_array(part)),
            Expr::Dict(node) => node.items.iter().any(|item| self.has_array(&item.value)),
            Expr::Call(call) => {
                let is_converted =
                    matches!(&*call.func, Expr::Attribute(way) if way.attr.id.as_str() == "numpy");
                is_converted || self.imported_name(&call.func).is_some_and(|path| path.starts_with("numpy."))
            }
            _ => false,
        }
    }

    /// Models in the returned value of a function, and in its graphs: those that it makes, and those of its
    /// parameters.
    pub(super) fn returned_models(
        &self,
        id: FunctionId,
        frame: &Frame<'a>,
        returned: Option<&Returned>,
        made: &[(u32, GraphState, Weights)],
    ) -> Vec<(ModelId, ModelOrigin)> {
        let Some(node) = self.definitions.functions[id.index()].node else { return Vec::new() };
        let mut all: Vec<&Weights> = Vec::new();
        if let Some(returned) = returned {
            returned.value.all_weights(&mut all);
        }
        all.extend(made.iter().map(|(_, _, weights)| weights));
        let mut owners: Vec<ModelId> = all.iter().flat_map(|weights| weights.owners()).copied().collect();
        owners.sort_unstable();
        owners.dedup();
        let own = super::span(node);
        let inside = |at: u32| own.start < at && at <= own.end;
        // What an object or the module keeps is not made for the caller alone.
        let is_kept = |id: ModelId| {
            let mut kept = frame.env.kept(&frame.globals);
            kept.any(|value| value.weights.owners().contains(&id))
        };
        let parameters = &self.facts.function(id).parameters;
        let origin = |owner: ModelId| match self.origin(owner)? {
            Origin::Call(at) | Origin::Returned(at, _) if inside(*at) && !is_kept(owner) => {
                Some(ModelOrigin::Made(Box::new(self.facts.models[owner.index()].clone())))
            }
            Origin::Name(function, name) if *function == id => {
                match parameters.iter().position(|parameter| parameter == name) {
                    Some(index) => Some(ModelOrigin::Given(index)),
                    // A model of unknown origin, for which each call has a name of its own.
                    None if frame.env.is_own(name) && !frame.globals.contains(name.as_str()) => {
                        Some(ModelOrigin::Made(Box::new(self.facts.models[owner.index()].clone())))
                    }
                    None => None,
                }
            }
            _ => None,
        };
        owners.into_iter().filter_map(|owner| Some((owner, origin(owner)?))).collect()
    }

    /// Models of a call's result.
    pub(super) fn adopt(
        &mut self,
        summary: &Summary,
        returned: Option<&Returned>,
        given: &dyn Fn(usize) -> Option<(Value, &'a str)>,
        call: Span,
        is_here: bool,
    ) -> Adopted {
        let mut adopted = Adopted { is_here, ..Adopted::default() };
        if summary.models.is_empty() {
            return adopted;
        }
        let made = |id: &ModelId| {
            summary.models.iter().find_map(|(known, origin)| match origin {
                ModelOrigin::Made(model) if known == id => Some(&**model),
                _ => None,
            })
        };
        let mut all: Vec<&Weights> = Vec::new();
        if let Some(returned) = returned {
            returned.value.all_weights(&mut all);
        }
        // One of several models that branches make, such as those of a factory, is one model for the caller.
        let alternatives = |weights: &&&Weights| {
            let owners = weights.owners();
            let whole = |other: &&Weights| {
                let shared = other.owners().iter().filter(|owner| owners.contains(owner)).count();
                shared == 0 || shared == owners.len()
            };
            owners.len() > 1
                && !weights.is_exact()
                && owners.iter().all(|id| made(id).is_some())
                && all.iter().all(whole)
        };
        for weights in all.iter().filter(alternatives) {
            let owners = weights.owners();
            if adopted.ones.iter().any(|one| one == owners) {
                continue;
            }
            let models: Vec<&Model> = owners.iter().filter_map(made).collect();
            let id = self.returned_model(call, owners[0], &models);
            adopted.models.extend(owners.iter().map(|owner| (*owner, Weights::from_model(id))));
            adopted.ones.push(owners.to_vec());
        }
        for (id, origin) in &summary.models {
            if adopted.models.iter().any(|(known, _)| known == id) {
                continue;
            }
            let weights = match origin {
                ModelOrigin::Made(model) => Weights::from_model(self.returned_model(call, *id, &[model])),
                ModelOrigin::Given(index) => match given(*index) {
                    Some((value, text)) => self.weights_of(text, &value),
                    None => Weights::default(),
                },
            };
            adopted.models.push((*id, weights));
        }
        adopted
    }

    /// Model that a call makes, by what is common to its alternatives.
    fn returned_model(&mut self, call: Span, id: ModelId, alternatives: &[&Model]) -> ModelId {
        let known = self.model(Origin::Returned(call.end, id));
        let model = &mut self.facts.models[known.index()];
        model.made = alternatives.iter().all(|one| one.made);
        model.has_parameters = alternatives.iter().all(|one| one.has_parameters);
        model.loops = alternatives.iter().any(|one| one.loops);
        model.detaches = alternatives.iter().any(|one| one.detaches);
        model.array_switches = alternatives.iter().flat_map(|one| &one.array_switches).cloned().collect();
        if let [one] = alternatives {
            model.parts.clone_from(&one.parts);
            model.of_project = one.of_project;
            model.carries.clone_from(&one.carries);
            model.outputs.clone_from(&one.outputs);
            // A relative name is one of the function's folder.
            model.class_path = one.class_path.clone().filter(|path| !path.starts_with('.'));
        }
        known
    }
}

impl Summary {
    /// Returns `true` if a call may get arrays in place of tensors: some `return` statements give arrays, and
    /// the arguments do not rule them out.
    pub(crate) fn may_give_arrays(&self, call: &Call, skipped: usize) -> bool {
        self.arrays.iter().any(|switch| {
            let Some(ArraySwitch { name, is_on }) = switch else { return true };
            let index = self.parameters.iter().position(|parameter| parameter == name);
            let place = index.and_then(|index| index.checked_sub(skipped));
            let given = place.and_then(|place| call.argument(place, name)).or_else(|| call.keyword(name));
            given.map_or_else(|| *is_on || call.is_open(), |given| given.value.truth() != Some(false))
        })
    }
}
