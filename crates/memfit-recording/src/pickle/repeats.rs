//! Lists that were written before, byte for byte: what became of them is known without looking at their elements again.
//!
//! Three quarters of a snapshot are stacks, each a list of frames from the memo, and a training step asks for memory from the same
//! few hundred places again and again. As long as no place of the memo is written over, equal bytes are equal lists.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::op;

/// So many bytes are remembered; then all are forgotten, and what still comes is remembered anew.
const MOST: usize = 16 << 20;
/// A list of a few elements is done by the time that it would have been looked up.
const LEAST: usize = 24;

/// How many lists can be guessed, a power of two.
const GUESSED: usize = 1 << 12;

/// The lists that were seen.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    known: HashMap<u64, Seen, BuildHasherDefault<Hashed>>,
    bytes: Vec<u8>,
    /// The lists that were met last under a sample of their bytes. Most often it is the same again, and then neither its end nor its hash
    /// has to be found.
    lately: Vec<Option<Seen>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    start: u32,
    length: u32,
    kept: u32,
}

/// The bytes of a list that can be remembered, and their hash.
#[derive(Clone, Copy)]
pub(super) struct Body<'a> {
    pub(super) bytes: &'a [u8],
    hash: u64,
}

impl<'a> Body<'a> {
    /// The list at the beginning of these bytes, from its mark to the operation that fills it, if it is one of references to the memo
    /// and nothing else.
    #[inline]
    pub(super) fn at(bytes: &'a [u8]) -> Option<Self> {
        // Four at a time, as long as they are of the longer kind: none of the four waits for where the one before it ends.
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
        (bytes.len() >= LEAST).then(|| Self { bytes, hash: hash(bytes) })
    }
}

impl Repeats {
    /// What became of the list at the beginning of these bytes, and how long it is, where a sample of it is enough to find it.
    #[inline]
    pub(super) fn guess(&self, bytes: &[u8]) -> Option<(usize, u32)> {
        let seen = (*self.lately.get(sample(bytes)?)?)?;
        let known = self.bytes_of(seen);
        bytes.starts_with(known).then_some((known.len(), seen.kept))
    }

    /// What became of the list when it was seen before.
    #[inline]
    pub(super) fn get(&mut self, body: Body<'_>) -> Option<u32> {
        let seen = *self.known.get(&body.hash)?;
        let same = self.bytes_of(seen) == body.bytes;
        if same {
            self.met(body, seen);
        }
        same.then_some(seen.kept)
    }

    fn bytes_of(&self, seen: Seen) -> &[u8] {
        let start = seen.start as usize;
        &self.bytes[start..start + seen.length as usize]
    }

    fn met(&mut self, body: Body<'_>, seen: Seen) {
        if self.lately.is_empty() {
            self.lately.resize(GUESSED, None);
        }
        if let Some(place) = sample(body.bytes) {
            self.lately[place] = Some(seen);
        }
    }

    /// Remembers what became of a list.
    pub(super) fn remember(&mut self, body: Body<'_>, kept: u32) {
        if self.bytes.len() + body.bytes.len() > MOST {
            self.forget();
        }
        let (start, length) = (self.bytes.len() as u32, body.bytes.len() as u32);
        self.bytes.extend_from_slice(body.bytes);
        let seen = Seen { start, length, kept };
        self.known.insert(body.hash, seen);
        self.met(body, seen);
    }

    /// Forgets everything: references to the memo mean something else now.
    #[cold]
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.bytes.clear();
        self.lately.clear();
    }

    /// Roughly how many bytes this holds.
    pub(super) fn memory(&self) -> usize {
        self.bytes.len()
            + self.known.len() * 2 * size_of::<(u64, Seen)>()
            + self.lately.len() * size_of::<Option<Seen>>()
    }
}

/// A place for a list by some of its first references and by some of its middle, where stacks of the same operation differ.
fn sample(bytes: &[u8]) -> Option<usize> {
    let bytes = bytes.first_chunk::<88>()?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let mixed = [1, 40, 80]
        .iter()
        .fold(0_u64, |mixed, at| (mixed ^ word(*at)).wrapping_mul(FACTORS[0]).rotate_left(29));
    Some((mixed >> 32) as usize % GUESSED)
}

const FACTORS: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F];

/// Sixteen bytes at a time, in two lanes that do not wait for each other.
fn hash(bytes: &[u8]) -> u64 {
    let word = |part: &[u8]| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    };
    let mix = |hash: u64, word: u64, factor: u64| (hash ^ word).wrapping_mul(factor).rotate_left(29);
    let mut lanes = [bytes.len() as u64, !(bytes.len() as u64)];
    let mut parts = bytes.chunks_exact(16);
    for part in parts.by_ref() {
        let (low, high) = part.split_at(8);
        lanes[0] = mix(lanes[0], word(low), FACTORS[0]);
        lanes[1] = mix(lanes[1], word(high), FACTORS[1]);
    }
    let (low, high) = parts.remainder().split_at(parts.remainder().len().min(8));
    mix(mix(lanes[0], word(low), FACTORS[0]), mix(lanes[1], word(high), FACTORS[1]), FACTORS[1])
}

/// The keys are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash(bytes);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
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
