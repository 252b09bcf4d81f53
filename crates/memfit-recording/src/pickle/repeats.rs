//! Lists that were written before, byte for byte: what became of them is known without looking at their
//! elements again.
//!
//! Three quarters of a snapshot are stacks, each a list of frames from the memo, and a training step asks for
//! memory from the same few hundred places again and again. As long as no place of the memo is written over,
//! equal bytes are equal lists.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::op;

/// So many bytes are remembered; then all are forgotten, and what still comes is remembered anew.
const MOST: usize = 16 << 20;
/// A list of a few elements is done by the time that it would have been looked up.
const LEAST: usize = 24;

/// How many lists can be found by how they begin, a power of two.
const GUESSED: usize = 1 << 12;
/// How long a beginning is: stacks of the same operation in different layers of a network are alike at first.
const BEGINNING: usize = 96;

/// The lists that were seen.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    seen: Vec<Seen>,
    /// Places among the lists that were seen, by the hashes of their bytes.
    known: HashTable<u32>,
    bytes: Vec<u8>,
    /// Where the lists were remembered that were met last with a beginning; each number is one more than the
    /// place. With that and with [`Seen::next`], neither the end nor the hash of most lists has to be
    /// found.
    lately: Vec<u32>,
    /// The list that was met last.
    last: Option<u32>,
    /// With a secret, so that no file can bring lists that all have the same.
    hasher: DefaultHashBuilder,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    start: u32,
    length: u32,
    kept: u32,
    /// The list that was met after this one, the last time: each training step goes the same way.
    next: u32,
}

/// The bytes of a list that can be remembered.
#[derive(Clone, Copy)]
pub(super) struct Body<'a> {
    pub(super) bytes: &'a [u8],
}

impl<'a> Body<'a> {
    /// The list at the beginning of these bytes, from its mark to the operation that fills it, if it is one
    /// of references to the memo and nothing else.
    #[inline]
    pub(super) fn at(bytes: &'a [u8]) -> Option<Self> {
        // Four at a time, as long as they are of the longer kind: none of the four waits for where the one
        // before it ends.
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
        (bytes.len() >= LEAST).then_some(Self { bytes })
    }
}

impl Repeats {
    /// What became of the list at the beginning of these bytes, and how long it is, where it is the one that
    /// came after the last one before, or the one that last began like this.
    #[inline]
    pub(super) fn guess(&mut self, bytes: &[u8]) -> Option<(usize, u32)> {
        let last = self.last?;
        let next = self.seen.get(last as usize)?.next;
        if let Some(found) = self.matches(next, bytes) {
            self.last = Some(next);
            return Some(found);
        }
        let recent = self.lately.get(self.beginning(bytes)?)?.checked_sub(1)?;
        let found = self.matches(recent, bytes)?;
        self.follow(recent);
        Some(found)
    }

    /// What became of the list when it was seen before.
    #[inline]
    pub(super) fn get(&mut self, body: Body<'_>) -> Option<u32> {
        let hash = self.hasher.hash_one(body.bytes);
        let place =
            *self.known.find(hash, |place| bytes_of(&self.bytes, &self.seen, *place) == body.bytes)?;
        self.met(body, place);
        Some(self.seen[place as usize].kept)
    }

    /// Whether these bytes begin with a list that was seen: how long it is, and what became of it.
    fn matches(&self, place: u32, bytes: &[u8]) -> Option<(usize, u32)> {
        let known = bytes_of(&self.bytes, &self.seen, place);
        bytes.starts_with(known).then(|| (known.len(), self.seen[place as usize].kept))
    }

    /// A list comes after the one that was met last.
    fn follow(&mut self, place: u32) {
        if let Some(last) = self.last.replace(place) {
            self.seen[last as usize].next = place;
        }
    }

    fn met(&mut self, body: Body<'_>, place: u32) {
        self.follow(place);
        if self.lately.is_empty() {
            self.lately.resize(GUESSED, 0);
        }
        if let Some(beginning) = self.beginning(body.bytes) {
            self.lately[beginning] = place + 1;
        }
    }

