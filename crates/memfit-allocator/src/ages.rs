//! Partial order of the ages of segments that existed before the trace, as far as it is known.

mod chains;
mod set;

use std::collections::BTreeMap;

use chains::{Chains, SegmentIndex};
use set::Set;

/// Maximum number of segments whose ages are tracked. Further ones are ordered by address.
pub(crate) const MAX_COMPARED_SEGMENTS: usize = 4096;

/// End of an order to search for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Oldest,
    Youngest,
}

/// Sort key of a segment: its known age, or else its address.
///
/// Segments of unknown age come first, then those of partly known age, then those of known age. Therefore the
/// first of several is always one that may be the oldest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u64);

impl Rank {
    /// Before all others: for releases that ignore ages, and for expandable segments.
    pub(crate) const FIRST: Self = Self(0);
    /// After all segments of unknown age.
    pub(crate) const KNOWN: Self = Self(1 << 63);
}

/// Known ages of segments that existed when the state was restored, and whose age the state does not show.
///
/// They have the numbers from one on, by address; every other segment is younger. Comparisons are learnt one
/// by one and kept transitively closed, so that no later one can contradict them unnoticed.
///
/// Segments of the same size, which had to be compared, form one chain: an order consistent with all known
/// comparisons. A search along the chain need not visit all of them, only those between the first and the
/// point from which all are known to be younger.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ages {
    /// Start addresses of the segments, by number.
    starts: Vec<u64>,
    /// Indices of compared segments by start address.
    places: BTreeMap<u64, SegmentIndex>,
    /// Indices plus one by number; zero if nothing is known.
    numbered: Vec<u32>,
    /// Segments known to be younger, for each compared segment.
    younger: Vec<Set>,
    chains: Chains,
}

impl Ages {
    pub(crate) fn unknown(starts: Vec<u64>) -> Self {
        Self { numbered: vec![0; starts.len()], starts, ..Self::default() }
    }

    /// Takes over earlier comparisons of segments that may be among these. Changes their ranks.
    pub(crate) fn recall(&mut self, before: Self) {
        (self.places, self.younger, self.chains) = (before.places, before.younger, before.chains);
        let places = self.starts.iter().map(|start| self.places.get(start).map_or(0, |place| place.0 + 1));
        self.numbered = places.collect();
    }

    /// Returns `true` if the age of a segment is not known.
    pub(crate) const fn is_unknown(&self, segment: u32) -> bool {
        0 < segment && segment as usize <= self.starts.len()
    }

    /// Rank of a segment.
    pub(crate) fn rank(&self, segment: u32) -> Rank {
        if segment == 0 {
            Rank::FIRST
        } else if !self.is_unknown(segment) {
            Rank(Rank::KNOWN.0 | u64::from(segment))
        } else {
            self.place(segment).map_or(Rank(u64::from(segment)), |place| self.chains.rank(place))
        }
    }

    /// Rank from which all segments up to `last` are known to be younger than this one, if there is one.
    pub(crate) fn surely_younger_from(&mut self, segment: u32, last: Rank) -> Option<Rank> {
        let place = self.place(segment)?;
        let own = &self.younger[place.index()];
        self.chains.is_same(place, last).then(|| self.chains.last_run(place, |other| own.has(other)))
    }

    /// Returns `true` if one segment is known to be older than another.
    pub(crate) fn is_older(&self, first: u32, second: u32) -> bool {
        let places = self.place(first).zip(self.place(second));
        places.is_some_and(|(first, second)| self.younger[first.index()].has(second))
    }

    /// Returns the positions of the segments that may be the oldest, or the youngest. A single one certainly
    /// is.
    pub(crate) fn possible(&self, segments: &[u32], end: End) -> Vec<usize> {
        let places: Vec<Option<SegmentIndex>> = segments.iter().map(|segment| self.place(*segment)).collect();
        let all: Set = places.iter().flatten().copied().collect();
        let mut younger = Set::default();
        places.iter().flatten().for_each(|place| younger.add_all(&self.younger[place.index()]));
        let is_possible = |place: SegmentIndex| match end {
            End::Oldest => !younger.has(place),
            End::Youngest => !self.younger[place.index()].meets(&all),
        };
        let indices = 0..segments.len();
        indices.filter(|index| places[*index].is_none_or(is_possible)).collect()
    }

