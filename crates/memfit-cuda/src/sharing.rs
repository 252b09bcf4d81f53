//! Sharing of a device between streams.
//!
//! Kernels on different streams run side by side on the same multiprocessors and memory, so each gets a share
//! of them: while two run, each takes twice as long. Completion times are reported when work is queued and
//! cannot be revised; work queued behind a kernel that was slowed down later starts later.
//!
//! This module knows only how long work occupies the device, not what the work is.

use std::{
    ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use crate::clock::{self, Timeline};

/// Streams of a device that have queued kernels.
pub(crate) struct Shared {
    /// Completion time of the last kernel on any of them.
    latest: Timeline,
    /// Streams whose kernels may still run, most recently used first.
    busy: Mutex<Vec<&'static Timeline>>,
    /// Address of the most recently used stream; most launches find that it is their own.
    last: AtomicUsize,
}

impl Shared {
    /// Creates the state without work.
    pub(crate) const fn new() -> Self {
        Self { latest: Timeline::new(), busy: Mutex::new(Vec::new()), last: AtomicUsize::new(0) }
    }

    /// Queues a kernel on a stream. It would end at `end` if nothing else ran, and occupies the whole device
    /// for `demand` of its `length`. Returns its completion time.
    #[inline]
    pub(crate) fn take(&self, line: &'static Timeline, end: u64, length: u64, demand: u64) -> u64 {
        let begin = end.saturating_sub(length);
        let end = if self.latest.end() > begin {
            self.beside_others(line, begin, end, demand)
        } else {
            self.alone(line, end)
        };
        self.latest.wait_for(end);
        end
    }

    /// Completion time of everything queued.
    pub(crate) fn latest(&self) -> u64 {
        self.latest.end()
    }

    /// Records a kernel that runs alone, so that other streams find it.
    fn alone(&self, line: &'static Timeline, end: u64) -> u64 {
        if self.last.load(Relaxed) != ptr::from_ref(line).addr() {
            self.remember(&mut self.busy.lock().unwrap_or_else(PoisonError::into_inner), line);
        }
        end
    }

    fn beside_others(&self, line: &'static Timeline, begin: u64, end: u64, demand: u64) -> u64 {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        // Bound on every stream's end: the kernel adds exactly this much to the work of the device.
        let most = self.latest.end() + (end - begin);
        let mut longer = 0;
        for other in busy.iter().filter(|other| !ptr::eq(**other, line)) {
            // While both run, each loses the share that the other gets.
            let lost = other.remaining_after(begin, end).min(demand);
            let after = other.delay(lost.min(most.saturating_sub(other.end())));
            self.latest.wait_for(after);
            longer += lost;
        }
        self.remember(&mut busy, line);
        line.delay(longer.min(most - end))
    }

    /// Moves a stream to the front and forgets those whose work is complete.
    fn remember(&self, busy: &mut Vec<&'static Timeline>, line: &'static Timeline) {
        let now = clock::now();
        busy.retain(|other| !ptr::eq(*other, line) && other.end() > now);
        busy.insert(0, line);
        self.last.store(ptr::from_ref(line).addr(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Streams of one device on which kernels are queued.
    struct Card {
        shared: Shared,
        lines: Vec<&'static Timeline>,
    }

    impl Card {
        fn new(streams: usize) -> Self {
            let line = || -> &'static Timeline { Box::leak(Box::new(Timeline::new())) };
            Self { shared: Shared::new(), lines: (0..streams).map(|_| line()).collect() }
        }

        /// Queues a kernel far ahead of host time.
        fn run(&self, stream: usize, length: u64) -> u64 {
            const START: u64 = 1 << 60;
            let line = self.lines[stream];
            let end = line.append(START, length);
            self.shared.take(line, end, length, length) - START
        }
    }

    #[test]
    fn one_stream_has_the_card_to_itself() {
        let card = Card::new(1);
        assert_eq!(card.run(0, 100), 100);
        assert_eq!(card.run(0, 50), 150);
    }

    #[test]
    fn two_kernels_side_by_side_take_as_long_as_one_after_the_other() {
        let card = Card::new(2);
        card.run(0, 100);
        assert_eq!(card.run(1, 100), 200);
        assert_eq!(card.run(0, 10), 210, "both ended at 200");
    }

    #[test]
    fn a_short_kernel_takes_twice_as_long_beside_a_long_one() {
        let card = Card::new(2);
        card.run(0, 100);
        assert_eq!(card.run(1, 10), 20);
        assert_eq!(card.run(0, 5), 115, "the long one lost ten");
    }

    #[test]
    fn future_waits_do_not_slow_down_the_present() {
        let card = Card::new(2);
        card.lines[0].wait_for((1 << 60) + 1_000);
        card.run(0, 100);
        assert_eq!(card.run(1, 50), 50);
    }

    proptest! {
        /// On any mix of streams, the device does no more work than it can and is never idle while there is
        /// work.
        #[test]
        fn work_is_neither_lost_nor_won(kernels in prop::collection::vec((0_usize..3, 1_u64..1_000), 1..60)) {
            let card = Card::new(3);
            let mut latest = 0;
            for (stream, length) in &kernels {
                latest = card.run(*stream, *length).max(latest);
            }
            let total: u64 = kernels.iter().map(|(_, length)| length).sum();
            let ends = card.lines.iter().map(|line| line.end().saturating_sub(1 << 60)).max().unwrap_or(0);
            prop_assert_eq!(ends.max(latest), total);
        }
    }
}
