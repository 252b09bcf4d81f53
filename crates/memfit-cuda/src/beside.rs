//! Auxiliary clocks: estimate how long the run's work would take on other GPUs.
//!
//! A run may name GPUs of the same architecture ([`memfit_channel::Setup::beside`]). Each has a host time and
//! the end of a single queue: all streams are treated as one, and waiting for any work waits for all of it.
//! The first GPU named is the run's own, so the difference between its auxiliary clock and the real one shows
//! the error of that simplification.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use memfit_devices::Device;
use memfit_kernels::cost::{Speeds, Work};

/// One GPU's clock.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    /// Host time in nanoseconds.
    host: u64,
    /// Completion time of all queued work.
    end: u64,
}

/// The GPUs, and their clocks.
struct Beside {
    speeds: Vec<Speeds>,
    clocks: Mutex<Vec<Clock>>,
    /// `true` if a graph was launched, whose nodes' durations on the other GPUs are unknown.
    inexact: AtomicBool,
}

static BESIDE: OnceLock<Beside> = OnceLock::new();

thread_local! {
    /// Durations of the work that this thread is about to queue, one for each GPU.
    static LENGTHS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Creates a clock for each of these GPUs.
pub(crate) fn keep(devices: &[Device]) {
    if !devices.is_empty() {
        let speeds: Vec<Speeds> = devices.iter().map(Speeds::from_device).collect();
        let clocks = Mutex::new(vec![Clock::default(); speeds.len()]);
        BESIDE.get_or_init(|| Beside { speeds, clocks, inexact: AtomicBool::new(false) });
    }
}

/// Computes the duration of this thread's next piece of work on each of the GPUs.
#[inline]
pub(crate) fn measure(mut work: impl FnMut(&Speeds) -> Work) {
    let Some(beside) = BESIDE.get() else { return };
    // Computing a duration may make a library queue other work, so the results are stored afterwards.
    let lengths: Vec<u64> = beside.speeds.iter().map(|speeds| work(speeds).length).collect();
    LENGTHS.set(lengths);
}

/// Queues the measured work, or work of the same duration on every GPU if none was measured.
#[inline]
pub(crate) fn queue(length: u64, host: u64) {
    let Some(beside) = BESIDE.get() else { return };
    LENGTHS.with_borrow_mut(|lengths| {
        for (index, clock) in beside.clocks().iter_mut().enumerate() {
            clock.host += host;
            clock.end = clock.end.max(clock.host) + lengths.get(index).copied().unwrap_or(length);
        }
        lengths.clear();
    });
}

/// Discards the measured durations, since the work becomes a graph's node.
#[inline]
pub(crate) fn forget() {
    LENGTHS.with_borrow_mut(Vec::clear);
}

/// Records that a graph was launched, whose nodes were not measured.
pub(crate) fn lose() {
    if let Some(beside) = BESIDE.get() {
        beside.inexact.store(true, Relaxed);
    }
}

/// The host spends time.
#[inline]
pub(crate) fn spend(nanoseconds: u64) {
    if let Some(beside) = BESIDE.get() {
        beside.clocks().iter_mut().for_each(|clock| clock.host += nanoseconds);
    }
}

/// Makes the host wait for the GPU.
#[inline]
pub(crate) fn wait() {
    if let Some(beside) = BESIDE.get() {
        beside.clocks().iter_mut().for_each(|clock| clock.host = clock.host.max(clock.end));
    }
}

/// Completion time of all queued work on each GPU; empty if unknown.
pub(crate) fn ends() -> Vec<u64> {
    match BESIDE.get() {
        Some(beside) if !beside.inexact.load(Relaxed) => {
            beside.clocks().iter().map(|clock| clock.end.max(clock.host)).collect()
        }
        _ => Vec::new(),
    }
}

impl Beside {
    fn clocks(&self) -> MutexGuard<'_, Vec<Clock>> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use memfit_channel::WorkKind;
    use memfit_devices::Catalogue;

    use super::*;

    #[test]
    fn a_slower_card_takes_longer_for_what_was_measured_and_as_long_for_the_rest() {
        let catalogue = Catalogue::builtin().unwrap();
        let cards = ["rtx-3090", "rtx-3060"].map(|name| catalogue.find(name).unwrap().clone());
        keep(&cards);
        measure(|speeds| Work::new(WorkKind::Memory, 1e9 / speeds.memory));
        queue(1, 10);
        let first = ends();
        assert!(first[1] > first[0], "{first:?}");
        queue(1_000_000, 10);
        let second = ends();
        assert_eq!([second[0] - first[0], second[1] - first[1]], [1_000_000; 2]);
        wait();
        queue(5, 10);
        assert_eq!(ends()[0], second[0] + 15, "the host asks for it once it has waited");
        lose();
        assert!(ends().is_empty());
    }
}
