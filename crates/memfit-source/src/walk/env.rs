//! Bindings of names, with undo: branches are walked one after another from the same state.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::facts::{CounterBinding, LoopId};
use crate::facts::{Graph, GraphState, Kind, Value, Weights};

/// Value of a name and the way it was bound.
#[derive(Clone, Debug)]
pub(super) struct Binding {
    pub(super) value: Value,
    pub(super) looped: Option<LoopId>,
    /// Outermost loop that it may be bound in: a value that is reset on one path only is carried on the
    /// others.
    pub(super) outer: Option<LoopId>,
    pub(super) how: CounterBinding,
}

/// Names of a function, and their values.
#[derive(Debug, Default)]
pub(super) struct Env<'a> {
    names: FxHashMap<&'a str, Binding>,
    log: Vec<(&'a str, Option<Binding>)>,
}

/// Maximum number of attributes of an object that are followed through a call.
const MAX_ATTRIBUTES: usize = 64;

/// Changes made by a branch.
#[derive(Debug, Default)]
pub(super) struct Delta<'a> {
    names: FxHashMap<&'a str, Option<Binding>>,
    states: FxHashMap<u32, GraphState>,
    /// Graphs created by the branch.
    made: Range<u32>,
}

impl<'a> Env<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&Binding> {
        self.names.get(name)
    }

    pub(super) fn set(&mut self, name: &'a str, binding: Binding) {
        let old = self.names.insert(name, binding);
        self.log.push((name, old));
    }

    /// Replaces the outermost loop of the names that are bound in some loop.
    pub(super) fn outlive(&mut self, outside: impl Fn(LoopId) -> Option<Option<LoopId>>) {
        let earlier = self.names.iter().filter_map(|(name, binding)| {
            let outer = outside(binding.outer?)?;
            Some((*name, Binding { outer, ..binding.clone() }))
        });
        for (name, binding) in earlier.collect::<Vec<_>>() {
            self.set(name, binding);
        }
    }

    pub(super) fn remove(&mut self, name: &'a str) {
        if let Some(old) = self.names.remove(name) {
            self.log.push((name, Some(old)));
        }
    }

    /// Forgets attributes of a name that is rebound: `self.x` when `self` is.
    pub(super) fn remove_below(&mut self, name: &str) {
        if self.names.len() > 256 {
            return;
        }
        let below: Vec<&'a str> = self
            .names
            .keys()
            .filter(|key| {
                key.len() > name.len() && key.starts_with(name) && b".[".contains(&key.as_bytes()[name.len()])
            })
            .copied()
            .collect();
        for key in below {
            self.remove(key);
        }
    }

    /// Names that are bound by other than being parameters.
    pub(super) fn bound(&self) -> impl Iterator<Item = &'a str> + '_ {
        let bound = self.names.iter().filter(|(_, binding)| binding.how != CounterBinding::Parameter);
        bound.map(|(name, _)| *name).filter(|name| !name.contains(['.', '[']))
    }

    /// Returns `true` for a name that the function binds by other than being a parameter.
    pub(super) fn is_own(&self, name: &str) -> bool {
        self.names.get(name).is_some_and(|binding| binding.how != CounterBinding::Parameter)
    }

    /// Tensors and numbers that a method binds to attributes of its object.
    pub(super) fn attributes(&self) -> Vec<(Arc<str>, Value)> {
        let mut found: Vec<(Arc<str>, Value)> = self
            .names
            .iter()
            .filter_map(|(name, binding)| {
                let attribute = name.strip_prefix("self.").filter(|rest| !rest.contains(['.', '[']))?;
                let plain = matches!(
                    binding.value.kind,
                    Kind::Tensor | Kind::Unknown | Kind::None | Kind::Number | Kind::Int(_)
                );
                plain.then(|| (Arc::from(attribute), binding.value.clone()))
            })
            .collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.truncate(MAX_ATTRIBUTES);
        found
    }

    /// Values that objects and the module keep: those of attributes, and of global names.
    pub(super) fn kept<'s>(&'s self, globals: &'s FxHashSet<&'a str>) -> impl Iterator<Item = &'s Value> {
        let outside = |name: &str| name.contains(['.', '[']) || globals.contains(name);
        self.names.iter().filter(move |(name, _)| outside(name)).map(|(_, binding)| &binding.value)
    }

    /// Copy of all bindings.
    pub(super) fn snapshot(&self) -> FxHashMap<&'a str, Binding> {
        self.names.clone()
    }

    pub(super) fn into_names(self) -> FxHashMap<&'a str, Binding> {
        self.names
    }
}

