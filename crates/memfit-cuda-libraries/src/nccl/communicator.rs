//! A communicator: its position among the ranks, its memory on the device, and the board it shares with the
//! others.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

use std::process;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use memfit_channel::env::GROUP_PER_MACHINE;
use memfit_vocabulary::Remark;

use super::buffers::Buffers;
use super::meeting::{EVERYONE, Meeting};
use super::status;
use crate::entry::{Handle, In, Kind, Out, Ptr};
use memfit_abi::handles::Objects;
use memfit_cuda::card;

/// Color of a rank that takes no part in a split.
const NO_COLOR: i32 = -1;
/// First number of a program-defined operation.
const FIRST_MADE_OPERATION: i32 = 5;

/// State of a communicator.
pub(super) struct Communicator {
    /// Rank, size and device.
    pub(super) position: RankPosition,
    pub(super) operations: AtomicI32,
    pub(super) registrations: AtomicUsize,
    /// Memory on the device.
    pub(super) buffers: Buffers,
    /// Exchange with the other ranks; `None` if there are none to exchange with.
    pub(super) meeting: Option<Mutex<Meeting>>,
    /// Ranks of it on this machine; `None` if they fill one machine after the other.
    pub(super) per_machine: Option<u32>,
    /// Unique name, the same on all its ranks.
    name: u64,
    /// Number of communicators derived from it.
    made: AtomicU64,
}

/// Rank, number of ranks, and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankPosition {
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
    /// Creates an id that no other process and no other call gets.
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

    /// Name of the communicator whose ranks meet under this id.
    pub(super) fn name(&self) -> u64 {
        hash_name(&self.0)
    }
}

/// Hashes words that all ranks know to a name.
fn hash_name(words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    memfit_channel::hash(&bytes)
}

/// Creates a communicator, and reserves the memory taken at creation.
pub(super) fn make(target: Out<Handle<Communicator>>, position: RankPosition, name: u64) -> i32 {
    if target.is_null() || position.size < 1 || !(0..position.size).contains(&position.rank) {
        return status::INVALID_ARGUMENT;
    }
    let Some(buffers) = Buffers::new(position) else { return status::UNHANDLED_CUDA_ERROR };
    target.set(Handle::new(Communicator {
        position,
        operations: AtomicI32::new(FIRST_MADE_OPERATION),
        registrations: AtomicUsize::new(1),
        buffers,
        per_machine: stated_per_machine(),
        meeting: (position.size > 1).then(|| Meeting::open(name, position)).flatten().map(Mutex::new),
        name,
        made: AtomicU64::new(0),
    }));
    status::SUCCESS
}

/// Number of ranks on this machine in the group whose communicator is being created, as reported by the
/// probe: a process that represents one rank of many knows the groups, and NCCL's topology search is not
/// modelled.
fn stated_per_machine() -> Option<u32> {
    std::env::var(GROUP_PER_MACHINE).ok()?.parse().ok().filter(|count| *count > 0)
}

/// Creates the communicators of all ranks of a machine in this process.
pub(super) fn make_all(communicators: Ptr, count: i32, cards: In<i32>) -> i32 {
    if communicators.is_null() || count < 1 {
        return status::INVALID_ARGUMENT;
    }
    let name = UniqueId::new().name();
    for rank in 0..count {
        let card = cards.get_at(rank as usize).map_or(rank as usize, |card| card as usize);
        let target = communicators.wrapping_byte_add(rank as usize * size_of::<usize>());
        // SAFETY: the caller provides space for `count` communicators.
        let target = unsafe { Out::from_address(target as u64) };
        match make(target, RankPosition { size: count, rank, card }, name) {
            status::SUCCESS => {}
            failure => return failure,
        }
    }
    status::SUCCESS
}

/// Destroys a communicator and releases its memory.
pub(super) fn destroy(communicator: Handle<Communicator>) -> i32 {
    let Some(known) = communicator.get() else { return status::INVALID_ARGUMENT };
    known.buffers.give_back();
    communicator.destroy();
    status::SUCCESS
}

/// A rank's arguments in a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    color: i32,
    key: i32,
    rank: i32,
}

impl Communicator {
    /// Name of the next communicator derived from this one; the counter is the same on all ranks.
    pub(super) fn next_name(&self, salt: u64) -> u64 {
        hash_name(&[self.name, self.made.fetch_add(1, Relaxed), salt])
    }

    /// Splits the communicator by color. Queries the other ranks for their colors. If they do not answer, the
    /// part gets the size of the whole, as an upper bound, and the rank given by the key, if there is such a
    /// rank.
    pub(super) fn split(&self, color: i32, key: i32, target: Out<Handle<Self>>) -> i32 {
        let position = self.position;
        let mine = Choice { color, key, rank: position.rank };
        let others = self.choices(mine);
        let name = self.next_name(color as u64);
        if color == NO_COLOR {
            return if target.write(Handle::null()) { status::SUCCESS } else { status::INVALID_ARGUMENT };
        }
        let (size, rank) = if let Some(all) = others {
            part_position(&all, mine)
        } else {
            card::remark(Remark::NcclSplit);
            (position.size, if (0..position.size).contains(&key) { key } else { position.rank })
        };
        make(target, RankPosition { size, rank, ..position }, name)
    }

    /// Returns the choices of all ranks; `None` if one of them did not answer.
    fn choices(&self, mine: Choice) -> Option<Vec<Choice>> {
        let mut meeting = self.meeting.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let number = meeting.next(EVERYONE);
        let words = [mine.color.to_le_bytes(), mine.key.to_le_bytes()].concat();
        meeting.post(EVERYONE, number, Some((&words, false)));
        if mine.color == NO_COLOR {
            return None;
        }
        let others = (0..self.position.size).map(|rank| {
            if rank == mine.rank {
                return Some(mine);
            }
            let (said, _) = meeting.wait(EVERYONE, number, rank)?;
            let word = |at: usize| Some(i32::from_le_bytes(*said.get(at..)?.first_chunk()?));
            Some(Choice { color: word(0)?, key: word(4)?, rank })
        });
        let all = others.collect();
        meeting.complete(EVERYONE, number);
        all
    }
}

/// Returns the size of the part that a rank belongs to, and its rank there: by key, then by old rank.
fn part_position(all: &[Choice], mine: Choice) -> (i32, i32) {
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
        let places: Vec<_> = all[..4].iter().map(|mine| part_position(&all, *mine)).collect();
        assert_eq!(places, [(3, 1), (1, 0), (3, 2), (3, 0)]);
    }

    #[test]
    fn names_differ_where_anything_differs() {
        let names =
            [hash_name(&[1, 2, 3]), hash_name(&[1, 3, 2]), hash_name(&[1, 2]), UniqueId::new().name()];
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name));
        }
    }
}
