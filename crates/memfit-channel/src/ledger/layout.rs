//! Memory layout of the ledger: fixed, and only atomics, so that any process may read it at any time.

use super::{Load, mapping::Mapping, process::ProcessId, sequence::Sequence};
use crate::sync::{
    AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::{CardSetup, PROTOCOL};

/// Maximum devices of a run.
pub const MAX_CARDS: usize = 64;
/// Maximum processes that hold memory at the same time.
pub const MAX_PROCESSES: usize = 128;
/// Maximum different names that are counted.
pub const MAX_TALLY: usize = 1024;
/// Maximum bytes of a counted name; the rest is cut.
pub const NAME_BYTES: usize = if cfg!(loom) { 2 } else { 52 };

const MAGIC: u64 = u64::from_le_bytes(*b"memfitLG");

#[derive(Debug)]
#[repr(C)]
pub(super) struct RawLedger {
    /// Written last when the ledger is created.
    pub(super) magic: AtomicU64,
    pub(super) protocol: AtomicU32,
    pub(super) card_count: AtomicU32,
    pub(super) sequence: Sequence,
    pub(super) cards: [RawCard; MAX_CARDS],
    pub(super) processes: [RawProcess; MAX_PROCESSES],
    pub(super) tally: [RawTally; MAX_TALLY],
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct RawCard {
    pub(super) capacity: AtomicU64,
    /// Held by programs outside the run.
    pub(super) other: AtomicU64,
    pub(super) peak: AtomicU64,
    pub(super) peak_device: AtomicU64,
    pub(super) peak_device_upper: AtomicU64,
    /// Memory outside the allocator when `peak_device` was reached, by kind.
    pub(super) outside_at_peak: [AtomicU64; 3],
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct RawProcess {
    pub(super) state: AtomicU32,
    pub(super) pid: AtomicU32,
    /// Start time in the kernel's ticks since boot: the same process id with another one is another process.
    pub(super) start: AtomicU64,
    /// `u32::MAX` if there is none.
    pub(super) rank: AtomicU32,
    pub(super) padding: AtomicU32,
    pub(super) pinned: AtomicU64,
    pub(super) peak_pinned: AtomicU64,
    pub(super) shares: [RawShare; MAX_CARDS],
}

/// Memory of one process on one device.
#[derive(Debug)]
#[repr(C)]
pub(super) struct RawShare {
    pub(super) used: AtomicU64,
    pub(super) typical: [AtomicU64; 3],
    pub(super) high: [AtomicU64; 3],
    pub(super) peak: AtomicU64,
    pub(super) peak_device: AtomicU64,
    pub(super) peak_device_upper: AtomicU64,
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct RawTally {
    pub(super) count: AtomicU64,
    pub(super) kind: AtomicU8,
    pub(super) length: AtomicU8,
    pub(super) name: [AtomicU8; NAME_BYTES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Never used.
    Vacant,
    /// In use by a process.
    Live,
    /// The process has ended; the peaks are still readable.
    Gone,
}

impl Mapping<RawLedger> {
    /// Initialises the head of a new ledger, unless it is initialised. The caller holds the lock.
    pub(super) fn initialise(&self, cards: &[CardSetup]) {
        let ledger = self.get();
        if ledger.magic.load(Acquire) != 0 {
            return;
        }
        ledger.protocol.store(PROTOCOL, Relaxed);
        ledger.card_count.store(cards.len() as u32, Relaxed);
        for (card, setup) in ledger.cards.iter().zip(cards) {
            card.capacity.store(setup.capacity(), Relaxed);
            card.other.store(setup.other_processes.get(), Relaxed);
        }
        ledger.magic.store(MAGIC, Release);
    }

    /// Checks that this build can read the ledger.
    pub(super) fn check(&self) -> Result<(), String> {
        let ledger = self.get();
        if ledger.magic.load(Acquire) != MAGIC {
            return Err("it is not a ledger".to_owned());
        }
        let protocol = ledger.protocol.load(Relaxed);
        if protocol != PROTOCOL {
            return Err(format!(
                "it has protocol version {protocol}, but this build of memfit reads version {PROTOCOL}"
            ));
        }
        if ledger.card_count.load(Relaxed) as usize > MAX_CARDS {
            return Err("it has more GPUs than there is room for".to_owned());
        }
        Ok(())
    }
}

impl RawLedger {
    pub(super) fn live(&self) -> impl Iterator<Item = &RawProcess> {
        self.processes.iter().filter(|process| process.state() == SlotState::Live)
    }

    /// Finds a slot for a new process: an unused one, else one whose process has ended. The peaks in it are
    /// then lost, so helpers' slots come before ranks', and low peaks before high ones.
    pub(super) fn vacant(&self) -> Option<usize> {
        let slots = || self.processes.iter().enumerate();
        let fresh = slots().find(|(_, process)| process.state() == SlotState::Vacant);
        let gone = || {
            let gone = slots().filter(|(_, process)| process.state() == SlotState::Gone);
            gone.min_by_key(|(_, process)| {
                let peaks = process.shares.iter().map(|share| share.peak_device_upper.load(Relaxed));
                (process.rank.load(Relaxed) != u32::MAX, peaks.max())
            })
        };
        fresh.or_else(gone).map(|(slot, _)| slot)
    }

    /// Assigns a slot to a process. The caller holds the lock.
    pub(super) fn assign_slot(&self, slot: usize, id: ProcessId, rank: Option<u32>) {
        self.sequence.begin();
        let process = &self.processes[slot];
        process.pid.store(id.pid, Relaxed);
        process.start.store(id.start, Relaxed);
        process.rank.store(rank.unwrap_or(u32::MAX), Relaxed);
        process.pinned.store(0, Relaxed);
        process.peak_pinned.store(0, Relaxed);
        for share in &process.shares {
            share.clear();
            for peak in [&share.peak, &share.peak_device, &share.peak_device_upper] {
                peak.store(0, Relaxed);
            }
        }
        process.state.store(SlotState::Live as u32, Relaxed);
        self.sequence.end();
    }

    /// Releases everything that a process holds. The caller holds the lock.
    pub(super) fn retire(&self, slot: usize) {
        self.sequence.begin();
        let process = &self.processes[slot];
        process.state.store(SlotState::Gone as u32, Relaxed);
        process.pinned.store(0, Relaxed);
        process.shares.iter().for_each(RawShare::clear);
        self.sequence.end();
    }
}

impl RawProcess {
    pub(super) fn state(&self) -> SlotState {
        match self.state.load(Relaxed) {
            0 => SlotState::Vacant,
            1 => SlotState::Live,
            _ => SlotState::Gone,
        }
    }
}

impl RawShare {
    pub(super) fn is_empty(&self) -> bool {
        self.used.load(Relaxed) == 0 && self.high.iter().all(|bytes| bytes.load(Relaxed) == 0)
    }

    fn clear(&self) {
        self.used.store(0, Relaxed);
        self.typical.iter().chain(&self.high).for_each(|bytes| bytes.store(0, Relaxed));
    }

    pub(super) fn raise_peaks(&self) {
        let sum = |bytes: &[AtomicU64; 3]| bytes.iter().map(|bytes| bytes.load(Relaxed)).sum::<u64>();
        let used = self.used.load(Relaxed);
        self.peak.fetch_max(used, Relaxed);
        self.peak_device.fetch_max(used + sum(&self.typical), Relaxed);
        self.peak_device_upper.fetch_max(used + sum(&self.high), Relaxed);
    }
}

impl RawCard {
    pub(super) fn raise_peaks(&self, load: &Load) {
        self.peak.fetch_max(load.used, Relaxed);
        self.peak_device_upper.fetch_max(load.device_upper(), Relaxed);
        if load.device() > self.peak_device.load(Relaxed) {
            self.peak_device.store(load.device(), Relaxed);
            for (at_peak, bytes) in self.outside_at_peak.iter().zip(load.typical) {
                at_peak.store(bytes, Relaxed);
            }
        }
    }
}