/// Names that an enclosing function bound, where that function is not being walked: its graphs and loops are
/// not those of the nested one.
pub(super) fn forget_graphs<'a>(seen: &FxHashMap<&'a str, Binding>) -> Arc<FxHashMap<&'a str, Binding>> {
    let forgotten = seen.iter().map(|(name, binding)| {
        let mut binding = binding.clone();
        binding.value.graph = Graph::unknown().clone_if(!binding.value.graph.is_none());
        binding.value.forget_item_graphs();
        (binding.looped, binding.outer) = (None, None);
        (*name, binding)
    });
    Arc::new(forgotten.collect())
}

/// States of all graphs of a text.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    states: Vec<GraphState>,
    weights: Vec<Weights>,
    log: Vec<(u32, GraphState)>,
}

impl Graphs {
    pub(super) fn fresh(&mut self, state: GraphState, weights: Weights) -> u32 {
        self.states.push(state);
        self.weights.push(weights);
        self.states.len() as u32 - 1
    }

    /// Parameters used by a forward pass.
    pub(super) fn weights(&self, id: u32) -> &Weights {
        static NONE: std::sync::LazyLock<Weights> = std::sync::LazyLock::new(Weights::default);
        self.weights.get(id as usize).unwrap_or(&NONE)
    }

    pub(super) fn state(&self, id: u32) -> GraphState {
        self.states.get(id as usize).copied().unwrap_or_default()
    }

    pub(super) fn set(&mut self, id: u32, state: GraphState) {
        if let Some(slot) = self.states.get_mut(id as usize)
            && *slot != state
        {
            self.log.push((id, *slot));
            *slot = state;
        }
    }

    /// Marks live graphs as possibly freed by unknown code.
    pub(super) fn mark_uncertain(&mut self, since: u32) {
        for id in since..self.states.len() as u32 {
            if self.state(id) == GraphState::Live {
                self.set(id, GraphState::Kept);
            }
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.states.len() as u32
    }

    /// Combined state of a value's graphs.
    pub(super) fn state_of(&self, value: &Value) -> GraphState {
        if value.graph.is_none() {
            return GraphState::None;
        }
        // One live element keeps its graph, whatever the others are.
        if let Kind::Tuple(parts) = &value.kind {
            let alive = [GraphState::Retained, GraphState::Live];
            let states: Vec<GraphState> = parts.iter().map(|part| self.state_of(part)).collect();
            if let Some(state) = alive.into_iter().find(|state| states.contains(state)) {
                return state;
            }
        }
        let states = || value.graph.ids.iter().map(|id| self.state(*id));
        if value.graph.unknown {
            return value.graph.own.map_or_else(|| self.state_of_certain(value), |own| self.state(own));
        }
        if states().any(|state| state == GraphState::Retained) {
            return GraphState::Retained;
        }
        if states().any(|state| state == GraphState::Live) {
            return GraphState::Live;
        }
        if states().all(|state| state == GraphState::Freed) {
            return GraphState::Freed;
        }
        if states().all(GraphState::is_there) {
            return GraphState::Kept;
        }
        // An input may have no graph; a pass certainly has one.
        let known = || states().filter(|state| *state != GraphState::Unknown);
        if value.graph.there && known().next().is_some() && known().all(GraphState::is_there) {
            return GraphState::Kept;
        }
        value.graph.own.map_or(GraphState::Unknown, |own| self.state(own))
    }
}

impl Graphs {
    /// State of a graph that is there, while others may be.
    fn state_of_certain(&self, value: &Value) -> GraphState {
        if !value.graph.there {
            return GraphState::Unknown;
        }
        let own = value.graph.ids.iter().filter(|id| value.graph.has(**id));
        let states: Vec<GraphState> =
            own.map(|id| self.state(*id)).filter(|state| state.is_there()).collect();
        match states.as_slice() {
            [] => GraphState::Unknown,
            all if all.contains(&GraphState::Retained) => GraphState::Retained,
            all if all.iter().all(|state| *state == GraphState::Live) => GraphState::Live,
            _ => GraphState::Kept,
        }
    }
}

/// Undo position at the start of a branch.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    names: usize,
    states: usize,
    graphs: u32,
}

