//! Cache of lists by their bytes: a repeated list is recognised without a look at its elements.
//!
//! Three quarters of a snapshot are stacks, each a list of memoized frames, and a training step allocates
//! from the same few hundred call sites again and again. As long as no memo entry is overwritten, equal bytes
//! mean equal lists.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::op;

/// Maximum number of bytes in the cache. When it is full, the cache is cleared.
const MAX_CACHED_BYTES: usize = 16 << 20;
/// Minimum length of a cached list in bytes. A shorter one is parsed in the time of a lookup.
const MIN_LIST_BYTES: usize = 24;

/// Number of slots in the table of list beginnings, a power of two.
const BEGINNING_SLOTS: usize = 1 << 12;
/// Bytes hashed as the beginning of a list. Stacks of the same operation in different layers of a network
/// have a common prefix.
const BEGINNING_BYTES: usize = 96;

/// Cache of lists.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    seen: Vec<Seen>,
    /// Indices of lists by the hashes of their bytes.
    known: HashTable<u32>,
    bytes: Vec<u8>,
    /// Index plus one of the list that was seen last with each beginning. With this and [`Seen::next`],
    /// neither the end nor the hash of most lists has to be computed.
    recent: Vec<u32>,
    /// List that was seen last.
    last: Option<u32>,
    /// Randomly keyed, so that a hostile file cannot cause collisions.
    hasher: DefaultHashBuilder,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    start: u32,
    length: u32,
    kept: u32,
    /// List that followed this one the last time; training steps repeat the same order.
    next: u32,
}

/// Bytes of a list that can be cached.
#[derive(Clone, Copy)]
pub(super) struct Body<'a> {
    pub(super) bytes: &'a [u8],
}

impl<'a> Body<'a> {
    /// Finds the list at the beginning of these bytes, from its mark to the operation that fills it, if it
    /// consists of references to the memo only.
    #[inline]
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        // Four long references at a time, so that the check of one does not wait for the end of the one
        // before it.
        let four = |part: &[u8; 20]| [0, 5, 10, 15].iter().all(|place| part[*place] == op::LONG_BINGET);
        let mut at = 1;
        while let Some(rest) = bytes.get(at..) {
            if rest.first_chunk::<20>().is_some_and(four) {
                at += 20;
                continue;
            }
            match *rest.first()? {
                op::LONG_BINGET => at += 5,
                op::BINGET => at += 2,
                op::APPENDS => break,
                _ => return None,
            }
        }
        let bytes = bytes.get(..=at)?;
        (bytes.len() >= MIN_LIST_BYTES).then_some(Self { bytes })
    }
}

impl Repeats {
    /// Looks up the list at the beginning of these bytes among two candidates: the list that followed the
    /// last one before, and the last list with the same beginning. Returns its length and its id in the
    /// shape.
    #[inline]
    pub(super) fn guess(&mut self, bytes: &[u8]) -> Option<(usize, u32)> {
        let last = self.last?;
        let next = self.seen.get(last as usize)?.next;
        if let Some(found) = self.matches(next, bytes) {
            self.last = Some(next);
            return Some(found);
        }
        let recent = self.recent.get(self.beginning(bytes)?)?.checked_sub(1)?;
        let found = self.matches(recent, bytes)?;
        self.follow(recent);
        Some(found)
    }

    /// Looks up a list by all its bytes. Returns its id in the shape.
    #[inline]
    pub(super) fn get(&mut self, body: Body<'_>) -> Option<u32> {
        let hash = self.hasher.hash_one(body.bytes);
        let place =
            *self.known.find(hash, |place| bytes_of(&self.bytes, &self.seen, *place) == body.bytes)?;
        self.mark_seen(body, place);
        Some(self.seen[place as usize].kept)
    }

    /// Compares the bytes with the list at `place`. Returns its length and its id in the shape if they begin
    /// with it.
    fn matches(&self, place: u32, bytes: &[u8]) -> Option<(usize, u32)> {
        let known = bytes_of(&self.bytes, &self.seen, place);
        bytes.starts_with(known).then(|| (known.len(), self.seen[place as usize].kept))
    }

    /// Makes `place` the last list, and the successor of the one before it.
    fn follow(&mut self, place: u32) {
        if let Some(last) = self.last.replace(place) {
            self.seen[last as usize].next = place;
        }
    }

    fn mark_seen(&mut self, body: Body<'_>, place: u32) {
        self.follow(place);
        if self.recent.is_empty() {
            self.recent.resize(BEGINNING_SLOTS, 0);
        }
        if let Some(beginning) = self.beginning(body.bytes) {
            self.recent[beginning] = place + 1;
        }
    }

    /// Slot of a list's beginning.
    fn beginning(&self, bytes: &[u8]) -> Option<usize> {
        let beginning = bytes.first_chunk::<BEGINNING_BYTES>()?;
        Some(self.hasher.hash_one(beginning) as usize % BEGINNING_SLOTS)
    }

