//! Model of the caching allocator's content between micro-batches, which decides when to empty the cache.
//!
//! A caching allocator reuses its own segments. Blocks of one shape may not fit another, and a segment with a
//! single used block cannot be released, so that a micro-batch may run out of memory although its tensors
//! would fit. After emptying the cache, no unusable blocks remain, and the growth of the reserved memory
//! during a micro-batch is what it needs of the device, including fragmentation. Emptying takes time, so it
//! is done only for micro-batches that have not run since the last time, and only if memory is tight.

use std::collections::{BTreeMap, BTreeSet};

/// Available memory for a micro-batch, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Memory that the allocator may reserve beyond what was live before the window.
    pub room: u64,
    /// Reserved bytes in no tensor.
    pub cached: u64,
}

impl Space {
    /// Returns `true` if a need may exceed the limit when no cached block can serve it.
    pub(crate) fn is_tight(self, need: u64) -> bool {
        need.saturating_add(self.cached) > self.room
    }

    /// Returns `true` if a need is so close to the limit that it should be measured.
    pub(crate) fn is_near(self, need: u64) -> bool {
        need > self.room / 2
    }
}

/// Micro-batches whose blocks are cached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    /// Largest size run since the cache was emptied, by shape and elements; smaller ones fit into its blocks.
    held: BTreeMap<String, BTreeMap<u64, u32>>,
    /// Micro-batches for which the decision to measure was made: elements, size, and whether it was the first
    /// of a window.
    judged: BTreeMap<String, BTreeSet<(u64, u32, bool)>>,
}

impl Cache {
    /// Returns `true` if such a micro-batch, or a larger one, has run since the cache was emptied.
    pub(crate) fn holds(&self, shape: &str, elements: u64, size: u32) -> bool {
        self.held.get(shape).and_then(|sizes| sizes.get(&elements)).is_some_and(|&largest| largest >= size)
    }

    /// Records the run of a micro-batch.
    pub(crate) fn runs(&mut self, shape: &str, elements: u64, size: u32) {
        if !self.holds(shape, elements, size) {
            self.held.entry(shape.to_owned()).or_default().insert(elements, size);
        }
    }

    /// Records that the cache was emptied.
    pub(crate) fn emptied(&mut self) {
        self.held.clear();
    }

    /// Returns `true` if the decision to measure such a micro-batch was made.
    pub(crate) fn is_judged(&self, shape: &str, part: (u64, u32, bool)) -> bool {
        self.judged.get(shape).is_some_and(|parts| parts.contains(&part))
    }

    /// Records that decision.
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
    fn compiled_sizes_are_held_until_the_cache_is_emptied() {
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
    fn verdicts_are_kept() {
        let mut cache = Cache::default();
        cache.judges("a", (10, 4, true));
        cache.emptied();
        assert!(cache.is_judged("a", (10, 4, true)));
        assert!(!cache.is_judged("a", (10, 4, false)), "with existing gradients it is another part");
    }

    #[test]
    fn cached_memory_reduces_the_space() {
        let space = Space { room: 100, cached: 30 };
        assert!(!space.is_tight(70));
        assert!(space.is_tight(71));
        assert!(!space.is_near(50));
        assert!(space.is_near(51));
    }
}
