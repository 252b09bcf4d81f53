//! Time on the device.
//!
//! Each stream has a [`Timeline`] of its own. Work is queued behind what is there, and never begins before
//! the host asked for it; the host's time passes a little with every call, and jumps ahead where it waits. An
//! event is done when the host's time has passed it, so memory that another stream still uses is not given
//! back too early.
//!
//! By default nothing here looks at a real clock: the same program reads the same times whenever and wherever
//! it runs, and so does the allocator that asks it. The host's own computing counts as a fixed time for each
//! call ([`HostTime::Modelled`]); a run may ask for the processor time that it really takes
//! ([`HostTime::Measured`]), which differs from run to run.
//!
//! Lengths of work come from [`crate::cost`]. Two other ways to go ([`ClockMode`]) bound what they can
//! change: all work is done at once, or none is done until the host waits for it.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{
    cell::Cell,
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
};

use memfit_channel::{ClockMode, HostTime, WorkKind};

use memfit_kernels::cost::Work;

use crate::beside;

/// What PyTorch and the script spend on one operator that ends in a launch, from one launch to the next.
const OPERATOR: u64 = 12_000;
/// What a compiled program spends on a launch through the driver, which is how Triton's kernels are launched.
const COMPILED: u64 = 5_000;
/// What the host spends on any other call that queues something.
const CALL: u64 = 3_000;
/// What the host spends on asking whether something is done.
const POLL: u64 = 1_000;
/// Where nothing is done until the host waits: whoever asks so often, and queues nothing in between, waits in
/// its own way.
const PATIENCE: u64 = 100_000;

/// What the host does to queue a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// An operator of PyTorch's.
    Operator,
    /// A kernel of a compiled program.
    Compiled,
    /// Only this call.
    Call,
}

impl Effort {
    pub(crate) const fn nanoseconds(self) -> u64 {
        match self {
            Self::Operator => OPERATOR,
            Self::Compiled => COMPILED,
            Self::Call => CALL,
        }
    }
}

/// Nanoseconds since the device was made, on the host.
static HOST: AtomicU64 = AtomicU64::new(1_000);
/// The latest time that the host has waited for.
static WAITED: AtomicU64 = AtomicU64::new(0);
/// How often the host has asked since it queued anything.
static ASKED: AtomicU64 = AtomicU64::new(0);
static MODE: AtomicU8 = AtomicU8::new(ESTIMATE);
static MEASURED: AtomicU8 = AtomicU8::new(0);
/// How much work was queued, by kind.
static BUSY: [AtomicU64; WorkKind::ALL.len()] = [const { AtomicU64::new(0) }; WorkKind::ALL.len()];

const ESTIMATE: u8 = 0;
const INSTANT: u8 = 1;
const NEVER: u8 = 2;

/// How the clock goes in this run.
pub(crate) fn set(mode: ClockMode, host: HostTime) {
    let mode = match mode {
        ClockMode::Estimate => ESTIMATE,
        ClockMode::Instant => INSTANT,
        ClockMode::Never => NEVER,
    };
    MODE.store(mode, Relaxed);
    MEASURED.store(u8::from(host == HostTime::Measured), Relaxed);
}

/// Whether work takes its time.
#[inline]
pub(crate) fn is_running() -> bool {
    MODE.load(Relaxed) != INSTANT
}

/// The host's time.
pub(crate) fn now() -> u64 {
    HOST.load(Relaxed)
}

/// The host asks whether what ends at a time is done: a program that asks in a loop comes to its end.
#[inline]
pub(crate) fn is_done(end: u64) -> bool {
    let now = HOST.fetch_add(POLL, Relaxed) + POLL;
    beside::spend(POLL);
    if MODE.load(Relaxed) != NEVER {
        return end <= now;
    }
    if end <= WAITED.load(Relaxed) {
        return true;
    }
    if ASKED.fetch_add(1, Relaxed) >= PATIENCE {
        wait_until(end);
    }
    false
}

/// The host waits until a time; it does not go back.
#[inline]
pub(crate) fn wait_until(time: u64) {
    HOST.fetch_max(time, Relaxed);
    beside::wait();
    WAITED.fetch_max(time, Relaxed);
}

/// What was queued until now, by kind, in nanoseconds.
pub(crate) fn busy() -> [u64; WorkKind::ALL.len()] {
    std::array::from_fn(|kind| BUSY[kind].load(Relaxed))
}

/// Work that is about to be queued counts for its kind.
#[inline]
pub(crate) fn count(work: Work) {
    BUSY[work.kind as usize].fetch_add(work.length, Relaxed);
}

thread_local! {
    /// The processor time of this thread when it last called, in nanoseconds; 0 before its first call.
    static LAST: Cell<u64> = const { Cell::new(0) };
}

/// The processor time that the calling thread has spent since its last call, where it counts.
#[inline]
fn computing() -> u64 {
    if MEASURED.load(Relaxed) == 0 { 0 } else { measured() }
}

#[cold]
fn measured() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer leads to a timespec of ours.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } != 0;
    if failed {
        return 0;
    }
    let now = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    let last = LAST.replace(now);
    if last == 0 { 0 } else { now.saturating_sub(last) }
}

/// When the work that is queued will be done.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    end: AtomicU64,
    /// Since when there has been work without a gap.
    since: AtomicU64,
}

impl Timeline {
    /// A timeline without work.
    pub(crate) const fn new() -> Self {
        Self { end: AtomicU64::new(0), since: AtomicU64::new(0) }
    }

    /// Forgets what was queued.
    pub(crate) fn clear(&self) {
        self.end.store(0, Relaxed);
        self.since.store(0, Relaxed);
    }

    /// When everything queued until now is done.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    /// How much work there is from a time on, of what there is without a gap; nothing where that begins only
    /// after `until`.
    #[inline]
    pub(crate) fn beyond(&self, time: u64, until: u64) -> u64 {
        let since = self.since.load(Relaxed);
        if since >= until { 0 } else { self.end().saturating_sub(time.max(since)) }
    }

    /// Lets what is queued from here on begin no earlier than at a time.
    #[inline]
    pub(crate) fn wait_for(&self, time: u64) {
        if self.end.fetch_max(time, Relaxed) < time {
            self.since.store(time, Relaxed);
        }
    }

    /// What is queued takes longer than was thought; gives the time when it will be done.
    pub(crate) fn delay(&self, by: u64) -> u64 {
        self.end.fetch_add(by, Relaxed) + by
    }

    /// Queues work of a length; gives the time when it will be done.
    #[inline]
    pub(crate) fn queue(&self, length: u64, effort: Effort) -> u64 {
        let spent = effort.nanoseconds() + computing();
        let asked = HOST.fetch_add(spent, Relaxed) + spent;
        ASKED.store(0, Relaxed);
        if MODE.load(Relaxed) == INSTANT {
            // What it waits for is done at once, too.
            self.wait_for(asked);
            return asked;
        }
        self.append(asked, length)
    }

    /// Puts work of a length behind what is there, no earlier than at a time.
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
        measured();
        std::hint::black_box(spin());
        let long = measured();
        let short = measured();
        assert!(long > short, "computing takes time: {long} and {short}");
    }
}