    /// Adds a list and its id in the shape.
    pub(super) fn remember(&mut self, body: Body<'_>, kept: u32) {
        if self.bytes.len() + body.bytes.len() > MAX_CACHED_BYTES {
            self.forget();
        }
        let (start, length) = (self.bytes.len() as u32, body.bytes.len() as u32);
        self.bytes.extend_from_slice(body.bytes);
        let place = self.seen.len() as u32;
        self.seen.push(Seen { start, length, kept, next: place });
        let Self { seen, known, bytes, hasher, .. } = self;
        let hash = hasher.hash_one(body.bytes);
        known.insert_unique(hash, place, |place| hasher.hash_one(bytes_of(bytes, seen, *place)));
        self.mark_seen(body, place);
    }

    /// Clears the cache, since memo entries were overwritten.
    #[cold]
    pub(super) fn forget(&mut self) {
        self.seen.clear();
        self.known.clear();
        self.bytes.clear();
        self.recent.clear();
        self.last = None;
    }

    /// Approximate memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.len()
            + self.seen.len() * (size_of::<Seen>() + 2 * size_of::<u32>())
            + self.recent.len() * size_of::<u32>()
    }
}

fn bytes_of<'a>(bytes: &'a [u8], seen: &[Seen], place: u32) -> &'a [u8] {
    let Seen { start, length, .. } = seen[place as usize];
    &bytes[start as usize..start as usize + length as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(elements: &[u32]) -> Vec<u8> {
        let mut bytes = vec![op::MARK];
        for element in elements {
            match u8::try_from(*element) {
                Ok(short) => bytes.extend([op::BINGET, short]),
                Err(_) => bytes.extend([op::LONG_BINGET].into_iter().chain(element.to_le_bytes())),
            }
        }
        bytes.push(op::APPENDS);
        bytes
    }

    #[test]
    fn a_list_is_known_again_by_all_of_its_bytes() {
        let mut repeats = Repeats::default();
        let elements: Vec<u32> = (250..280).collect();
        let bytes = list(&elements);
        let body = Body::parse(&bytes).expect("it is a list");
        assert_eq!(repeats.get(body), None);
        repeats.remember(body, 7);
        // Other bytes follow the list.
        let longer = [&bytes[..], b"rest"].concat();
        assert_eq!(repeats.get(Body::parse(&longer).expect("it is a list")), Some(7));
        assert_eq!(repeats.guess(&longer), Some((bytes.len(), 7)));
        assert_eq!(repeats.guess(&longer[..bytes.len() - 1]), None);
        assert_eq!(repeats.guess(&longer[..BEGINNING_BYTES - 1]), None);
        for place in 0..elements.len() {
            let mut other = elements.clone();
            other[place] += 1000;
            let other = list(&other);
            assert_eq!(repeats.get(Body::parse(&other).expect("it is a list")), None);
            assert_eq!(repeats.guess(&other), None);
        }
        repeats.forget();
        assert_eq!((repeats.get(body), repeats.guess(&longer)), (None, None));
    }

    #[test]
    fn a_list_is_guessed_by_the_one_before_it_or_by_how_it_begins() {
        let lists: Vec<Vec<u8>> =
            [7, 8, 9].map(|last| list(&(300..330).chain([last]).collect::<Vec<_>>())).into();
        let mut repeats = Repeats::default();
        for (bytes, kept) in lists.iter().zip(0..) {
            assert_eq!(repeats.guess(bytes), None, "{kept}");
            repeats.remember(Body::parse(bytes).expect("it is a list"), kept);
        }
        // The three lists have the same beginning, so only the last is found by it, and nothing followed it.
        assert_eq!(repeats.guess(&lists[0]), None);
        assert_eq!(repeats.guess(&lists[2]), Some((lists[2].len(), 2)));
        assert_eq!(repeats.get(Body::parse(&lists[0]).expect("it is a list")), Some(0));
        for round in 0..2 {
            for place in [1, 2, 0] {
                let found = repeats.guess(&lists[place]);
                assert_eq!(found, Some((lists[place].len(), place as u32)), "{round} {place}");
            }
        }
    }

    #[test]
    fn only_whole_long_lists_are_remembered() {
        let whole = list(&(300..320).collect::<Vec<_>>());
        for end in 0..whole.len() {
            assert!(Body::parse(&whole[..end]).is_none(), "{end}");
        }
        assert!(Body::parse(&list(&[1, 2])).is_none());
        let mut other = whole;
        let place = other.len() - 1;
        other[place] = op::SETITEMS;
        assert!(Body::parse(&other).is_none());
    }

    #[test]
    fn memory_for_repeats_is_bounded() {
        let mut repeats = Repeats::default();
        let elements: Vec<u32> = (1000..21_000).collect();
        for first in 0..300 {
            let bytes = list(&[&[first][..], &elements].concat());
            let body = Body::parse(&bytes).expect("it is a list");
            repeats.remember(body, first);
            assert_eq!(repeats.get(body), Some(first));
            assert!(repeats.memory() < 2 * MAX_CACHED_BYTES);
        }
    }
}
