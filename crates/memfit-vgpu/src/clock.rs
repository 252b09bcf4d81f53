//! The device's clock. It knows nothing of the host's: the same program reads the same times whenever it runs.
//!
//! Every piece of work moves it by an estimate of its length. For now there is one clock for all streams, and all work is done the
//! moment it is queued; streams with a time of their own can replace it behind these functions.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a piece of work takes of which nothing is known: about what a launch costs.
pub(crate) const LAUNCH: u64 = 2_000;

static NOW: AtomicU64 = AtomicU64::new(1_000);

/// Nanoseconds since the device was made.
pub(crate) fn now() -> u64 {
    NOW.load(Relaxed)
}

/// Queues work that takes so many nanoseconds.
#[inline]
pub(crate) fn work(nanoseconds: u64) {
    NOW.fetch_add(nanoseconds, Relaxed);
}

/// Queues a copy of so many bytes at a rate in bytes a second.
pub(crate) fn transfer(bytes: u64, rate: u64) {
    work(LAUNCH + (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64);
}
