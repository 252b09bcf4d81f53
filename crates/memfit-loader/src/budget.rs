//! The byte budget: how it is shared out, and the gate that images pass before anything is allocated for
//! them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::LoaderError;

/// How a budget is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Batches that there is memory for, the one in the user's hands among them.
    pub slots: usize,
    /// Bytes of one of them, as they are really taken.
    pub slot: u64,
    /// Bytes that each thread may keep from image to image.
    pub kept: u64,
    /// Bytes that are left for images that need more than that.
    pub shared: u64,
}

/// A thread keeps at least this much: less would make it allocate for every thumbnail.
const LEAST_KEPT: u64 = 1 << 20;
/// And at most this much: a full decode of 12 megapixels fits.
const MOST_KEPT: u64 = 48 << 20;
/// Stacks, file handles and the like of one thread.
const THREAD: u64 = 512 << 10;

impl Shares {
    /// Shares out `memory` bytes: at most `prefetch` batches beside the one in the user's hands, less if they
    /// do not fit.
    ///
    /// `pinned` memory is taken in powers of two, as PyTorch's allocator of it does.
    pub fn new(
        memory: u64,
        batch: u64,
        pinned: bool,
        threads: usize,
        prefetch: usize,
    ) -> Result<Self, LoaderError> {
        let slot = if pinned { batch.next_power_of_two() } else { batch.next_multiple_of(4096) };
        let threads = threads as u64;
        let least = 2 * slot + threads * (LEAST_KEPT + THREAD);
        if memory < least {
            return Err(LoaderError::Settings(format!(
                "memory= has to be at least {} bytes here: two batches of {slot}, and {} for each of {threads} threads",
                least,
                LEAST_KEPT + THREAD
            )));
        }
        // Half of it at most goes to batches, so that large images find room.
        let room = (memory - threads * (LEAST_KEPT + THREAD)).min(memory / 2);
        let slots = (room / slot.max(1)).clamp(2, prefetch.max(1) as u64 + 1);
        let rest = memory - slots * slot - threads * THREAD;
        let kept = (rest / (4 * threads)).clamp(LEAST_KEPT, MOST_KEPT);
        Ok(Self { slots: slots as usize, slot, kept, shared: rest - threads * kept })
    }
}

/// A count of bytes that is lent out, first come first served.
#[derive(Debug)]
pub(crate) struct Gate {
    total: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: u64,
    /// The ticket that is given out next, and the one whose turn it is.
    next: u64,
    turn: u64,
    closed: bool,
    /// The most that was lent at one time.
    peak: u64,
}

impl Gate {
    pub(crate) fn new(total: u64) -> Self {
        let state = State { free: total, next: 0, turn: 0, closed: false, peak: 0 };
        Self { total, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The most that can ever be lent.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The most that was lent at one time.
    pub(crate) fn peak(&self) -> u64 {
        self.lock().peak
    }

    /// Waits for so many bytes; `None` when the gate was closed. A large image is not overtaken by small
    /// ones.
    pub(crate) fn enter(&self, bytes: u64) -> Option<Permit<'_>> {
        debug_assert!(bytes <= self.total, "more than there is would wait for ever");
        if bytes == 0 {
            return Some(Permit { gate: self, bytes });
        }
        let mut state = self.lock();
        let ticket = state.next;
        state.next += 1;
        while !state.closed && (state.turn != ticket || state.free < bytes) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.turn += 1;
        if state.closed {
            return None;
        }
        state.free -= bytes;
        state.peak = state.peak.max(self.total - state.free);
        drop(state);
        self.changed.notify_all();
        Some(Permit { gate: self, bytes })
    }

    /// Sends everyone home who waits.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that were lent; they go back when this goes.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    gate: &'a Gate,
    bytes: u64,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.gate.lock().free += self.bytes;
            self.gate.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    proptest! {
        #[test]
        fn shares_never_exceed_the_budget(
            memory in 1_u64 << 20..1 << 36, batch in 1_u64..1 << 30, pinned: bool, threads in 1_usize..64, prefetch in 0_usize..20
        ) {
            if let Ok(shares) = Shares::new(memory, batch, pinned, threads, prefetch) {
                let all = shares.slots as u64 * shares.slot + threads as u64 * (shares.kept + THREAD) + shares.shared;
                prop_assert!(all <= memory);
                prop_assert!(shares.slots >= 2 && shares.slot >= batch);
            }
        }
    }

    #[test]
    fn no_more_is_out_than_there_is() {
        let gate = Gate::new(100);
        let out = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (gate, out) = (&gate, &out);
                scope.spawn(move || {
                    for round in 0..200_u64 {
                        let bytes = (thread * 37 + round * 13) % 101;
                        let permit = gate.enter(bytes).expect("it is open");
                        let now = out.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        assert!(now <= 100, "{now} are out");
                        out.fetch_sub(bytes, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert!(gate.peak() <= 100 && gate.peak() > 0);
        assert_eq!(gate.lock().free, 100);
    }

    #[test]
    fn a_closed_gate_sends_those_home_who_wait() {
        let gate = Gate::new(10);
        let all = gate.enter(10).expect("it is open");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter(1).is_none());
            gate.close();
            assert!(waiting.join().expect("it does not fall over"));
        });
        drop(all);
    }
}
