//! A sequence lock: readers see all of a change or nothing of it, and writers never wait for them.

use crate::sync::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence, yield_now,
};

/// Number of attempts to read between changes.
const MAX_READS: u32 = if cfg!(loom) { 2 } else { 1000 };

/// Counts changes: odd while one is made. Writers exclude each other by other means.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Sequence(AtomicU64);

impl Sequence {
    /// Begins a change. A killed writer may have left the sequence odd; it only changed its own memory, so it
    /// is safe to continue from there.
    pub(super) fn begin(&self) {
        self.0.store(self.0.load(Relaxed) | 1, Relaxed);
        fence(AcqRel);
    }

    /// Ends a change.
    pub(super) fn end(&self) {
        self.0.store((self.0.load(Relaxed) | 1) + 1, Release);
    }

    /// Returns what `copy` reads between two changes. Retries during a change, but not for ever: a writer may
    /// have been killed, and its incomplete state is then returned.
    pub(super) fn read<T>(&self, copy: impl Fn() -> T) -> T {
        for _ in 0..MAX_READS {
            if let Some(whole) = self.try_read(&copy) {
                return whole;
            }
            yield_now();
        }
        copy()
    }

    fn try_read<T>(&self, copy: impl Fn() -> T) -> Option<T> {
        let before = self.0.load(Acquire);
        let copied = copy();
        fence(Acquire);
        (before.is_multiple_of(2) && self.0.load(Relaxed) == before).then_some(copied)
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::{sync::Arc, thread};

    use super::*;

    /// Two fields that change together, twice.
    #[test]
    fn a_reader_sees_whole_changes_only() {
        loom::model(|| {
            let shared = Arc::new((Sequence(AtomicU64::new(0)), AtomicU64::new(0), AtomicU64::new(0)));
            let writer = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    for value in 1..=2 {
                        shared.0.begin();
                        shared.1.store(value, Relaxed);
                        shared.2.store(value, Relaxed);
                        shared.0.end();
                    }
                })
            };
            let (sequence, one, other) = &*shared;
            if let Some((one, other)) = sequence.try_read(|| (one.load(Relaxed), other.load(Relaxed))) {
                assert_eq!(one, other);
            }
            writer.join().expect("the writer ends");
            assert_eq!(sequence.read(|| (one.load(Relaxed), other.load(Relaxed))), (2, 2));
        });
    }

    /// The next writer continues where a killed one stopped, and leaves a consistent state.
    #[test]
    fn a_killed_writer_does_not_stop_the_next() {
        loom::model(|| {
            let sequence = Arc::new(Sequence(AtomicU64::new(0)));
            sequence.begin();
            let next = {
                let sequence = Arc::clone(&sequence);
                thread::spawn(move || {
                    sequence.begin();
                    sequence.end();
                })
            };
            next.join().expect("the writer ends");
            assert_eq!(sequence.try_read(|| ()), Some(()));
        });
    }
}
