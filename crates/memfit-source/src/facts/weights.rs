//! Ownership of parameters: which models an optimizer holds, or a backward pass reaches.
//!
//! Models are distinguished by the call that created them, or by the name that a function has for them. Two
//! calls create two models; two names may refer to one model.

use std::sync::Arc;

use super::{Facts, Flags, Kind, ModelId, Value};

/// Model, or a part of one.
#[derive(Clone, Debug)]
pub struct Model {
    /// Enclosing model.
    pub(crate) parent: Option<ModelId>,
    /// `true` if the call that created it is in the text.
    pub(crate) made: bool,
    /// `true` if the text shows that it has parameters; an activation has none.
    pub(crate) has_parameters: bool,
    /// Attributes with layers that have parameters, if its class trains all of them.
    pub(crate) parts: Vec<String>,
    /// `true` if its class is of the project, so that its own layers are in the text.
    pub(crate) of_project: bool,
    /// Attribute in which its forward pass hands a state with its graph to the next one.
    pub(crate) carries: Option<String>,
    /// `true` if methods of its class cut values from their graphs.
    pub(crate) detaches: bool,
    /// Last operation on each part of its output, if that is a tuple and its class is in another module.
    pub(crate) outputs: Option<Vec<Flags>>,
    /// `true` if its forward pass calls another model in a loop, as a sampler does.
    pub(crate) loops: bool,
    /// Full name of its class, if that is of another module of the project.
    pub(crate) class_path: Option<Arc<str>>,
    /// Arguments of its forward pass under which it returns NumPy arrays.
    pub(crate) array_switches: Vec<String>,
}

/// Set of models' parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Owning models in ascending order, or `None` if unknown.
    owners: Option<Arc<[ModelId]>>,
    /// `true` if there may be other owners.
    more: bool,
    /// `true` if some of these may not belong to the set.
    maybe: bool,
}

/// Overlap of two sets of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// They overlap.
    Yes,
    /// They are disjoint.
    No,
    /// Unknown.
    Unknown,
}

/// Maximum number of owners; more are not distinguished.
const MAX_OWNERS: usize = 16;

impl Weights {
    pub(crate) fn from_model(model: ModelId) -> Self {
        Self { owners: Some(Arc::from([model])), ..Self::default() }
    }

    /// Returns `true` if the owners are known.
    pub const fn is_known(&self) -> bool {
        self.owners.is_some()
    }

    /// Returns `true` if the set is exactly that of its owners.
    pub const fn is_exact(&self) -> bool {
        self.owners.is_some() && !self.more && !self.maybe
    }

    pub(crate) fn owners(&self) -> &[ModelId] {
        self.owners.as_deref().unwrap_or_default()
    }

    /// The only owner, if there is one.
    pub(crate) fn sole_owner(&self) -> Option<ModelId> {
        match self.owners() {
            [one] if self.is_exact() => Some(*one),
            _ => None,
        }
    }

    /// Marks the set as possibly larger.
    #[must_use]
    pub(crate) fn with_unknown_owners(mut self) -> Self {
        self.more = true;
        self
    }

    /// Marks each member as uncertain.
    #[must_use]
    pub(crate) fn uncertain(mut self) -> Self {
        self.maybe = true;
        self
    }

    /// The set with each owner replaced. Owners without a replacement are unknown ones. `is_one` tells that
    /// all owners are alternatives for one model.
    #[must_use]
    pub(crate) fn replaced(&self, of: &dyn Fn(ModelId) -> Option<Self>, is_one: bool) -> Self {
        let found: Vec<Option<Self>> = self.owners().iter().map(|owner| of(*owner)).collect();
        let more = self.more || found.iter().any(|owner| !owner.as_ref().is_some_and(Self::is_known));
        let all = found.iter().flatten().fold(Self::default(), |all, one| all.union(one));
        if !all.is_known() {
            return Self::default();
        }
        Self { more: all.more || more, maybe: all.maybe || self.maybe && !is_one, ..all }
    }

