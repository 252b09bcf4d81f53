//! What the device's allocator keeps between parts, and when it is better emptied.
//!
//! An allocator that caches gives blocks of its own segments again. What was cut for one shape may not serve
//! another, and a segment of which a single block is in use cannot be given back; so a part may run out
//! although its tensors would fit. A cache that is emptied before a new kind of part holds nothing that is in
//! the way, and what the allocator has taken after such a part is what the part needs of the device, gaps
//! included. Emptying costs time, so it is done only for what was not run since the last time, and only where
//! it matters.

use std::collections::{BTreeMap, BTreeSet};

/// What there is for a part, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What the allocator may take beyond what was live before the window.
    pub room: u64,
    /// What it has taken and is in no tensor.
    pub cached: u64,
}

impl Space {
    /// Whether a need may meet the room's end if nothing of what is cached serves it.
    pub(crate) fn is_tight(self, need: u64) -> bool {
        need.saturating_add(self.cached) > self.room
    }

    /// Whether a need is so near the room that it is worth to know it.
    pub(crate) fn is_near(self, need: u64) -> bool {
        need > self.room / 2
    }
}

/// The parts whose blocks the allocator has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    /// Of each shape and its elements, the largest size that was run since the cache was emptied: smaller
    /// ones fit into its blocks.
    held: BTreeMap<String, BTreeMap<u64, u32>>,
    /// Parts of which it was decided whether to look at what they need: elements, size, and whether the
    /// first of a window.
    judged: BTreeMap<String, BTreeSet<(u64, u32, bool)>>,
}

impl Cache {
    /// Whether such a part was run since the cache was emptied, or a larger one.
    pub(crate) fn holds(&self, shape: &str, elements: u64, size: u32) -> bool {
        self.held.get(shape).and_then(|sizes| sizes.get(&elements)).is_some_and(|&largest| largest >= size)
    }

    /// Such a part is run.
    pub(crate) fn runs(&mut self, shape: &str, elements: u64, size: u32) {
        if !self.holds(shape, elements, size) {
            self.held.entry(shape.to_owned()).or_default().insert(elements, size);
        }
    }

    /// Nothing is cached any more.
    pub(crate) fn emptied(&mut self) {
        self.held.clear();
    }

    /// Whether it was decided before whether to look at such a part.
    pub(crate) fn is_judged(&self, shape: &str, part: (u64, u32, bool)) -> bool {
        self.judged.get(shape).is_some_and(|parts| parts.contains(&part))
    }

    /// It is decided.
    pub(crate) fn judges(&mut self, shape: &str, part: (u64, u32, bool)) {
        if !self.is_judged(shape, part) {
            self.judged.entry(shape.to_owned()).or_default().insert(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_run_is_held_until_it_is_emptied() {
        let mut cache = Cache::default();
        assert!(!cache.holds("a", 10, 4));
        cache.runs("a", 10, 4);
        assert!(cache.holds("a", 10, 4));
        assert!(cache.holds("a", 10, 3), "smaller ones fit into its blocks");
        assert!(!cache.holds("a", 10, 5));
        assert!(!cache.holds("a", 20, 4));
        cache.runs("a", 10, 2);
        assert!(cache.holds("a", 10, 4));
        cache.emptied();
        assert!(!cache.holds("a", 10, 2));
    }

    #[test]
    fn what_was_judged_stays_so() {
        let mut cache = Cache::default();
        cache.judges("a", (10, 4, true));
        cache.emptied();
        assert!(cache.is_judged("a", (10, 4, true)));
        assert!(!cache.is_judged("a", (10, 4, false)), "beside gradients it is another part");
    }

    #[test]
    fn what_is_cached_counts_as_lost() {
        let space = Space { room: 100, cached: 30 };
        assert!(!space.is_tight(70));
        assert!(space.is_tight(71));
        assert!(!space.is_near(50));
        assert!(space.is_near(51));
    }
}
