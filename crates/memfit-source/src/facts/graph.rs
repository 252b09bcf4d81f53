//! Autograd graphs of values.

use smallvec::{SmallVec, smallvec};

/// Forward passes that a value's autograd graph contains.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// Ids of the forward passes, in ascending order.
    pub(crate) ids: SmallVec<[u32; 4]>,
    /// `true` if there may be others, or the graph may be cut.
    pub(crate) unknown: bool,
    /// A graph that is certainly there, although others may be unknown: that of a value on which `backward()`
    /// is called.
    pub(crate) own: Option<u32>,
    /// Those of the ids that unknown code may have cut off.
    pub(crate) cut: SmallVec<[u32; 2]>,
    /// `true` if there certainly is a graph, on each control-flow path.
    pub(crate) there: bool,
}

impl Clone for Graph {
    // Written by hand for speed, since values are copied often: a slice of numbers is copied at once.
    fn clone(&self) -> Self {
        Self {
            ids: SmallVec::from_slice(&self.ids),
            unknown: self.unknown,
            own: self.own,
            cut: SmallVec::from_slice(&self.cut),
            there: self.there,
        }
    }
}

/// Maximum number of forward passes in a graph; more are not distinguished.
const MAX_GRAPH_IDS: usize = 12;

impl Graph {
    pub(crate) fn none() -> Self {
        Self::default()
    }

    pub(crate) fn unknown() -> Self {
        Self { unknown: true, ..Self::default() }
    }

    /// Graph of a forward pass.
    pub(crate) fn one(id: u32) -> Self {
        Self { ids: smallvec![id], there: true, ..Self::default() }
    }

    /// Graph that a parameter may have.
    pub(crate) fn of_parameter(id: u32) -> Self {
        Self { ids: smallvec![id], ..Self::default() }
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        if other.ids.is_empty() {
            return Self {
                unknown: self.unknown || other.unknown,
                own: self.own.or(other.own),
                there: self.there || other.there,
                ..self.clone()
            };
        }
        let mut ids = self.ids.clone();
        ids.extend_from_slice(&other.ids);
        ids.sort_unstable();
        ids.dedup();
        let full = ids.len() > MAX_GRAPH_IDS;
        if full {
            ids.drain(..ids.len() - MAX_GRAPH_IDS);
        }
        let unknown = self.unknown || other.unknown || full;
        let cut = ids.iter().copied().filter(|id| !self.has(*id) && !other.has(*id)).collect();
        Self { ids, unknown, own: self.own.or(other.own), cut, there: self.there || other.there }
    }

    /// Join of two control-flow paths. Graphs of one of them are kept: that path is possible.
    pub(crate) fn either(&self, other: &Self) -> Self {
        if self == other {
            return self.clone();
        }
        let own = self.own.filter(|_| other.own.is_some());
        Self { unknown: true, own, there: self.there && other.there, ..self.union(other) }
    }

    /// Graph of any element of a container: what is not in all of those that have one is uncertain.
    pub(crate) fn of_elements(&self, other: &Self) -> Self {
        if self.is_none() || other.is_none() {
            return Self { unknown: true, there: false, ..self.union(other) };
        }
        let all = self.either(other);
        let cut = all.ids.iter().copied().filter(|id| !self.has(*id) || !other.has(*id)).collect();
        Self { cut, ..all }
    }

    /// Returns a copy, or the empty graph if `there` is `false`.
    pub(crate) fn clone_if(&self, there: bool) -> Self {
        if there { self.clone() } else { Self::none() }
    }

    /// Graph of a result of unknown code, which may have cut it.
    pub(crate) fn with_unknown(mut self) -> Self {
        self.unknown = true;
        self.own = None;
        self.there = false;
        self.cut = self.ids.iter().copied().collect();
        self
    }

    /// The part that no unknown code may have cut off, on some control-flow path.
    pub(crate) fn uncut(&self) -> Self {
        Self {
            ids: self.ids.iter().copied().filter(|id| self.has(*id)).collect(),
            there: self.there,
            ..Self::default()
        }
    }

    /// Adds a graph that is certainly there.
    pub(crate) fn with_own(self, id: u32) -> Self {
        Self { own: Some(id), ..self.union(&Self::one(id)) }
    }

    /// Returns `true` if a backward pass through one graph may go through a part of the other.
    pub fn may_share(&self, other: &Self) -> bool {
        self.unknown || other.unknown || self.ids.iter().any(|id| other.ids.contains(id))
    }

    /// Returns `true` if a forward pass of the other is in it, at least on one control-flow path.
    pub fn overlaps(&self, other: &Self) -> bool {
        other.ids.iter().any(|id| self.has(*id) && other.has(*id))
    }

    /// Returns `true` if it was built before the end of the other: its last forward pass is not a later one.
    pub fn is_no_later_than(&self, other: &Self) -> bool {
        self.ids.last() <= other.ids.last()
    }

    /// Returns `true` if the last forward pass of the other, that of a model's output, is certainly in it.
    pub fn contains(&self, other: &Self) -> bool {
        other.ids.last().is_some_and(|id| self.has(*id))
    }

    /// Returns `true` if a forward pass is in it, at least on one control-flow path.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.ids.contains(&id) && !self.cut.contains(&id)
    }

    /// Returns `true` if there is certainly a graph, although others may be unknown.
    pub const fn is_certain(&self) -> bool {
        self.there || self.own.is_some()
    }

    /// Returns `true` for the graph of a result of unknown code.
    pub fn is_unseen(&self) -> bool {
        self.unknown && !self.is_certain()
    }

    /// Returns `true` if a forward pass is in it, at least on one control-flow path.
    pub fn has_passes(&self) -> bool {
        self.ids.iter().any(|id| self.has(*id))
    }

    /// Returns `true` if at least one forward pass is known.
    pub fn is_known(&self) -> bool {
        !self.ids.is_empty() && !self.unknown
    }

    /// Returns `true` if there is certainly no graph.
    pub fn is_none(&self) -> bool {
        self.ids.is_empty() && !self.unknown
    }
}

/// State of a value's graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphState {
    /// There is no graph.
    None,
    /// The graph's activations are alive.
    Live,
    /// The graph is alive after a backward pass with `retain_graph`.
    Retained,
    /// A backward pass has freed the graph.
    Freed,
    /// There is a graph, and a backward pass may have freed it.
    Kept,
    /// Unknown.
    #[default]
    Unknown,
}

impl GraphState {
    /// State after one of two control-flow paths.
    #[must_use]
    pub(crate) fn either(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (a, b) if a.is_there() && b.is_there() => Self::Kept,
            _ => Self::Unknown,
        }
    }

    /// Returns `true` if there is certainly a graph, alive or freed.
    pub const fn is_there(self) -> bool {
        matches!(self, Self::Live | Self::Retained | Self::Freed | Self::Kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_are_bounded() {
        let mut graph = Graph::none();
        for id in 0..100 {
            graph = graph.union(&Graph::one(id));
        }
        assert!(graph.ids.len() <= MAX_GRAPH_IDS && graph.unknown);
    }

    #[test]
    fn cut_graphs_are_bounded() {
        let mut graph = Graph::one(0).with_unknown();
        for id in 0..100 {
            graph = graph.union(&graph.clone()).union(&Graph::one(id).with_unknown());
        }
        assert!(graph.cut.iter().all(|id| graph.ids.contains(id)) && graph.cut.len() <= MAX_GRAPH_IDS);
    }
}