    /// Union of two sets.
    #[must_use]
    pub(crate) fn union(&self, other: &Self) -> Self {
        if !other.is_known() {
            return Self { more: self.more || other.more, ..self.clone() };
        }
        if !self.is_known() {
            return Self { more: self.more || other.more, ..other.clone() };
        }
        let mut owners: Vec<ModelId> = self.owners().iter().chain(other.owners()).copied().collect();
        owners.sort_unstable();
        owners.dedup();
        let full = owners.len() > MAX_OWNERS;
        owners.truncate(MAX_OWNERS);
        Self {
            owners: Some(owners.into()),
            more: self.more || other.more || full,
            maybe: self.maybe || other.maybe,
        }
    }

    /// Join of two control-flow paths.
    #[must_use]
    pub(crate) fn either(&self, other: &Self) -> Self {
        if self == other {
            self.clone()
        } else if self.is_known() && other.is_known() {
            self.union(other).uncertain()
        } else {
            self.union(other).with_unknown_owners().uncertain()
        }
    }
}

impl Value {
    /// Replaces the weights of it and its parts.
    pub(crate) fn map_weights(&mut self, weights: &dyn Fn(&Weights) -> Weights) {
        self.change_parts(&|value| {
            if value.weights.is_known() {
                value.weights = weights(&value.weights);
            }
        });
    }

    /// Weights of it and its parts, where they are known.
    pub(crate) fn all_weights<'v>(&'v self, into: &mut Vec<&'v Weights>) {
        if self.weights.is_known() {
            into.push(&self.weights);
        }
        if let Some(items) = &self.items {
            items.all_weights(into);
        }
        if let Kind::Tuple(parts) = &self.kind {
            parts.iter().for_each(|part| part.all_weights(into));
        }
    }
}

impl Facts {
    /// Overlap of two sets of parameters.
    pub fn overlap(&self, a: &Weights, b: &Weights) -> Overlap {
        if !a.is_known() || !b.is_known() {
            return Overlap::Unknown;
        }
        let pairs = || a.owners().iter().flat_map(|a| b.owners().iter().map(move |b| (*a, *b)));
        if pairs().any(|(a, b)| self.is_part(a, b) || self.is_part(b, a)) {
            return if a.maybe || b.maybe { Overlap::Unknown } else { Overlap::Yes };
        }
        let apart = !a.more && !b.more && pairs().all(|(a, b)| self.is_apart(a, b));
        if apart { Overlap::No } else { Overlap::Unknown }
    }

    /// Returns `true` if all parameters of `part` are certainly in `whole`.
    pub fn covers(&self, whole: &Weights, part: &Weights) -> bool {
        part.is_exact()
            && whole.is_exact()
            && part.owners().iter().all(|part| whole.owners().iter().any(|whole| self.is_part(*part, *whole)))
    }

    /// Attribute in which the forward pass of a model hands a state to the next one.
    pub fn carried(&self, weights: &Weights) -> Option<&str> {
        let mut models = weights.owners().iter().filter_map(|id| self.models.get(id.index()));
        models.find_map(|model| model.carries.as_deref())
    }

    /// Returns `true` if the class of one of the models cuts values from their graphs, perhaps its outputs.
    pub fn detaches(&self, weights: &Weights) -> bool {
        weights.owners().iter().any(|id| self.models.get(id.index()).is_some_and(|model| model.detaches))
    }

    /// Returns `true` if a forward pass of one of the models calls another one in a loop.
    pub fn loops(&self, weights: &Weights) -> bool {
        weights.owners().iter().any(|id| self.models.get(id.index()).is_some_and(|model| model.loops))
    }

    /// Full name of the class of a model, if that is of another module of the project.
    pub(crate) fn class_path(&self, weights: &Weights) -> Option<&str> {
        let mut models = weights.owners().iter().rev().filter_map(|id| self.models.get(id.index()));
        models.find_map(|model| model.class_path.as_deref())
    }

