//! Snapshots of the ledger as plain data.

use serde::{Deserialize, Serialize};

use super::{
    TallyKind,
    layout::{RawLedger, RawProcess, RawShare, SlotState},
    tally,
};
use crate::CardSetup;
use crate::sync::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};

/// State of the ledger at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerView {
    /// Devices, in order.
    pub cards: Vec<CardView>,
    /// Every process that holds or held memory, in order of process id.
    pub processes: Vec<ProcessView>,
    /// Counted names, in order of kind and name.
    pub tally: Vec<TallyView>,
}

/// Bytes outside the allocator, by kind, as typical estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideView {
    /// CUDA contexts.
    pub context: u64,
    /// Handles and buffers of libraries.
    pub libraries: u64,
    /// Communicator buffers.
    pub communication: u64,
}

impl OutsideView {
    /// Sum over all kinds.
    pub fn total(self) -> u64 {
        self.context + self.libraries + self.communication
    }
}

/// State of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardView {
    /// Total memory.
    pub capacity: u64,
    /// Memory held by programs outside the run.
    pub other_processes: u64,
    /// Bytes that live processes have allocated now.
    pub used: u64,
    /// Bytes that live processes have outside the allocator now.
    pub outside: OutsideView,
    /// The same at its upper bound.
    pub outside_high: u64,
    /// Peak of the bytes allocated on the device.
    pub peak: u64,
    /// Peak of the bytes allocated plus the typical estimate of those outside.
    pub peak_device: u64,
    /// The same with the upper bound of those outside.
    pub peak_device_upper: u64,
    /// Bytes outside the allocator when `peak_device` was reached.
    pub outside_at_peak: OutsideView,
}

impl CardView {
    /// State of a device that no process of the run has used.
    pub fn unused(card: &CardSetup) -> Self {
        Self { capacity: card.capacity(), other_processes: card.other_processes.get(), ..Self::default() }
    }

    /// Bytes in use now, with the typical estimate for those outside the allocator.
    pub fn in_use(&self) -> u64 {
        self.used + self.other_processes + self.outside.total()
    }

    /// Bytes in use now, with the upper bound for those outside the allocator. The device refuses requests
    /// that do not fit in addition to them, and `cudaMemGetInfo` reports the rest as free.
    pub fn in_use_upper(&self) -> u64 {
        self.used + self.other_processes + self.outside_high
    }
}

/// State of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessView {
    /// Process id.
    pub pid: u32,
    /// `RANK`, if it is one of several.
    pub rank: Option<u32>,
    /// `true` if it still runs.
    pub alive: bool,
    /// Page-locked host memory now.
    pub pinned: u64,
    /// Peak.
    pub peak_pinned: u64,
    /// Memory on each device, in device order.
    pub shares: Vec<ShareView>,
}

/// Memory of one process on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareView {
    /// Allocated now.
    pub used: u64,
    /// Outside the allocator now.
    pub outside: OutsideView,
    /// Peak of the allocated bytes.
    pub peak: u64,
    /// Peak of the allocated bytes plus the typical estimate of those outside.
    pub peak_device: u64,
    /// The same with the upper bound of those outside.
    pub peak_device_upper: u64,
}

impl ShareView {
    /// Returns `true` if the process ever had memory on the device.
    pub fn was_used(&self) -> bool {
        self.peak_device_upper > 0
    }
}

/// A counted name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TallyView {
    /// Kind of the name.
    pub kind: TallyKind,
    /// The name, cut at [`NAME_BYTES`](super::NAME_BYTES) bytes.
    pub name: String,
    /// Number of times.
    pub count: u64,
}

/// Copies the ledger.
pub(super) fn snapshot(ledger: &RawLedger) -> LedgerView {
    ledger.sequence.read(|| copy(ledger))
}

fn copy(ledger: &RawLedger) -> LedgerView {
    let card_count = ledger.card_count.load(Relaxed) as usize;
    let mut view = LedgerView {
        cards: ledger.cards[..card_count]
            .iter()
            .map(|card| CardView {
                capacity: card.capacity.load(Relaxed),
                other_processes: card.other.load(Relaxed),
                peak: card.peak.load(Relaxed),
                peak_device: card.peak_device.load(Relaxed),
                peak_device_upper: card.peak_device_upper.load(Relaxed),
                outside_at_peak: outside(&card.outside_at_peak),
                ..CardView::default()
            })
            .collect(),
        ..LedgerView::default()
    };
    for raw in &ledger.processes {
        let Some(process) = process(raw, card_count) else { continue };
        if process.alive {
            for ((card, share), raw) in view.cards.iter_mut().zip(&process.shares).zip(&raw.shares) {
                card.used += share.used;
                card.outside.context += share.outside.context;
                card.outside.libraries += share.outside.libraries;
                card.outside.communication += share.outside.communication;
                card.outside_high += raw.high.iter().map(|bytes| bytes.load(Relaxed)).sum::<u64>();
            }
        }
        view.processes.push(process);
    }
    view.processes.sort_by_key(|process| process.pid);
    for entry in &ledger.tally {
        if let Some(kind) = TallyKind::from_raw(entry.kind.load(Acquire)) {
            view.tally.push(TallyView { kind, name: tally::name(entry), count: entry.count.load(Relaxed) });
        }
    }
    view.tally.sort();
    view
}

fn process(raw: &RawProcess, card_count: usize) -> Option<ProcessView> {
    let state = raw.state();
    let rank = raw.rank.load(Relaxed);
    (state != SlotState::Vacant).then(|| ProcessView {
        pid: raw.pid.load(Relaxed),
        rank: (rank != u32::MAX).then_some(rank),
        alive: state == SlotState::Live && raw.id().is_alive(),
        pinned: raw.pinned.load(Relaxed),
        peak_pinned: raw.peak_pinned.load(Relaxed),
        shares: raw.shares[..card_count].iter().map(share).collect(),
    })
}

fn share(raw: &RawShare) -> ShareView {
    ShareView {
        used: raw.used.load(Relaxed),
        outside: outside(&raw.typical),
        peak: raw.peak.load(Relaxed),
        peak_device: raw.peak_device.load(Relaxed),
        peak_device_upper: raw.peak_device_upper.load(Relaxed),
    }
}

fn outside(bytes: &[AtomicU64; 3]) -> OutsideView {
    let [context, libraries, communication] =
        [&bytes[0], &bytes[1], &bytes[2]].map(|bytes| bytes.load(Relaxed));
    OutsideView { context, libraries, communication }
}