    /// Learns that one of these segments is the oldest or youngest of them, which must be possible. Changes
    /// the ranks of some.
    pub(crate) fn learn(&mut self, segments: &[u32], chosen: usize, end: End) -> RankChange {
        let Some((segment, chosen)) = segments
            .get(chosen)
            .and_then(|segment| self.place_or_new(*segment).map(|place| (*segment, place)))
        else {
            return RankChange::None;
        };
        let all: Vec<SegmentIndex> =
            segments.iter().filter_map(|segment| self.place_or_new(*segment)).collect();
        let were_together = self.chains.join(&all);
        let others: Set = all.iter().copied().filter(|place| *place != chosen).collect();
        let one: Set = [chosen].into_iter().collect();
        let (older, mut younger) = match end {
            End::Oldest => (one, others),
            End::Youngest => (others, one),
        };
        // Known comparisons are always within a chain.
        for place in self.chains.chain_of(chosen).filter(|place| younger.has(*place)).collect::<Vec<_>>() {
            // The added sets are transitively closed, so they add nothing further.
            younger.add_all(&self.younger[place.index()]);
        }
        for place in self.chains.chain_of(chosen) {
            let known = &mut self.younger[place.index()];
            if older.has(place) || known.meets(&older) {
                known.add_all(&younger);
            }
        }
        let moved = match end {
            End::Oldest => {
                let is_older = |place: SegmentIndex| self.younger[place.index()].has(chosen);
                self.chains.move_before_all(chosen, &all, is_older)
            }
            End::Youngest => {
                let own = &self.younger[chosen.index()];
                self.chains.move_behind_all(chosen, &all, |place| own.has(place))
            }
        };
        match moved {
            0 if were_together => RankChange::None,
            1 if were_together => RankChange::One(segment),
            _ => RankChange::Many,
        }
    }

    fn place(&self, segment: u32) -> Option<SegmentIndex> {
        let place = self.numbered.get((segment as usize).checked_sub(1)?)?;
        place.checked_sub(1).map(SegmentIndex)
    }

    fn place_or_new(&mut self, segment: u32) -> Option<SegmentIndex> {
        if let Some(place) = self.place(segment) {
            return Some(place);
        }
        let index = (segment as usize).checked_sub(1)?;
        let start = *self.starts.get(index)?;
        if self.younger.len() >= MAX_COMPARED_SEGMENTS {
            return None;
        }
        let place = self.chains.add();
        self.younger.push(Set::default());
        self.places.insert(start, place);
        self.numbered[index] = place.0 + 1;
        Some(place)
    }
}