    /// Attributes with layers of a model, if its class is of the project.
    pub fn parts(&self, weights: &Weights) -> impl Iterator<Item = &str> {
        // A model follows those that it is made of, whose attributes are not its own. A wrapper of a library
        // has none.
        let mut models = weights.owners().iter().rev().filter_map(|id| self.models.get(id.index()));
        let outer = models.find(|model| model.of_project);
        outer.into_iter().flat_map(|model| model.parts.iter().map(String::as_str))
    }

    /// Returns `true` if these are certainly parameters: at least one owner has some.
    pub fn are_parameters(&self, weights: &Weights) -> bool {
        let has = |id: &ModelId| self.models.get(id.index()).is_some_and(|model| model.has_parameters);
        weights.is_exact() && weights.owners().iter().any(has)
    }

    /// Returns `true` if `whole` certainly has parameters that are not in `part`. A wrapper such as
    /// `DistributedDataParallel` adds none to those of its model.
    pub fn exceeds(&self, whole: &Weights, part: &Weights) -> bool {
        let has = |id: ModelId| {
            std::iter::successors(Some(id), |id| self.models.get(id.index())?.parent)
                .any(|id| self.models.get(id.index()).is_some_and(|model| model.has_parameters))
        };
        let held = |id: ModelId| part.owners().iter().any(|part| self.is_part(id, *part));
        whole.is_exact() && part.is_exact() && whole.owners().iter().any(|id| has(*id) && !held(*id))
    }

    /// Returns `true` if `part` is `whole` or a part of it.
    fn is_part(&self, part: ModelId, whole: ModelId) -> bool {
        std::iter::successors(Some(part), |id| self.models.get(id.index())?.parent).any(|id| id == whole)
    }

    /// Returns `true` if two models are certainly different.
    fn is_apart(&self, a: ModelId, b: ModelId) -> bool {
        let (a_root, b_root) = (self.root(a), self.root(b));
        let made = |id: ModelId| self.models.get(id.index()).is_some_and(|model| model.made);
        a_root == b_root || (made(a_root) && made(b_root))
    }

    fn root(&self, id: ModelId) -> ModelId {
        std::iter::successors(Some(id), |id| self.models.get(id.index())?.parent).last().unwrap_or(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_models_are_distinct_and_two_names_may_be_one_model() {
        let model = |parent: Option<u32>, made| Model {
            parent: parent.map(ModelId),
            made,
            has_parameters: true,
            parts: Vec::new(),
            of_project: false,
            carries: None,
            detaches: false,
            outputs: None,
            loops: false,
            class_path: None,
            array_switches: Vec::new(),
        };
        let facts = Facts {
            models: vec![
                model(None, true),
                model(None, true),
                model(Some(0), true),
                model(Some(0), true),
                model(None, false),
            ],
            ..Facts::default()
        };
        let of = |id| Weights::from_model(ModelId(id));
        let table = [
            (of(0), of(0), Overlap::Yes),
            (of(0), of(1), Overlap::No),
            (of(2), of(0), Overlap::Yes),
            (of(2), of(3), Overlap::No),
            (of(4), of(0), Overlap::Unknown),
            (of(0), Weights::default(), Overlap::Unknown),
            (of(0).with_unknown_owners(), of(1), Overlap::Unknown),
            (of(0).with_unknown_owners(), of(0), Overlap::Yes),
            (of(0).either(&of(1)), of(0), Overlap::Unknown),
            (of(0).union(&of(1)), of(1), Overlap::Yes),
        ];
        for (a, b, overlap) in table {
            assert_eq!(facts.overlap(&a, &b), overlap, "{a:?} {b:?}");
            assert_eq!(facts.overlap(&b, &a), overlap, "{b:?} {a:?}");
        }
        assert!(facts.covers(&of(0), &of(2)) && !facts.covers(&of(2), &of(0)));
    }
}
