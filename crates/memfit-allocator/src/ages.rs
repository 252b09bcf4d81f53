//! Which of the segments that were there from the start is the older, as far as that has come out.

use std::collections::BTreeMap;

/// So many segments are told apart. Any more stay in the order of their addresses.
pub(crate) const MOST_TOLD_APART: usize = 1024;

/// Which end of an order is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Oldest,
    Youngest,
}

/// Some of the segments that are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Set([u64; MOST_TOLD_APART / 64]);

impl Set {
    fn add(&mut self, place: usize) {
        self.0[place / 64] |= 1 << (place % 64);
    }

    const fn has(&self, place: usize) -> bool {
        self.0[place / 64] >> (place % 64) & 1 == 1
    }

    fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own |= other);
    }

    fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).any(|(own, other)| own & other != 0)
    }
}

/// What is known of the ages of segments that a state was taken up with, and whose age it does not tell.
///
/// They have the numbers from one on, by address, and every other segment is younger. Which of them is older than which
/// comes out piece by piece, and what follows from that is kept with it, so that no later piece can contradict it unseen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ages {
    /// Where the segments begin, by number.
    starts: Vec<u64>,
    /// The segments that something is known of, by where they begin.
    places: BTreeMap<u64, usize>,
    /// The same by their numbers: what is one more than the place, and zero where nothing is known.
    numbered: Vec<u32>,
    /// For each of these, all that are known to be younger.
    younger: Vec<Set>,
}

impl Ages {
    pub(crate) fn unknown(starts: Vec<u64>) -> Self {
        Self { numbered: vec![0; starts.len()], starts, ..Self::default() }
    }

    /// What came out before, of segments that may be among these.
    pub(crate) fn recall(&mut self, before: Self) {
        (self.places, self.younger) = (before.places, before.younger);
        let places =
            self.starts.iter().map(|start| self.places.get(start).map_or(0, |place| *place as u32 + 1));
        self.numbered = places.collect();
    }

    /// Whether a segment is one whose age is not known.
    pub(crate) const fn is_unknown(&self, segment: u32) -> bool {
        0 < segment && segment as usize <= self.starts.len()
    }

    /// The one of these segments that is the oldest, or the youngest, where that has come out: what [`Self::possible`] gives where it is
    /// one alone, in two looks at each. A trace that begins in the middle asks at each block of the sizes in question.
    pub(crate) fn only(&self, segments: &[u32], end: End) -> Option<usize> {
        let comes_before = |first: usize, second: usize| match end {
            End::Oldest => self.younger[first].has(second),
            End::Youngest => self.younger[second].has(first),
        };
        let mut best = (0, self.place(*segments.first()?)?);
        for (index, segment) in segments.iter().enumerate().skip(1) {
            let place = self.place(*segment)?;
            if !comes_before(best.1, place) {
                best = (index, place);
            }
        }
        let (only, first) = best;
        // Those behind it come after it. Of those before it, one may have come after another alone.
        let before = segments[..only].iter().filter_map(|segment| self.place(*segment));
        before.into_iter().all(|place| comes_before(first, place)).then_some(only)
    }

    /// Which of these segments may be the oldest, or the youngest, after all that is known. Where it is one alone, it is.
    pub(crate) fn possible(&self, segments: &[u32], end: End) -> Vec<usize> {
        let places: Vec<Option<usize>> = segments.iter().map(|segment| self.place(*segment)).collect();
        let all = set(places.iter().flatten());
        let mut younger = Set::default();
        places.iter().flatten().for_each(|place| younger.add_all(&self.younger[*place]));
        let is_possible = |place: usize| match end {
            End::Oldest => !younger.has(place),
            End::Youngest => !self.younger[place].meets(&all),
        };
        let indices = 0..segments.len();
        indices.filter(|index| places[*index].is_none_or(is_possible)).collect()
    }

    /// One of these segments is the oldest of them, or the youngest: it has to be one that may be.
    pub(crate) fn learn(&mut self, segments: &[u32], chosen: usize, end: End) {
        let Some(chosen) = segments.get(chosen).and_then(|segment| self.place_or_new(*segment)) else {
            return;
        };
        let others: Vec<usize> = segments.iter().filter_map(|segment| self.place_or_new(*segment)).collect();
        let (one, others) = (set([chosen].iter()), set(others.iter().filter(|place| **place != chosen)));
        let (older, mut younger) = match end {
            End::Oldest => (one, others),
            End::Youngest => (others, one),
        };
        for (place, known) in self.younger.iter().enumerate() {
            if younger.has(place) {
                // What this brings in brings no more: each set has all that follows.
                younger.add_all(known);
            }
        }
        for (place, known) in self.younger.iter_mut().enumerate() {
            if older.has(place) || known.meets(&older) {
                known.add_all(&younger);
            }
        }
    }