pub(super) fn mark(env: &Env<'_>, graphs: &Graphs) -> Mark {
    Mark { names: env.log.len(), states: graphs.log.len(), graphs: graphs.count() }
}

/// Undoes the changes since the mark and returns them.
pub(super) fn take<'a>(env: &mut Env<'a>, graphs: &mut Graphs, since: Mark) -> Delta<'a> {
    let mut delta = Delta { made: since.graphs..graphs.count(), ..Delta::default() };
    while env.log.len() > since.names {
        let Some((name, old)) = env.log.pop() else { break };
        let now = match old {
            Some(old) => env.names.insert(name, old),
            None => env.names.remove(name),
        };
        delta.names.entry(name).or_insert(now);
    }
    while graphs.log.len() > since.states {
        let Some((id, old)) = graphs.log.pop() else { break };
        if let Some(slot) = graphs.states.get_mut(id as usize) {
            delta.states.entry(id).or_insert(*slot);
            *slot = old;
        }
    }
    delta
}

/// Merges branches: facts on which all agree are kept.
pub(super) fn merge<'a>(env: &mut Env<'a>, graphs: &mut Graphs, deltas: &[Delta<'a>]) {
    let mut names: Vec<&'a str> = deltas.iter().flat_map(|delta| delta.names.keys().copied()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let now = env.names.get(name).cloned();
        let mut ways =
            deltas.iter().map(|delta| delta.names.get(name).cloned().unwrap_or_else(|| now.clone()));
        let Some(first) = ways.next() else { continue };
        let joined = ways.fold(first, |a, b| match (a, b) {
            (Some(a), Some(b)) => Some(Binding {
                value: a.value.either(&b.value),
                looped: if a.looped == b.looped { a.looped } else { a.looped.or(b.looped) },
                outer: a.outer.min(b.outer),
                how: if a.how == b.how { a.how } else { CounterBinding::Elsewhere },
            }),
            (Some(one), None) | (None, Some(one)) => Some(one),
            (None, None) => None,
        });
        match joined {
            Some(binding) => env.set(name, binding),
            None => env.remove(name),
        }
    }
    let mut ids: Vec<u32> = deltas.iter().flat_map(|delta| delta.states.keys().copied()).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        let now = graphs.state(id);
        // A graph created in a branch is that branch's alone.
        let made = deltas.iter().find(|delta| delta.made.contains(&id));
        let of = |delta: &Delta<'_>| delta.states.get(&id).copied().unwrap_or(now);
        let joined = match made {
            Some(delta) => of(delta),
            None => deltas.iter().map(of).reduce(GraphState::either).unwrap_or(now),
        };
        graphs.set(id, joined);
    }
}

impl Delta<'_> {
    /// The changes where none of the branches is taken. Where several alternatives (`if …: … elif …: …`) all
    /// bind a name, one of them is meant to be taken.
    pub(super) fn of_no_branch(branches: &[Self]) -> Self {
        let mut none = Self::default();
        if let [first, others @ ..] = branches
            && !others.is_empty()
        {
            let in_all = |name: &&str| others.iter().all(|branch| branch.names.contains_key(*name));
            let common = first.names.iter().filter(|(name, _)| in_all(name));
            none.names = common.map(|(name, binding)| (*name, binding.clone())).collect();
        }
        none
    }

    /// Adds what another branch binds a name to.
    pub(super) fn bind_as_in(&mut self, branch: &Self, name: &str) {
        if let Some((name, binding)) = branch.names.get_key_value(name) {
            self.names.insert(*name, binding.clone());
        }
    }

    /// Keeps only changes to graphs.
    pub(super) fn forget_names(&mut self) {
        self.names.clear();
    }
}
