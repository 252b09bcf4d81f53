//! Lock-free counting by name.

use super::layout::{NAME_BYTES, RawTally};
use crate::hash;
use crate::sync::{
    AtomicU8, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    pause,
};

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
/// Pauses for a process that writes a name.
const MAX_PAUSES: u32 = if cfg!(loom) { 8 } else { 1 << 12 };

/// Adds to the count of a name. Once the table is full, new names are lost.
pub(super) fn count(table: &[RawTally], kind: TallyKind, name: &str, times: u64) {
    enter(table, kind, name, |count| {
        count.fetch_add(times, Relaxed);
    });
}

/// Raises the number of a name to at least `to`.
pub(super) fn raise(table: &[RawTally], kind: TallyKind, name: &str, to: u64) {
    enter(table, kind, name, |count| {
        count.fetch_max(to, Relaxed);
    });
}

/// Finds or creates the entry of a name.
fn enter(table: &[RawTally], kind: TallyKind, name: &str, apply: impl Fn(&AtomicU64)) {
    let name = &name.as_bytes()[..name.floor_char_boundary(NAME_BYTES)];
    let start = hash(name) as usize % table.len();
    for step in 0..table.len() {
        let entry = &table[(start + step) % table.len()];
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
        // Another process may be writing this name at the moment. If it died there, continue after it.
        for _ in 0..MAX_PAUSES {
            if state != CLAIMED {
                break;
            }
            pause();
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

#[cfg(all(test, loom))]
mod models {
    use loom::{sync::Arc, thread};

    use super::*;

    fn table() -> Arc<Vec<RawTally>> {
        let entry = || RawTally {
            count: AtomicU64::new(0),
            kind: AtomicU8::new(FREE),
            length: AtomicU8::new(0),
            name: std::array::from_fn(|_| AtomicU8::new(0)),
        };
        Arc::new((0..2).map(|_| entry()).collect())
    }

    /// Counts two names in two threads; returns what is then found, in order.
    fn counted(one: &'static str, other: &'static str) -> Vec<(String, u64)> {
        let table = table();
        let second = {
            let table = Arc::clone(&table);
            thread::spawn(move || count(&table, TallyKind::Note, other, 3))
        };
        count(&table, TallyKind::Note, one, 2);
        second.join().expect("it ends");
        let mut found: Vec<(String, u64)> = table
            .iter()
            .filter(|entry| TallyKind::from_raw(entry.kind.load(Acquire)).is_some())
            .map(|entry| (name(entry), entry.count.load(Relaxed)))
            .collect();
        found.sort();
        found
    }

    #[test]
    fn a_name_that_two_count_at_once_has_one_entry() {
        loom::model(|| assert_eq!(counted("a", "a"), [("a".to_owned(), 5)]));
    }

    #[test]
    fn two_names_are_never_taken_for_one() {
        loom::model(|| assert_eq!(counted("a", "b"), [("a".to_owned(), 2), ("b".to_owned(), 3)]));
    }
}
