//! Time on the device, which knows nothing of the host's clock: the same program reads the same times whenever it runs.
//!
//! Each stream has a [`Timeline`] of its own. Work is queued behind what is there, and never begins before the host asked
//! for it; the host's time passes a little with every call, and jumps ahead where it waits. An event is done when the
//! host's time has passed it, so memory that another stream still uses is not given back too early.
//!
//! Lengths are estimates: those of copies follow from the card's links, a kernel of which nothing is known takes
//! [`KERNEL`]. That is less than the host needs to launch it, so such kernels never pile up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A kernel of which nothing is known.
pub(crate) const KERNEL: u64 = 2_000;
/// What the host spends on queueing something: about what PyTorch needs for one operator.
const CALL: u64 = 4_000;
/// What the host spends on asking whether something is done.
const POLL: u64 = 1_000;

/// Nanoseconds since the device was made, on the host.
static HOST: AtomicU64 = AtomicU64::new(1_000);

/// The host's time.
#[cfg(test)]
pub(crate) fn now() -> u64 {
    HOST.load(Relaxed)
}

/// The host asks whether something is done: a program that asks in a loop comes to its end.
#[inline]
pub(crate) fn poll() -> u64 {
    HOST.fetch_add(POLL, Relaxed) + POLL
}

/// The host waits until a time; it does not go back.
#[inline]
pub(crate) fn wait_until(time: u64) {
    HOST.fetch_max(time, Relaxed);
}

/// How long it takes to move so many bytes at a rate in bytes a second, in nanoseconds.
pub(crate) fn transfer(bytes: u64, rate: u64) -> u64 {
    KERNEL + (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64
}

/// When the work that is queued will be done.
#[derive(Debug, Default)]
pub(crate) struct Timeline(AtomicU64);

impl Timeline {
    /// A timeline without work.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Forgets what was queued.
    pub(crate) fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    /// When everything queued until now is done.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Lets what is queued from here on begin no earlier than at a time.
    #[inline]
    pub(crate) fn wait_for(&self, time: u64) {
        self.0.fetch_max(time, Relaxed);
    }

    /// Queues work of a length; gives the time when it will be done.
    #[inline]
    pub(crate) fn queue(&self, length: u64) -> u64 {
        let asked = HOST.fetch_add(CALL, Relaxed) + CALL;
        let end = |tail: u64| tail.max(asked) + length;
        self.0.fetch_update(Relaxed, Relaxed, |tail| Some(end(tail))).map_or(asked, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_in_order_and_never_before_it_was_asked_for() {
        let (long, short) = (Timeline::new(), Timeline::new());
        let begun = now();
        let first = long.queue(50_000_000);
        assert!(first >= begun + 50_000_000);
        assert_eq!(long.queue(1_000), first + 1_000, "behind the first");
        assert!(short.queue(1_000) < first, "another stream does not wait");
        short.wait_for(long.end());
        assert!(short.queue(1_000) > long.end(), "unless it is told to");
    }

    #[test]
    fn asking_in_a_loop_comes_to_an_end() {
        let line = Timeline::new();
        let end = line.queue(3_000_000);
        let mut asked = 0;
        while poll() < end {
            asked += 1;
        }
        assert!(asked <= 3_000);
        let later = line.queue(1_000_000_000);
        wait_until(later);
        assert!(now() >= later);
        wait_until(0);
        assert!(now() >= later, "time does not go back");
    }

    #[test]
    fn copies_take_as_long_as_their_link_needs() {
        assert_eq!(transfer(25_000_000, 25_000_000_000), KERNEL + 1_000_000);
        assert!(transfer(u64::MAX, 1) > 0, "no overflow");
        assert_eq!(transfer(0, 0), KERNEL);
    }
}
