//! Orders of segments that contradict nothing that is known of their ages, with room between any two for
//! others to move to.

use super::Rank;

/// A segment's place among those that something is known of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(pub(super) u32);

impl Place {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A rank has a bit that says that something is known, then the chain, then where in the chain.
const TOLD: u64 = 1 << 62;
const POSITION_BITS: u32 = 40;
const POSITIONS: u64 = 1 << POSITION_BITS;

#[derive(Clone, Copy, Debug)]
struct Link {
    chain: u32,
    position: u64,
    /// From which position on all in the chain come surely behind this one, and as of which state of the
    /// chain.
    last_run: (u64, u64),
}

#[derive(Clone, Debug, Default)]
struct Chain {
    /// By position.
    order: Vec<Place>,
    /// Counts what came out of it.
    state: u64,
}

/// All chains.
#[derive(Clone, Debug, Default)]
pub(super) struct Chains {
    links: Vec<Link>,
    chains: Vec<Chain>,
}

impl Chains {
    /// One more segment, in a chain of its own.
    pub(super) fn add(&mut self) -> Place {
        let place = Place(self.links.len() as u32);
        let chain = self.chains.len() as u32;
        self.links.push(Link { chain, position: POSITIONS / 2, last_run: (0, 0) });
        self.chains.push(Chain { order: vec![place], state: 1 });
        place
    }

    pub(super) fn rank(&self, place: Place) -> Rank {
        let link = &self.links[place.index()];
        Rank(TOLD | u64::from(link.chain) << POSITION_BITS | link.position)
    }

    /// Whether a rank is one of the chain that a segment is in.
    pub(super) fn is_same(&self, place: Place, rank: Rank) -> bool {
        self.rank(place).0 >> POSITION_BITS == rank.0 >> POSITION_BITS
    }

    /// All in the chain of one.
    pub(super) fn of(&self, place: Place) -> impl Iterator<Item = Place> {
        self.chains[self.chain(place)].order.iter().copied()
    }

    /// The rank from which on all in the chain of one come surely behind it.
    pub(super) fn last_run(&mut self, place: Place, is_behind: impl Fn(Place) -> bool) -> Rank {
        let (link, chain) = (self.links[place.index()], self.chain(place));
        let Chain { order, state } = &self.chains[chain];
        let (mut from, as_of) = link.last_run;
        if as_of != *state {
            let run = order.iter().rev().take_while(|other| is_behind(**other));
            from = run.last().map_or(POSITIONS - 1, |first| self.links[first.index()].position);
            self.links[place.index()].last_run = (from, *state);
        }
        Rank(TOLD | u64::from(link.chain) << POSITION_BITS | from)
    }

    /// Puts some into one chain, with all that are in theirs. Says whether they were in one before.
    pub(super) fn join(&mut self, places: &[Place]) -> bool {
        let length = |place: &&Place| self.chains[self.chain(**place)].order.len();
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

    /// Moves one to before all of some, and with it what is known to come before it. Returns how many moved,
    /// or of how many the rank changed.
    pub(super) fn move_before_all(
        &mut self,
        chosen: Place,
        all: &[Place],
        is_before: impl Fn(Place) -> bool,
    ) -> usize {
        let own = self.index_of(chosen);
        let first = all.iter().min_by_key(|place| self.links[place.index()].position);
        let first = first.map_or(own, |first| self.index_of(*first));
        let (moving, staying) = self.parted(chosen, first..=own, is_before);
        let count = moving.len();
        let new: Vec<Place> = moving.into_iter().chain(staying).collect();
        self.rearrange(chosen, first, &new, 0..count)
    }

    /// Moves one to behind all of some, and with it what is known to come behind it.
    pub(super) fn move_behind_all(
        &mut self,
        chosen: Place,
        all: &[Place],
        is_behind: impl Fn(Place) -> bool,
    ) -> usize {
        let own = self.index_of(chosen);
        let last = all.iter().max_by_key(|place| self.links[place.index()].position);
        let last = last.map_or(own, |last| self.index_of(*last));
        let (moving, staying) = self.parted(chosen, own..=last, is_behind);
        let stay = staying.len();
        let new: Vec<Place> = staying.into_iter().chain(moving).collect();
        self.rearrange(chosen, own, &new, stay..new.len())
    }

    /// Of a part of one's chain: itself and those that go along with it, and the others.
    fn parted(
        &self,
        chosen: Place,
        part: std::ops::RangeInclusive<usize>,
        goes_along: impl Fn(Place) -> bool,
    ) -> (Vec<Place>, Vec<Place>) {
        let order = &self.chains[self.chain(chosen)].order[part];
        order.iter().partition(|place| **place == chosen || goes_along(**place))
    }

    /// Replaces a part of a chain by the same in another order, in which some have new positions.
    fn rearrange(&mut self, of: Place, from: usize, new: &[Place], moving: std::ops::Range<usize>) -> usize {
        let count = moving.len();
        if count == new.len() {
            return 0;
        }
        let chain = self.chain(of);
        let order = &mut self.chains[chain].order;
        order[from..from + new.len()].copy_from_slice(new);
        let position = |place: Option<&Place>| place.map(|place| self.links[place.index()].position);
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

    /// Gives all in a chain new positions with the same room between any two.
    fn spread(&mut self, chain: usize) {
        let order = &self.chains[chain].order;
        let gap = POSITIONS / (order.len() as u64 + 1);
        for (place, nth) in order.iter().zip(1..) {
            self.links[place.index()].position = gap * nth;
        }
    }

    fn chain(&self, place: Place) -> usize {
        self.links[place.index()].chain as usize
    }

    fn index_of(&self, place: Place) -> usize {
        let position = self.links[place.index()].position;
        let order = &self.chains[self.chain(place)].order;
        order.partition_point(|other| self.links[other.index()].position < position)
    }
}
