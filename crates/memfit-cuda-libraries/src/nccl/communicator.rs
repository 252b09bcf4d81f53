//! What lies behind a communicator: its place among the ranks, what it takes of its card, and where it meets
//! the others.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

use std::process;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use memfit_vocabulary::Remark;

use super::buffers::Buffers;
use super::meeting::{EVERYONE, Meeting};
use super::status;
use crate::entry::{Handle, In, Kind, Out, Ptr};
use memfit_abi::handles::Objects;
use memfit_cuda::card;

/// The color of a rank that takes no part in a split.
const NO_COLOR: i32 = -1;
/// The first number of an operation that is made by a program.
const FIRST_MADE_OPERATION: i32 = 5;

/// What lies behind a communicator.
pub(super) struct Communicator {
    /// Its place.
    pub(super) place: Place,
    pub(super) operations: AtomicI32,
    pub(super) registrations: AtomicUsize,
    /// What it takes of its card.
    pub(super) buffers: Buffers,
    /// Where its ranks meet; nothing where there is nobody to meet.
    pub(super) meeting: Option<Mutex<Meeting>>,
    /// What all its ranks call it, and nobody calls another.
    name: u64,
    /// Communicators that were made of it.
    made: AtomicU64,
}

/// Which rank of how many, and on which card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) size: i32,
    pub(super) rank: i32,
    pub(super) card: usize,
}

impl Kind for Communicator {
    fn objects() -> &'static Objects<Self> {
        static OBJECTS: Objects<Communicator> = Objects::new(21);
        &OBJECTS
    }
}

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId([u64; 16]);

impl UniqueId {
    /// An id that no other process and no other call has been given.
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let time =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos() as u64);
        let mut words = [0; 16];
        words[..4].copy_from_slice(&[
            u64::from_le_bytes(*b"memfit\0\0"),
            u64::from(process::id()),
            time,
            NEXT.fetch_add(1, Relaxed),
        ]);
        Self(words)
    }

    /// The name of the communicator whose ranks meet under this id.
    pub(super) fn name(&self) -> u64 {
        name_of(&self.0)
    }
}

/// A name that follows from words which all ranks know.
fn name_of(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    memfit_channel::hash(&bytes)
}

/// Makes a communicator, and books what it takes from the start.
pub(super) fn make(target: Out<Handle<Communicator>>, place: Place, name: u64) -> i32 {
    if target.is_null() || place.size < 1 || !(0..place.size).contains(&place.rank) {
        return status::INVALID_ARGUMENT;
    }
    let Some(buffers) = Buffers::new(place) else { return status::UNHANDLED_CUDA_ERROR };
    target.put(Handle::new(Communicator {
        place,
        operations: AtomicI32::new(FIRST_MADE_OPERATION),
        registrations: AtomicUsize::new(1),
        buffers,
        meeting: (place.size > 1).then(|| Meeting::open(name, place)).flatten().map(Mutex::new),
        name,
        made: AtomicU64::new(0),
    }));
    status::SUCCESS
}

/// Makes the communicators of all ranks of a machine, which are in this process.
pub(super) fn make_all(communicators: Ptr, count: i32, cards: In<i32>) -> i32 {
    if communicators.is_null() || count < 1 {
        return status::INVALID_ARGUMENT;
    }
    let name = UniqueId::new().name();
    for rank in 0..count {
        let card = cards.at(rank as usize).map_or(rank as usize, |card| card as usize);
        let target = communicators.wrapping_byte_add(rank as usize * size_of::<usize>());
        // SAFETY: the caller gave room for as many communicators.
        let target = unsafe { Out::from_address(target as u64) };
        match make(target, Place { size: count, rank, card }, name) {
            status::SUCCESS => {}
            failure => return failure,
        }
    }
    status::SUCCESS
}

/// Gives a communicator up, with what it takes.
pub(super) fn destroy(communicator: Handle<Communicator>) -> i32 {
    let Some(known) = communicator.get() else { return status::INVALID_ARGUMENT };
    known.buffers.give_back();
    communicator.destroy();
    status::SUCCESS
}

/// A rank as seen in a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    color: i32,
    key: i32,
    rank: i32,
}

impl Communicator {
    /// The name of the next communicator that is made of this one: all its ranks count alike.
    pub(super) fn next_name(&self, salt: u64) -> u64 {
        name_of(&[self.name, self.made.fetch_add(1, Relaxed), salt])
    }

    /// Splits it by color. Who takes which color is asked of the others. Where they do not answer, the part
    /// is given the whole's size, as an upper bound, and the rank that the key asks for, where there is
    /// such a rank.
    pub(super) fn split(&self, color: i32, key: i32, target: Out<Handle<Self>>) -> i32 {
        let place = self.place;
        let mine = Choice { color, key, rank: place.rank };
        let others = self.choices(mine);
        let name = self.next_name(color as u64);
        if color == NO_COLOR {
            return if target.write(Handle::null()) { status::SUCCESS } else { status::INVALID_ARGUMENT };
        }
        let (size, rank) = if let Some(all) = others {
            within(&all, mine)
        } else {
            card::remark(Remark::NcclSplit);
            (place.size, if (0..place.size).contains(&key) { key } else { place.rank })
        };
        make(target, Place { size, rank, ..place }, name)
    }

    /// What all ranks chose; nothing if one of them did not say.
    fn choices(&self, mine: Choice) -> Option<Vec<Choice>> {
        let mut meeting = self.meeting.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let number = meeting.next(EVERYONE);
        let words = [mine.color.to_le_bytes(), mine.key.to_le_bytes()].concat();
        meeting.post(EVERYONE, number, Some((&words, false)));
        if mine.color == NO_COLOR {
            return None;
        }
        let others = (0..self.place.size).map(|rank| {
            if rank == mine.rank {
                return Some(mine);
            }
            let (said, _) = meeting.wait(EVERYONE, number, rank)?;
            let word = |at: usize| Some(i32::from_le_bytes(*said.get(at..)?.first_chunk()?));
            Some(Choice { color: word(0)?, key: word(4)?, rank })
        });
        let all = others.collect();
        meeting.done(EVERYONE, number);
        all
    }
}

/// The size of the part that a rank belongs to, and its rank there: by key, and by the old rank where keys
/// are equal.
fn within(all: &[Choice], mine: Choice) -> (i32, i32) {
    let part = || all.iter().filter(|other| other.color == mine.color);
    let before = part().filter(|other| (other.key, other.rank) < (mine.key, mine.rank)).count();
    (part().count() as i32, before as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_ordered_by_key_and_then_by_rank() {
        let choice = |rank, color, key| Choice { color, key, rank };
        let all =
            [choice(0, 1, 5), choice(1, 2, 0), choice(2, 1, 5), choice(3, 1, -3), choice(4, NO_COLOR, 0)];
        let places: Vec<_> = all[..4].iter().map(|mine| within(&all, *mine)).collect();
        assert_eq!(places, [(3, 1), (1, 0), (3, 2), (3, 0)]);
    }

    #[test]
    fn names_differ_where_anything_differs() {
        let names = [name_of(&[1, 2, 3]), name_of(&[1, 3, 2]), name_of(&[1, 2]), UniqueId::new().name()];
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name));
        }
    }
}
