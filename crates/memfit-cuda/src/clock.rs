//! Simulated time on the device.
//!
//! Each stream has its own [`Timeline`]. Work is appended to it and never starts before the host queued it.
//! Host time advances a little with every call and jumps ahead when the host waits. An event is complete once
//! host time has passed it, so memory that another stream still uses is not released too early.
//!
//! By default, no real clock is read: the same program sees the same times on every machine and in every run,
//! and so does the allocator that queries events. Host computation counts as a fixed time per call
//! ([`HostTime::Modelled`]). A run may ask for the measured CPU time instead ([`HostTime::Measured`]),
//! which differs from run to run.
//!
//! Durations of work come from [`memfit_kernels::cost`]. Two other clock modes ([`ClockMode`]) bound the
//! effect of time on a run: all work completes at once, or none does until the host waits for it.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{
    cell::Cell,
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
};

use memfit_channel::{ClockMode, HostTime, WorkKind};

use memfit_kernels::cost::Work;

use crate::beside;

/// Host time of one PyTorch operator that ends in a launch, from one launch to the next, in nanoseconds.
/// Fitted: fitted rows of measurements/datacenter-speed.md that wait for the host (a BERT of transformers,
/// whose time does not grow with its batch).
const OPERATOR_NANOSECONDS: u64 = 28_000;
/// Host time of a launch through the driver by a compiled program (as for Triton kernels), in nanoseconds.
/// Source: 6.8 µs for a kernel of Inductor without arguments, 9.1 with 19; 4.7 to 5.6 for one of Triton alone
/// (github.com/meta-pytorch/tritonbench/pull/1017).
const COMPILED_NANOSECONDS: u64 = 7_000;
/// Host time of any other call that queues work, in nanoseconds.
/// Source: 3.0 to 3.3 µs for `cuLaunchKernel` (the same).
const CALL_NANOSECONDS: u64 = 3_000;
/// Host time of a query for completion, in nanoseconds.
/// Source: 2.2 µs for `cudaEventQuery` in the median of 25,790, where `cuLaunchKernel` takes 2.9
/// (llama70b_suffix_first.nsys_stats.md of github.com/mystous/vllm_hybrid).
const POLL_NANOSECONDS: u64 = 2_000;
/// Queries in a row, with nothing queued in between, that count as a wait in [`ClockMode::Never`]: such a
/// program waits by polling.
const MAX_POLLS: u64 = 100_000;

/// Kind of host work that precedes a piece of queued work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// A PyTorch operator.
    Operator,
    /// A kernel of a compiled program.
    Compiled,
    /// The call alone.
    Call,
}

impl Effort {
    pub(crate) const fn nanoseconds(self) -> u64 {
        match self {
            Self::Operator => OPERATOR_NANOSECONDS,
            Self::Compiled => COMPILED_NANOSECONDS,
            Self::Call => CALL_NANOSECONDS,
        }
    }
}

/// Host time in nanoseconds since the device was created.
static HOST: AtomicU64 = AtomicU64::new(1_000);
/// Latest time that the host has waited for.
static LAST_WAIT: AtomicU64 = AtomicU64::new(0);
/// Completion queries since the host last queued work.
static POLLS: AtomicU64 = AtomicU64::new(0);
static MODE: AtomicU8 = AtomicU8::new(ESTIMATE);
static MEASURED: AtomicU8 = AtomicU8::new(0);
/// Nanoseconds of work queued so far, by kind.
static BUSY: [AtomicU64; WorkKind::ALL.len()] = [const { AtomicU64::new(0) }; WorkKind::ALL.len()];

const ESTIMATE: u8 = 0;
const INSTANT: u8 = 1;
const NEVER: u8 = 2;

/// Sets the clock mode and the source of host time for this run.
pub(crate) fn configure(mode: ClockMode, host: HostTime) {
    let mode = match mode {
        ClockMode::Estimate => ESTIMATE,
        ClockMode::Instant => INSTANT,
        ClockMode::Never => NEVER,
    };
    MODE.store(mode, Relaxed);
    MEASURED.store(u8::from(host == HostTime::Measured), Relaxed);
}

/// Returns `true` if work takes time.
#[inline]
pub(crate) fn is_running() -> bool {
    MODE.load(Relaxed) != INSTANT
}

/// Current host time.
pub(crate) fn now() -> u64 {
    HOST.load(Relaxed)
}

/// Returns `true` if work that ends at `end` is complete. Each query advances host time, so a polling loop
/// ends.
#[inline]
pub(crate) fn is_done(end: u64) -> bool {
    let now = HOST.fetch_add(POLL_NANOSECONDS, Relaxed) + POLL_NANOSECONDS;
    beside::spend(POLL_NANOSECONDS);
    if MODE.load(Relaxed) != NEVER {
        return end <= now;
    }
    if end <= LAST_WAIT.load(Relaxed) {
        return true;
    }
    if POLLS.fetch_add(1, Relaxed) >= MAX_POLLS {
        wait_until(end);
    }
    false
}