    fn place(&self, segment: u32) -> Option<usize> {
        let place = self.numbered.get((segment as usize).checked_sub(1)?)?;
        place.checked_sub(1).map(|place| place as usize)
    }

    fn place_or_new(&mut self, segment: u32) -> Option<usize> {
        if let Some(place) = self.place(segment) {
            return Some(place);
        }
        let index = (segment as usize).checked_sub(1)?;
        let start = *self.starts.get(index)?;
        let place = self.younger.len();
        if place >= MOST_TOLD_APART {
            return None;
        }
        self.younger.push(Set::default());
        self.places.insert(start, place);
        self.numbered[index] = place as u32 + 1;
        Some(place)
    }
}

fn set<'place>(places: impl Iterator<Item = &'place usize>) -> Set {
    let mut set = Set::default();
    places.for_each(|place| set.add(*place));
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ages(count: u64) -> Ages {
        Ages::unknown((1..=count).map(|place| place << 21).collect())
    }

    #[test]
    fn what_follows_is_known_as_well() {
        let mut ages = ages(5);
        ages.learn(&[1, 2], 1, End::Oldest);
        ages.learn(&[1, 3], 0, End::Oldest);
        // 2 before 1 before 3; of 4 and 5 nothing is known.
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
    fn what_came_out_holds_for_the_same_addresses() {
        let mut before = ages(3);
        before.learn(&[1, 3], 1, End::Oldest);
        // The first is gone since: the others have other numbers.
        let mut after = Ages::unknown(vec![1 << 21, 3 << 21]);
        after.recall(before);
        assert_eq!(after.possible(&[1, 2], End::Oldest), [1]);
        assert!(after.is_unknown(2) && !after.is_unknown(3) && !after.is_unknown(0));
    }

    #[test]
    fn no_more_are_told_apart_than_there_is_room_for() {
        let count = MOST_TOLD_APART as u32 + 50;
        let mut ages = ages(u64::from(count));
        let all: Vec<u32> = (1..=count).collect();
        ages.learn(&all, 7, End::Oldest);
        assert_eq!(ages.younger.len(), MOST_TOLD_APART);
        let possible = ages.possible(&all, End::Oldest);
        assert_eq!((possible[0], possible.len()), (7, 51), "of the last fifty nothing is known");
    }

    #[test]
    fn an_order_comes_out_whole() {
        // In which a pair at a time is looked at, and the answer is always the one of a hidden order.
        let hidden = [4_u32, 1, 6, 3, 2, 5];
        let rank = |segment: u32| hidden.iter().position(|other| *other == segment).unwrap_or_default();
        let mut ages = ages(6);
        for first in 1..=6 {
            for second in first + 1..=6 {
                let oldest = usize::from(rank(second) < rank(first));
                let possible = ages.possible(&[first, second], End::Oldest);
                assert!(possible.contains(&oldest));
                let only = ages.only(&[first, second], End::Oldest);
                assert_eq!(only, (possible.len() == 1).then_some(oldest));
                ages.learn(&[first, second], oldest, End::Oldest);
            }
        }
        let mut left = vec![1, 2, 3, 4, 5, 6];
        let mut found = Vec::new();
        while !left.is_empty() {
            let oldest = ages.possible(&left, End::Oldest);
            assert_eq!(oldest.len(), 1);
            assert_eq!(ages.only(&left, End::Oldest), Some(oldest[0]));
            let youngest = ages.possible(&left, End::Youngest);
            assert_eq!(ages.only(&left, End::Youngest), (youngest.len() == 1).then(|| youngest[0]));
            found.push(left.remove(oldest[0]));
        }
        assert_eq!(found, hidden);
    }

    #[test]
    fn the_only_one_is_found_whenever_there_is_one() {
        let mut state = 7_u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) ^ 0x5851_F42D;
            (state >> 8) % limit
        };
        let mut found = [0; 2];
        for _ in 0..200 {
            let count = 2 + below(8);
            let mut ages = ages(count);
            for _ in 0..below(20) {
                let some: Vec<u32> = (1..=count as u32).filter(|_| below(3) > 0).collect();
                let end = if below(2) == 0 { End::Oldest } else { End::Youngest };
                let possible = ages.possible(&some, end);
                // Where nothing is known of a segment yet, it takes the longer way.
                let known = some.iter().all(|segment| ages.place(*segment).is_some());
                if !some.is_empty() && known {
                    let only = (possible.len() == 1).then(|| possible[0]);
                    assert_eq!(ages.only(&some, end), only, "{some:?}");
                    found[usize::from(only.is_some())] += 1;
                }
                if !possible.is_empty() {
                    ages.learn(&some, possible[below(possible.len() as u64) as usize], end);
                }
            }
        }
        assert!(found.iter().all(|count| *count > 50), "{found:?}");
    }
}
