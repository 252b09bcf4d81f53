//! Bit set of segment indices.

use super::chains::SegmentIndex;

/// One bit for each index, up to the highest that was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Set(Vec<u64>);

impl Set {
    fn add(&mut self, place: SegmentIndex) {
        let word = place.index() / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (place.index() % 64);
    }

    pub(super) fn has(&self, place: SegmentIndex) -> bool {
        self.0.get(place.index() / 64).is_some_and(|word| word >> (place.index() % 64) & 1 == 1)
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own |= other);
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(own, other)| own & other != 0)
    }
}

impl FromIterator<SegmentIndex> for Set {
    fn from_iter<Places: IntoIterator<Item = SegmentIndex>>(places: Places) -> Self {
        let mut set = Self::default();
        places.into_iter().for_each(|place| set.add(place));
        set
    }
}