/// Makes the host wait until a time. Host time never goes back.
#[inline]
pub(crate) fn wait_until(time: u64) {
    HOST.fetch_max(time, Relaxed);
    beside::wait();
    LAST_WAIT.fetch_max(time, Relaxed);
}

/// Returns the nanoseconds of work queued so far, by kind.
pub(crate) fn busy() -> [u64; WorkKind::ALL.len()] {
    std::array::from_fn(|kind| BUSY[kind].load(Relaxed))
}

/// Adds work that is about to be queued to the total of its kind.
#[inline]
pub(crate) fn count(work: Work) {
    BUSY[work.kind as usize].fetch_add(work.length, Relaxed);
}

thread_local! {
    /// CPU time of this thread at its last call, in nanoseconds; 0 before its first call.
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// CPU time that the calling thread has spent since its last call; 0 unless host time is measured.
#[inline]
fn host_computation() -> u64 {
    if MEASURED.load(Relaxed) == 0 { 0 } else { measured_computation() }
}

#[cold]
fn measured_computation() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer leads to a local timespec.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } != 0;
    if failed {
        return 0;
    }
    let now = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    let last = LAST.replace(now);
    if last == 0 { 0 } else { now.saturating_sub(last) }
}

/// The time at which a stream's queued work completes.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    end: AtomicU64,
    /// Start of the latest stretch of work without a gap.
    since: AtomicU64,
}

impl Timeline {
    /// Creates an empty timeline.
    pub(crate) const fn new() -> Self {
        Self { end: AtomicU64::new(0), since: AtomicU64::new(0) }
    }

    /// Forgets all queued work.
    pub(crate) fn clear(&self) {
        self.end.store(0, Relaxed);
        self.since.store(0, Relaxed);
    }

    /// Time at which all work queued so far completes.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    /// Work that remains after `time`, within the latest stretch without a gap; 0 if that starts only after
    /// `until`.
    #[inline]
    pub(crate) fn remaining_after(&self, time: u64, until: u64) -> u64 {
        let since = self.since.load(Relaxed);
        if since >= until { 0 } else { self.end().saturating_sub(time.max(since)) }
    }

    /// Makes later work start no earlier than `time`.
    #[inline]
    pub(crate) fn wait_for(&self, time: u64) {
        if self.end.fetch_max(time, Relaxed) < time {
            self.since.store(time, Relaxed);
        }
    }

    /// Extends the queued work by `by`; returns its new completion time.
    pub(crate) fn delay(&self, by: u64) -> u64 {
        self.end.fetch_add(by, Relaxed) + by
    }

    /// Queues work of a duration; returns its completion time.
    #[inline]
    pub(crate) fn queue(&self, length: u64, effort: Effort) -> u64 {
        let spent = effort.nanoseconds() + host_computation();
        let asked = HOST.fetch_add(spent, Relaxed) + spent;
        POLLS.store(0, Relaxed);
        if MODE.load(Relaxed) == INSTANT {
            // The work that it waits for completes at once, too.
            self.wait_for(asked);
            return asked;
        }
        self.append(asked, length)
    }

    /// Appends work of a duration that starts no earlier than `earliest`; returns its completion time.
    pub(crate) fn append(&self, earliest: u64, length: u64) -> u64 {
        let end = |tail: u64| tail.max(earliest).saturating_add(length);
        let tail = self.end.fetch_update(Relaxed, Relaxed, |tail| Some(end(tail))).unwrap_or(0);
        if tail < earliest {
            self.since.store(earliest, Relaxed);
        }
        end(tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_in_order_and_never_before_it_was_asked_for() {
        let (long, short) = (Timeline::new(), Timeline::new());
        let begun = now();
        let first = long.queue(50_000_000, Effort::Operator);
        assert!(first >= begun + 50_000_000);
        assert_eq!(long.queue(1_000, Effort::Call), first + 1_000, "behind the first");
        assert!(short.queue(1_000, Effort::Call) < first, "another stream does not wait");
        short.wait_for(long.end());
        assert!(short.queue(1_000, Effort::Call) > long.end(), "unless it is told to");
    }

    #[test]
    fn asking_in_a_loop_comes_to_an_end() {
        let line = Timeline::new();
        let end = line.queue(3_000_000, Effort::Call);
        let mut asked = 0;
        while !is_done(end) {
            asked += 1;
        }
        assert!(asked <= 3_000);
        let later = line.queue(1_000_000_000, Effort::Call);
        wait_until(later);
        assert!(now() >= later);
        wait_until(0);
        assert!(now() >= later, "time does not go back");
    }

    #[test]
    fn the_hosts_own_time_can_be_measured() {
        let spin = || (0..2_000_000_u64).fold(1_u64, |a, b| std::hint::black_box(a ^ b));
        measured_computation();
        std::hint::black_box(spin());
        let long = measured_computation();
        let short = measured_computation();
        assert!(long > short, "computing takes time: {long} and {short}");
    }
}
