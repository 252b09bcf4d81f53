//! Whose parameters something goes to: an optimizer that holds them, a backward pass that reaches them.
//!
//! A model is told apart from others by the call that made it, or by the name that a function knows it by.
//! Two models that were made by two calls are two; two names may be one model.

use std::sync::Arc;

use super::{Facts, ModelId};

/// A model, or a part of one.
#[derive(Clone, Debug)]
pub struct Model {
    /// The model that it is a part of.
    pub(crate) parent: Option<ModelId>,
    /// The call that made it is in the text.
    pub(crate) made: bool,
    /// It has parameters, as the text shows: an activation has none.
    pub(crate) has_parameters: bool,
}

/// The parameters of models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Whose, in ascending order; nothing where none is told.
    owners: Option<Arc<[ModelId]>>,
    /// There may be others.
    more: bool,
    /// Some of these may not be among them.
    maybe: bool,
}

/// Whether two sets of parameters have some in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// They have.
    Yes,
    /// They have none.
    No,
    /// Cannot be told.
    Unknown,
}

/// More owners than these are not told apart.
const MAX_OWNERS: usize = 16;

impl Weights {
    pub(crate) fn of(model: ModelId) -> Self {
        Self { owners: Some(Arc::from([model])), ..Self::default() }
    }

    /// Whether anything is told.
    pub const fn is_told(&self) -> bool {
        self.owners.is_some()
    }

    /// Whether these are all, and certainly so.
    pub const fn is_exact(&self) -> bool {
        self.owners.is_some() && !self.more && !self.maybe
    }

    pub(crate) fn owners(&self) -> &[ModelId] {
        self.owners.as_deref().unwrap_or_default()
    }

    /// The one model that these are the parameters of.
    pub(crate) fn only(&self) -> Option<ModelId> {
        match self.owners() {
            [one] if self.is_exact() => Some(*one),
            _ => None,
        }
    }

    /// These, and there may be others.
    #[must_use]
    pub(crate) fn and_more(mut self) -> Self {
        self.more = true;
        self
    }

    /// Some of these, or all.
    #[must_use]
    pub(crate) fn perhaps(mut self) -> Self {
        self.maybe = true;
        self
    }

    /// Both.
    #[must_use]
    pub(crate) fn union(&self, other: &Self) -> Self {
        if !other.is_told() {
            return Self { more: self.more || other.more, ..self.clone() };
        }
        if !self.is_told() {
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

    /// One of two, whichever way the program went.
    #[must_use]
    pub(crate) fn either(&self, other: &Self) -> Self {
        if self == other { self.clone() } else { self.union(other).and_more().perhaps() }
    }
}

impl Facts {
    /// Whether two sets of parameters have some in common.
    pub fn overlap(&self, a: &Weights, b: &Weights) -> Overlap {
        if !a.is_told() || !b.is_told() {
            return Overlap::Unknown;
        }
        let pairs = || a.owners().iter().flat_map(|a| b.owners().iter().map(move |b| (*a, *b)));
        if pairs().any(|(a, b)| self.is_part(a, b) || self.is_part(b, a)) {
            return if a.maybe || b.maybe { Overlap::Unknown } else { Overlap::Yes };
        }
        let apart = !a.more && !b.more && pairs().all(|(a, b)| self.is_apart(a, b));
        if apart { Overlap::No } else { Overlap::Unknown }
    }

    /// Whether all of the parameters of the one are certainly among those of the other.
    pub fn covers(&self, whole: &Weights, part: &Weights) -> bool {
        part.is_exact()
            && whole.is_exact()
            && part.owners().iter().all(|part| whole.owners().iter().any(|whole| self.is_part(*part, *whole)))
    }

    /// Whether these are certainly parameters: those of models of which one at least has some.
    pub fn are_parameters(&self, weights: &Weights) -> bool {
        let has = |id: &ModelId| self.models.get(id.index()).is_some_and(|model| model.has_parameters);
        weights.is_exact() && weights.owners().iter().any(has)
    }

    /// Whether a model is another, or a part of it.
    fn is_part(&self, part: ModelId, whole: ModelId) -> bool {
        std::iter::successors(Some(part), |id| self.models.get(id.index())?.parent).any(|id| id == whole)
    }

    /// Whether two models are certainly two.
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
    fn what_was_made_twice_is_apart_and_what_was_named_twice_may_be_one() {
        let model =
            |parent: Option<u32>, made| Model { parent: parent.map(ModelId), made, has_parameters: true };
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
        let of = |id| Weights::of(ModelId(id));
        let table = [
            (of(0), of(0), Overlap::Yes),
            (of(0), of(1), Overlap::No),
            (of(2), of(0), Overlap::Yes),
            (of(2), of(3), Overlap::No),
            (of(4), of(0), Overlap::Unknown),
            (of(0), Weights::default(), Overlap::Unknown),
            (of(0).and_more(), of(1), Overlap::Unknown),
            (of(0).and_more(), of(0), Overlap::Yes),
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