    /// A place for a list by how it begins.
    fn beginning(&self, bytes: &[u8]) -> Option<usize> {
        let beginning = bytes.first_chunk::<BEGINNING>()?;
        Some(self.hasher.hash_one(beginning) as usize % GUESSED)
    }

    /// Remembers what became of a list.
    pub(super) fn remember(&mut self, body: Body<'_>, kept: u32) {
        if self.bytes.len() + body.bytes.len() > MOST {
            self.forget();
        }
        let (start, length) = (self.bytes.len() as u32, body.bytes.len() as u32);
        self.bytes.extend_from_slice(body.bytes);
        let place = self.seen.len() as u32;
        self.seen.push(Seen { start, length, kept, next: place });
        let Self { seen, known, bytes, hasher, .. } = self;
        let hash = hasher.hash_one(body.bytes);
        known.insert_unique(hash, place, |place| hasher.hash_one(bytes_of(bytes, seen, *place)));
        self.met(body, place);
    }

    /// Forgets everything: references to the memo mean something else now.
    #[cold]
    pub(super) fn forget(&mut self) {
        self.seen.clear();
        self.known.clear();
        self.bytes.clear();
        self.lately.clear();
        self.last = None;
    }

    /// Roughly how many bytes this holds.
    pub(super) fn memory(&self) -> usize {
        self.bytes.len()
            + self.seen.len() * (size_of::<Seen>() + 2 * size_of::<u32>())
            + self.lately.len() * size_of::<u32>()
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
        let body = Body::at(&bytes).expect("it is a list");
        assert_eq!(repeats.get(body), None);
        repeats.remember(body, 7);
        // Whatever comes behind it.
        let longer = [&bytes[..], b"rest"].concat();
        assert_eq!(repeats.get(Body::at(&longer).expect("it is a list")), Some(7));
        assert_eq!(repeats.guess(&longer), Some((bytes.len(), 7)));
        assert_eq!(repeats.guess(&longer[..bytes.len() - 1]), None);
        assert_eq!(repeats.guess(&longer[..BEGINNING - 1]), None);
        for place in 0..elements.len() {
            let mut other = elements.clone();
            other[place] += 1000;
            let other = list(&other);
            assert_eq!(repeats.get(Body::at(&other).expect("it is a list")), None);
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
            repeats.remember(Body::at(bytes).expect("it is a list"), kept);
        }
        // The three begin alike, so only the last is found by that; it was followed by none.
        assert_eq!(repeats.guess(&lists[0]), None);
        assert_eq!(repeats.guess(&lists[2]), Some((lists[2].len(), 2)));
        assert_eq!(repeats.get(Body::at(&lists[0]).expect("it is a list")), Some(0));
        for round in 0..2 {
            for place in [1, 2, 0] {
                let found = repeats.guess(&lists[place]);
                assert_eq!(found, Some((lists[place].len(), place as u32)), "{round} {place}");
            }
        }
    }

    #[test]
    fn what_is_cut_off_short_or_something_else_is_no_list_to_remember() {
        let whole = list(&(300..320).collect::<Vec<_>>());
        for end in 0..whole.len() {
            assert!(Body::at(&whole[..end]).is_none(), "{end}");
        }
        assert!(Body::at(&list(&[1, 2])).is_none());
        let mut other = whole;
        let place = other.len() - 1;
        other[place] = op::SETITEMS;
        assert!(Body::at(&other).is_none());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut repeats = Repeats::default();
        let elements: Vec<u32> = (1000..21_000).collect();
        for first in 0..300 {
            let bytes = list(&[&[first][..], &elements].concat());
            let body = Body::at(&bytes).expect("it is a list");
            repeats.remember(body, first);
            assert_eq!(repeats.get(body), Some(first));
            assert!(repeats.memory() < 2 * MOST);
        }
    }
}
