//! Division of the byte budget, and the gate that admits images before memory is allocated for them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::{LoaderError, slot::page_bytes};

/// Division of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Number of batch slots, including the one that the user holds.
    pub slots: usize,
    /// Bytes of a slot as allocated.
    pub slot: u64,
    /// Bytes that each thread may keep in buffers between images.
    pub kept: u64,
    /// Bytes that all threads share for images that need more.
    pub shared: u64,
}

/// Minimum bytes of a thread's buffers. With less, every thumbnail would need an allocation.
const MIN_KEPT_BYTES: u64 = 1 << 20;
/// Maximum bytes of a thread's buffers: enough for a full decode of 12 megapixels.
const MAX_KEPT_BYTES: u64 = 48 << 20;
/// Overhead of a thread: stack, file handles and the like.
const THREAD_OVERHEAD_BYTES: u64 = 512 << 10;

impl Shares {
    /// Divides `memory` bytes. There are at most `prefetch` slots in addition to the user's, and fewer if
    /// they do not fit.
    ///
    /// `pinned` slots are rounded up to powers of two, as PyTorch's pinned allocator does; others to whole
    /// pages.
    pub fn new(
        memory: u64,
        batch: u64,
        pinned: bool,
        threads: usize,
        prefetch: usize,
    ) -> Result<Self, LoaderError> {
        let slot = if pinned { batch.next_power_of_two() } else { batch.next_multiple_of(page_bytes()) };
        let threads = threads as u64;
        let least = 2 * slot + threads * (MIN_KEPT_BYTES + THREAD_OVERHEAD_BYTES);
        if memory < least {
            return Err(LoaderError::Settings(format!(
                "memory= has to be at least {} bytes here: two batches of {slot}, and {} for each of {threads} threads",
                least,
                MIN_KEPT_BYTES + THREAD_OVERHEAD_BYTES
            )));
        }
        // Batches get at most half of it, so that large images fit.
        let room = (memory - threads * (MIN_KEPT_BYTES + THREAD_OVERHEAD_BYTES)).min(memory / 2);
        let slots = (room / slot.max(1)).clamp(2, prefetch.max(1) as u64 + 1);
        let rest = memory - slots * slot - threads * THREAD_OVERHEAD_BYTES;
        let kept = (rest / (4 * threads)).clamp(MIN_KEPT_BYTES, MAX_KEPT_BYTES);
        Ok(Self { slots: slots as usize, slot, kept, shared: rest - threads * kept })
    }
}

/// Semaphore of bytes with first-come, first-served order.
#[derive(Debug)]
pub(crate) struct Gate {
    total: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: u64,
    /// Next ticket to issue, and the ticket that is served.
    next: u64,
    turn: u64,
    closed: bool,
    /// Maximum bytes lent at one time.
    peak: u64,
}

impl Gate {
    pub(crate) fn new(total: u64) -> Self {
        let state = State { free: total, next: 0, turn: 0, closed: false, peak: 0 };
        Self { total, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Total bytes of the gate.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Maximum bytes lent at one time.
    pub(crate) fn peak(&self) -> u64 {
        self.lock().peak
    }

    /// Waits until `bytes` are available. Returns `None` if the gate was closed. Small images never overtake
    /// a large one.
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

    /// Closes the gate and wakes all waiting threads.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lent bytes, returned on drop.
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
                let all = shares.slots as u64 * shares.slot + threads as u64 * (shares.kept + THREAD_OVERHEAD_BYTES) + shares.shared;
                prop_assert!(all <= memory);
                prop_assert!(shares.slots >= 2 && shares.slot >= batch);
                prop_assert!(pinned || shares.slot.is_multiple_of(page_bytes()));
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
