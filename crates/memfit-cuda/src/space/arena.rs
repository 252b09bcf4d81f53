//! First-fit allocation of addresses in a range; returned neighbours are merged.

use std::collections::BTreeMap;

/// Free addresses in one or more ranges.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// Start to length; no two ranges touch.
    free: BTreeMap<u64, u64>,
}

impl Arena {
    /// An arena without addresses.
    pub(crate) const EMPTY: Self = Self { free: BTreeMap::new() };

    /// Adds a range to allocate from.
    pub(crate) fn add(&mut self, start: u64, length: u64) {
        self.give_back(start, length);
    }

    /// Takes `length` addresses that start at a multiple of `alignment`, the lowest that fit.
    pub(crate) fn take(&mut self, length: u64, alignment: u64) -> Option<u64> {
        let (start, size, at) = self.free.iter().find_map(|(&start, &size)| {
            let at = start.checked_next_multiple_of(alignment)?;
            (at.checked_add(length)? <= start + size).then_some((start, size, at))
        })?;
        self.split(start, size, at, length);
        Some(at)
    }

    /// Takes `length` addresses that start at a multiple of `alignment`: the lowest gap between taken ones
    /// that fits, or else the end of the lowest range, at a multiple of `far`.
    pub(crate) fn take_downwards(&mut self, length: u64, alignment: u64, far: u64) -> Option<u64> {
        let gap = self.free.iter().skip(1).find_map(|(&start, &size)| {
            let at = start.checked_next_multiple_of(alignment)?;
            (at.checked_add(length)? <= start + size).then_some((start, size, at))
        });
        let (start, size, at) = gap.or_else(|| {
            let (&start, &size) = self.free.first_key_value()?;
            let at = (start + size).checked_sub(length)? / far * far;
            (at >= start).then_some((start, size, at))
        })?;
        self.split(start, size, at, length);
        Some(at)
    }

    /// Takes exactly these addresses, if they are free.
    pub(crate) fn take_at(&mut self, at: u64, length: u64) -> bool {
        let Some((&start, &size)) = self.free.range(..=at).next_back() else { return false };
        if at.checked_add(length).is_none_or(|end| end > start + size) {
            return false;
        }
        self.split(start, size, at, length);
        true
    }

    fn split(&mut self, start: u64, size: u64, at: u64, length: u64) {
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let end = at + length;
        if end < start + size {
            self.free.insert(end, start + size - end);
        }
    }

    /// Returns addresses.
    pub(crate) fn give_back(&mut self, mut start: u64, mut length: u64) {
        if let Some((&before, &size)) = self.free.range(..start).next_back()
            && before + size == start
        {
            self.free.remove(&before);
            start = before;
            length += size;
        }
        if let Some(size) = self.free.remove(&(start + length)) {
            length += size;
        }
        self.free.insert(start, length);
    }

    /// Free ranges as start and length, in order of address.
    #[cfg(test)]
    pub(crate) fn free_ranges(&self) -> Vec<(u64, u64)> {
        self.free.iter().map(|(&start, &length)| (start, length)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// For any order of takes and returns, nothing is handed out twice and nothing is lost.
        #[test]
        fn taken_ranges_do_not_overlap_and_can_all_be_returned(
            steps in proptest::collection::vec((1..600u64, 0..5u32, any::<bool>(), any::<prop::sample::Index>()), 1..120),
            downwards: bool,
        ) {
            const RANGES: [(u64, u64); 2] = [(0x1000, 0x3000), (0x8000, 0x2000)];
            let mut arena = Arena::default();
            for (start, length) in RANGES {
                arena.add(start, length);
            }
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (length, power, give_back, which) in steps {
                if give_back && !held.is_empty() {
                    let (start, length) = held.swap_remove(which.index(held.len()));
                    arena.give_back(start, length);
                    continue;
                }
                let alignment = 1 << (power * 2);
                let free: u64 = arena.free_ranges().iter().map(|range| range.1).sum();
                let taken = if downwards {
                    arena.take_downwards(length, alignment, alignment)
                } else {
                    arena.take(length, alignment)
                };
                match taken {
                    Some(start) => {
                        prop_assert!(start.is_multiple_of(alignment));
                        let inside = |&(from, size): &(u64, u64)| from <= start && start + length <= from + size;
                        prop_assert!(RANGES.iter().any(inside));
                        prop_assert!(held.iter().all(|&(at, size)| at + size <= start || start + length <= at));
                        held.push((start, length));
                    }
                    None => prop_assert!(free < length || free < 0x5000, "an empty arena has room"),
                }
            }
            for (start, length) in held {
                arena.give_back(start, length);
            }
            prop_assert_eq!(arena.free_ranges(), RANGES.to_vec());
        }
    }

    #[test]
    fn takes_downwards_and_fills_the_gaps() {
        let mut arena = Arena::default();
        arena.add(0, 0x10000);
        let mut take = |length, alignment| arena.take_downwards(length, alignment, 0x1000).unwrap();
        // Large ones go down in steps of `far`; smaller ones fill what these leave.
        assert_eq!((take(0x1800, 0x1000), take(0x2800, 0x1000)), (0xe000, 0xb000));
        assert_eq!((take(0x200, 0x100), take(0x200, 0x100)), (0xd800, 0xda00));
        assert_eq!((take(0x600, 0x100), take(0x1000, 0x1000)), (0xf800, 0xa000));
        assert_eq!(arena.take_downwards(0xb000, 0x1000, 0x1000), None);
    }

    #[test]
    fn takes_the_lowest_aligned_fit_and_joins_what_comes_back() {
        let mut arena = Arena::default();
        arena.add(0x1000, 0x9000);
        let first = arena.take(0x800, 0x200).unwrap();
        let second = arena.take(0x1000, 0x2000).unwrap();
        let third = arena.take(0x800, 0x200).unwrap();
        assert_eq!((first, second, third), (0x1000, 0x2000, 0x1800));
        assert!(arena.take(0x9000, 1).is_none());
        assert!(!arena.take_at(0x2800, 0x10), "taken");
        assert!(arena.take_at(0x5000, 0x100));
        for (start, length) in [(second, 0x1000), (first, 0x800), (0x5000, 0x100), (third, 0x800)] {
            arena.give_back(start, length);
        }
        assert_eq!(arena.free_ranges(), [(0x1000, 0x9000)]);
    }
}
