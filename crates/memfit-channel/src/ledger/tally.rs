//! Lock-free counting by name.

use std::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::layout::{MAX_TALLY, NAME_BYTES, RawTally};
use crate::hash;

/// Kind of a counted name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TallyKind {
    /// A call that the device does not model.
    Unmodelled = 1,
    /// A value that a kernel would have computed, answered by policy.
    ValuePolicy = 2,
    /// A remark on the accuracy of the results.
    Note = 3,
    /// Maximum bytes that the remark of this name concerns: raised, not added.
    RemarkBytes = 4,
}

impl TallyKind {
    pub(super) fn from_raw(raw: u8) -> Option<Self> {
        [Self::Unmodelled, Self::ValuePolicy, Self::Note, Self::RemarkBytes]
            .into_iter()
            .find(|&kind| kind as u8 == raw)
    }
}

/// Neither free nor readable: a process is writing the name. If it dies there, the entry is lost, which is
/// harmless.
pub(super) const CLAIMED: u8 = 0xff;
const FREE: u8 = 0;

/// Adds to the count of a name. Once the table is full, new names are lost.
pub(super) fn count(table: &[RawTally; MAX_TALLY], kind: TallyKind, name: &str, times: u64) {
    enter(table, kind, name, |count| {
        count.fetch_add(times, Relaxed);
    });
}

/// Raises the number of a name to at least `to`.
pub(super) fn raise(table: &[RawTally; MAX_TALLY], kind: TallyKind, name: &str, to: u64) {
    enter(table, kind, name, |count| {
        count.fetch_max(to, Relaxed);
    });
}

/// Finds or creates the entry of a name.
fn enter(table: &[RawTally; MAX_TALLY], kind: TallyKind, name: &str, apply: impl Fn(&AtomicU64)) {
    let name = &name.as_bytes()[..name.floor_char_boundary(NAME_BYTES)];
    let start = hash(name) as usize % MAX_TALLY;
    for step in 0..MAX_TALLY {
        let entry = &table[(start + step) % MAX_TALLY];
        let mut state = entry.kind.load(Acquire);
        if state == FREE {
            match entry.kind.compare_exchange(FREE, CLAIMED, AcqRel, Acquire) {
                Ok(_) => {
                    entry.length.store(name.len() as u8, Relaxed);
                    entry.name.iter().zip(name).for_each(|(to, &from)| to.store(from, Relaxed));
                    entry.kind.store(kind as u8, Release);
                    state = kind as u8;
                }
                Err(found) => state = found,
            }
        }
        // Another process may be writing this very name, which takes a moment. If it died there, continue
        // after it.
        for _ in 0..1 << 12 {
            if state != CLAIMED {
                break;
            }
            std::hint::spin_loop();
            state = entry.kind.load(Acquire);
        }
        if state == kind as u8 && holds(entry, name) {
            apply(&entry.count);
            return;
        }
    }
}

fn holds(entry: &RawTally, name: &[u8]) -> bool {
    entry.length.load(Relaxed) as usize == name.len()
        && entry.name.iter().zip(name).all(|(have, &want)| have.load(Relaxed) == want)
}

/// Name of a complete entry.
pub(super) fn name(entry: &RawTally) -> String {
    let length = (entry.length.load(Relaxed) as usize).min(NAME_BYTES);
    let bytes: Vec<u8> = entry.name[..length].iter().map(|byte: &AtomicU8| byte.load(Relaxed)).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