/// Segments whose rank changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankChange {
    None,
    /// One segment, by its number.
    One(u32),
    Many,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ages(count: u64) -> Ages {
        Ages::unknown((1..=count).map(|place| place << 21).collect())
    }

    #[test]
    fn order_is_transitive() {
        let mut ages = ages(5);
        ages.learn(&[1, 2], 1, End::Oldest);
        ages.learn(&[1, 3], 0, End::Oldest);
        // 2 before 1 before 3; the order of 4 and 5 is unknown.
        assert_eq!(ages.possible(&[3, 2], End::Oldest), [1]);
        assert_eq!(ages.possible(&[3, 2], End::Youngest), [0]);
        assert_eq!(ages.possible(&[1, 2, 3, 4], End::Oldest), [1, 3]);
        assert_eq!(ages.possible(&[1, 2, 3, 4], End::Youngest), [2, 3]);
        ages.learn(&[2, 4], 0, End::Youngest);
        assert_eq!(
            ages.possible(&[3, 4, 1], End::Oldest),
            [1],
            "4 before 2, and so before all that are younger"
        );
        ages.learn(&[3, 5], 1, End::Youngest);
        assert_eq!(ages.possible(&[5, 4], End::Oldest), [1]);
    }

    #[test]
    fn results_hold_for_the_same_addresses() {
        let mut before = ages(3);
        before.learn(&[1, 3], 1, End::Oldest);
        // The first segment was freed, so the others have other numbers.
        let mut after = Ages::unknown(vec![1 << 21, 3 << 21]);
        after.recall(before);
        assert_eq!(after.possible(&[1, 2], End::Oldest), [1]);
        assert!(after.is_unknown(2) && !after.is_unknown(3) && !after.is_unknown(0));
    }

    /// Segments in the order of their ranks, and whether the first is certainly the oldest, as a search
    /// determines it.
    fn searched(ages: &mut Ages, segments: &[u32]) -> (Vec<u32>, bool) {
        let mut order = segments.to_vec();
        order.sort_by_key(|segment| ages.rank(*segment));
        let (first, behind) = order.split_first().expect("there is one at least");
        let Some(last) = behind.last() else { return (order, true) };
        let Some(from) = ages.surely_younger_from(*first, ages.rank(*last)) else { return (order, false) };
        let not_sure: Vec<u32> =
            behind.iter().copied().filter(|segment| ages.rank(*segment) < from).collect();
        let surely = not_sure.iter().all(|segment| ages.is_older(*first, *segment));
        (order, surely)
    }

    #[test]
    fn no_more_are_told_apart_than_there_is_room_for() {
        let count = MAX_COMPARED_SEGMENTS as u32 + 50;
        let mut ages = ages(u64::from(count));
        let all: Vec<u32> = (1..=count).collect();
        ages.learn(&all, 7, End::Oldest);
        assert_eq!(ages.younger.len(), MAX_COMPARED_SEGMENTS);
        let possible = ages.possible(&all, End::Oldest);
        assert_eq!((possible[0], possible.len()), (7, 51), "of the last fifty nothing is known");
        let (order, surely) = searched(&mut ages, &all);
        assert_eq!((order[0], surely), (count - 49, false));
        assert!(searched(&mut ages, &all[..MAX_COMPARED_SEGMENTS]).1);
    }

    #[test]
    fn comparisons_of_pairs_determine_the_whole_order() {
        // Compares two segments at a time; the answers follow a hidden order.
        let hidden = [4_u32, 1, 6, 3, 2, 5];
        let rank = |segment: u32| hidden.iter().position(|other| *other == segment).unwrap_or_default();
        let mut ages = ages(6);
        for first in 1..=6 {
            for second in first + 1..=6 {
                let oldest = usize::from(rank(second) < rank(first));
                let possible = ages.possible(&[first, second], End::Oldest);
                assert!(possible.contains(&oldest));
                ages.learn(&[first, second], oldest, End::Oldest);
                assert!(searched(&mut ages, &[first, second]).1);
            }
        }
        assert_eq!(searched(&mut ages, &[1, 2, 3, 4, 5, 6]), (hidden.to_vec(), true));
        let mut left = vec![1, 2, 3, 4, 5, 6];
        let mut found = Vec::new();
        while !left.is_empty() {
            let oldest = ages.possible(&left, End::Oldest);
            assert_eq!(oldest.len(), 1);
            found.push(left.remove(oldest[0]));
        }
        assert_eq!(found, hidden);
    }

    #[test]
    fn a_search_by_ranks_finds_what_is_known_and_nothing_more() {
        let mut state = 7_u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) ^ 0x5851_F42D;
            (state >> 8) % limit
        };
        let mut found = [0; 2];
        for _ in 0..400 {
            let count = 2 + below(12);
            let mut ages = ages(count);
            for _ in 0..below(40) {
                let some: Vec<u32> = (1..=count as u32).filter(|_| below(3) > 0).collect();
                let end = if below(2) == 0 { End::Oldest } else { End::Youngest };
                if some.len() < 2 {
                    continue;
                }
                let (order, surely) = searched(&mut ages, &some);
                let possible = ages.possible(&order, End::Oldest);
                assert_eq!(possible[0], 0, "the first by rank is one of the possible: {order:?}");
                assert_eq!(surely, possible.len() == 1, "{order:?}");
                found[usize::from(surely)] += 1;
                let before: Vec<Rank> = (1..=count as u32).map(|segment| ages.rank(segment)).collect();
                let possible = ages.possible(&some, end);
                let chosen = possible[below(possible.len() as u64) as usize];
                let changed = ages.learn(&some, chosen, end);
                let is_changed = |segment: &u32| ages.rank(*segment) != before[*segment as usize - 1];
                let others: Vec<u32> = (1..=count as u32).filter(is_changed).collect();
                match changed {
                    RankChange::None => assert!(others.is_empty(), "{others:?}"),
                    RankChange::One(segment) => {
                        assert_eq!((segment, &others[..]), (some[chosen], &[segment][..]));
                    }
                    RankChange::Many => assert!(!others.is_empty()),
                }
            }
        }
        assert!(found.iter().all(|count| *count > 500), "{found:?}");
    }

    #[test]
    fn repeated_moves_to_one_end_succeed() {
        // Each time the last is learnt to be the oldest, so that moves go to one end of the chain.
        let all: Vec<u32> = (1..=100).collect();
        let mut ages = ages(100);
        for left in (1..=all.len()).rev() {
            ages.learn(&all[..left], left - 1, End::Oldest);
        }
        let reversed: Vec<u32> = (1..=100).rev().collect();
        assert_eq!(searched(&mut ages, &all), (reversed, true));
        for many in [2, 50, 99] {
            assert!(searched(&mut ages, &all[..many]).1);
        }
    }
}
