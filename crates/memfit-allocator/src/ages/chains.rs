//! Linear orders (chains) of segments, consistent with the known ages, with gaps between positions so that
//! segments can be moved.

use super::Rank;

/// Index of a segment in the chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentIndex(pub(super) u32);

impl SegmentIndex {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Layout of a rank: a bit for "partly known age", then the chain, then the position in the chain.
const PARTLY_KNOWN: u64 = 1 << 62;
const POSITION_BITS: u32 = 40;
const POSITIONS: u64 = 1 << POSITION_BITS;

#[derive(Clone, Copy, Debug)]
struct Link {
    chain: u32,
    position: u64,
    /// Position from which all segments of the chain are known to be younger, and the chain's state when it
    /// was computed.
    last_run: (u64, u64),
}

#[derive(Clone, Debug, Default)]
struct Chain {
    /// Segments by position.
    order: Vec<SegmentIndex>,
    /// Incremented with every fact learnt about the chain.
    state: u64,
}

/// All chains.
#[derive(Clone, Debug, Default)]
pub(super) struct Chains {
    links: Vec<Link>,
    chains: Vec<Chain>,
}

impl Chains {
    /// Adds a segment in its own chain.
    pub(super) fn add(&mut self) -> SegmentIndex {
        let place = SegmentIndex(self.links.len() as u32);
        let chain = self.chains.len() as u32;
        self.links.push(Link { chain, position: POSITIONS / 2, last_run: (0, 0) });
        self.chains.push(Chain { order: vec![place], state: 1 });
        place
    }

    pub(super) fn rank(&self, place: SegmentIndex) -> Rank {
        let link = &self.links[place.index()];
        Rank(PARTLY_KNOWN | u64::from(link.chain) << POSITION_BITS | link.position)
    }

    /// Returns `true` if a rank belongs to the chain of a segment.
    pub(super) fn is_same(&self, place: SegmentIndex, rank: Rank) -> bool {
        self.rank(place).0 >> POSITION_BITS == rank.0 >> POSITION_BITS
    }

    /// Segments in the chain of a segment.
    pub(super) fn chain_of(&self, place: SegmentIndex) -> impl Iterator<Item = SegmentIndex> {
        self.chains[self.chain(place)].order.iter().copied()
    }

    /// Rank from which all segments of the chain are known to be younger.
    pub(super) fn last_run(&mut self, place: SegmentIndex, is_behind: impl Fn(SegmentIndex) -> bool) -> Rank {
        let (link, chain) = (self.links[place.index()], self.chain(place));
        let Chain { order, state } = &self.chains[chain];
        let (mut from, as_of) = link.last_run;
        if as_of != *state {
            let run = order.iter().rev().take_while(|other| is_behind(**other));
            from = run.last().map_or(POSITIONS - 1, |first| self.links[first.index()].position);
            self.links[place.index()].last_run = (from, *state);
        }
        Rank(PARTLY_KNOWN | u64::from(link.chain) << POSITION_BITS | from)
    }

    /// Merges the chains of segments. Returns `true` if they were in one chain already.
    pub(super) fn join(&mut self, places: &[SegmentIndex]) -> bool {
        let length = |place: &&SegmentIndex| self.chains[self.chain(**place)].order.len();
        let Some(target) = places.iter().max_by_key(length).map(|place| self.chain(*place)) else {
            return true;
        };
        let mut were_together = true;
        for place in places {
            let chain = self.chain(*place);
            if chain == target {
                continue;
            }
            were_together = false;
            let joining = std::mem::take(&mut self.chains[chain].order);
            for other in &joining {
                self.links[other.index()].chain = target as u32;
            }
            self.chains[target].order.extend(joining);
        }
        if !were_together {
            self.spread(target);
        }
        self.chains[target].state += 1;
        were_together
    }

    /// Moves a segment before all of some others, along with the segments known to precede it. Returns the
    /// number of segments that moved or changed rank.
    pub(super) fn move_before_all(
        &mut self,
        chosen: SegmentIndex,
        all: &[SegmentIndex],
        is_before: impl Fn(SegmentIndex) -> bool,
    ) -> usize {
        let own = self.index_of(chosen);
        let first = all.iter().min_by_key(|place| self.links[place.index()].position);
        let first = first.map_or(own, |first| self.index_of(*first));
        let (moving, staying) = self.split_moving(chosen, first..=own, is_before);
        let count = moving.len();
        let new: Vec<SegmentIndex> = moving.into_iter().chain(staying).collect();
        self.rearrange(chosen, first, &new, 0..count)
    }

    /// Moves a segment after all of some others, along with the segments known to follow it.
    pub(super) fn move_behind_all(
        &mut self,
        chosen: SegmentIndex,
        all: &[SegmentIndex],
        is_behind: impl Fn(SegmentIndex) -> bool,
    ) -> usize {
        let own = self.index_of(chosen);
        let last = all.iter().max_by_key(|place| self.links[place.index()].position);
        let last = last.map_or(own, |last| self.index_of(*last));
        let (moving, staying) = self.split_moving(chosen, own..=last, is_behind);
        let stay = staying.len();
        let new: Vec<SegmentIndex> = staying.into_iter().chain(moving).collect();
        self.rearrange(chosen, own, &new, stay..new.len())
    }

    /// Splits a part of a chain into the chosen segment with those that move along, and the others.
    fn split_moving(
        &self,
        chosen: SegmentIndex,
        part: std::ops::RangeInclusive<usize>,
        goes_along: impl Fn(SegmentIndex) -> bool,
    ) -> (Vec<SegmentIndex>, Vec<SegmentIndex>) {
        let order = &self.chains[self.chain(chosen)].order[part];
        order.iter().partition(|place| **place == chosen || goes_along(**place))
    }

    /// Replaces a part of a chain with a permutation of it, in which `moving` gets new positions.
    fn rearrange(
        &mut self,
        of: SegmentIndex,
        from: usize,
        new: &[SegmentIndex],
        moving: std::ops::Range<usize>,
    ) -> usize {
        let count = moving.len();
        if count == new.len() {
            return 0;
        }
        let chain = self.chain(of);
        let order = &mut self.chains[chain].order;
        order[from..from + new.len()].copy_from_slice(new);
        let position = |place: Option<&SegmentIndex>| place.map(|place| self.links[place.index()].position);
        let begin = from + moving.start;
        let below = begin.checked_sub(1).and_then(|before| position(order.get(before))).unwrap_or(0);
        let above = position(order.get(from + moving.end)).unwrap_or(POSITIONS - 1);
        let gap = (above - below) / (count as u64 + 1);
        if gap == 0 {
            self.spread(chain);
            return self.chains[chain].order.len();
        }
        for (place, nth) in new[moving].iter().zip(1..) {
            self.links[place.index()].position = below + gap * nth;
        }
        count
    }

    /// Distributes the positions of a chain evenly.
    fn spread(&mut self, chain: usize) {
        let order = &self.chains[chain].order;
        let gap = POSITIONS / (order.len() as u64 + 1);
        for (place, nth) in order.iter().zip(1..) {
            self.links[place.index()].position = gap * nth;
        }
    }

    fn chain(&self, place: SegmentIndex) -> usize {
        self.links[place.index()].chain as usize
    }

    fn index_of(&self, place: SegmentIndex) -> usize {
        let position = self.links[place.index()].position;
        let order = &self.chains[self.chain(place)].order;
        order.partition_point(|other| self.links[other.index()].position < position)
    }
}
