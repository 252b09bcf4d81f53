//! The ledger: shared memory in which every process of a run reserves its memory on each device.
//!
//! The file has a fixed layout of atomics ([`layout`]), mapped by all processes. Every change of a device's
//! load happens under [`lock::LedgerLock`], which the kernel releases when its holder dies, so no process can
//! leave the ledger locked. A process that dies without releasing its memory is detected by its process id
//! *and* start time ([`process`]), and its memory is released before a peak is raised or an allocation
//! refused.
//!
//! The load of a device is the sum over all live processes of their allocations and of their memory outside
//! the allocator. The latter is known only as an interval; an allocation is refused if it would not fit with
//! the interval's upper bound.

mod layout;
mod lock;
mod mapping;
mod process;
mod sequence;
mod tally;
mod view;

use std::{fs::OpenOptions, path::Path, sync::OnceLock};

use memfit_devices::Interval;

pub use self::process::ProcessId;
pub use layout::{MAX_CARDS, MAX_PROCESSES, MAX_TALLY, NAME_BYTES};
pub use tally::TallyKind;
pub use view::{CardView, LedgerView, OutsideView, ProcessView, ShareView, TallyView};

use self::{
    layout::{RawCard, RawLedger, RawProcess, RawShare, SlotState},
    lock::LedgerLock,
    mapping::Mapping,
};
use crate::{ChannelError, RunDir, Setup, sync::Ordering::Relaxed};

/// Kinds of memory outside PyTorch's allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// The CUDA context and the modules loaded into it.
    Context,
    /// Handles and buffers of cuBLAS, cuDNN and similar libraries.
    Libraries,
    /// Communicator buffers.
    Communication,
}

impl Outside {
    /// All kinds, in the order in which they are stored.
    pub const ALL: [Self; 3] = [Self::Context, Self::Libraries, Self::Communication];
}

/// Reason why a reservation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The device has not enough memory.
    #[error("the GPU has {free} bytes left, but {asked} were requested")]
    Full {
        /// Bytes requested.
        asked: u64,
        /// Bytes that were free, with everything outside the allocator at its upper bound.
        free: u64,
    },
    /// There is no such device.
    #[error("there is no GPU {card}")]
    NoCard {
        /// Requested index.
        card: usize,
    },
    /// More processes use the run's devices at once than the ledger has slots.
    #[error("more than {MAX_PROCESSES} processes use the GPUs at the same time")]
    TooManyProcesses,
}

/// Load of a device at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    used: u64,
    /// Held by programs outside the run.
    other: u64,
    typical: [u64; 3],
    high: u64,
}

impl Load {
    fn device(&self) -> u64 {
        self.used + self.other + self.typical.iter().sum::<u64>()
    }

    fn device_upper(&self) -> u64 {
        self.used + self.other + self.high
    }
}

/// One process's end of the ledger.
#[derive(Debug)]
pub struct Ledger {
    map: Mapping<RawLedger>,
    lock: LedgerLock,
    me: ProcessId,
    rank: Option<u32>,
    slot: OnceLock<usize>,
}

impl Ledger {
    /// Creates the ledger of a run, unless it exists.
    pub fn create(run_dir: &RunDir, setup: &Setup) -> Result<(), ChannelError> {
        Self::open(run_dir, setup, None).map(drop)
    }

    /// Opens the run's ledger, creating it if this process is the first. The process appears in it once it
    /// reserves memory.
    pub fn open(run_dir: &RunDir, setup: &Setup, rank: Option<u32>) -> Result<Self, ChannelError> {
        let path = run_dir.ledger();
        let io = |source| ChannelError::Io { path: path.clone(), source };
        let invalid = |why: &str| ChannelError::Invalid { path: path.clone(), why: why.to_owned() };
        if setup.cards.len() > MAX_CARDS {
            return Err(invalid(&format!("{} GPUs, at most {MAX_CARDS} are supported", setup.cards.len())));
        }
        let open = |path: &Path| {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
            file.map_err(|source| ChannelError::Io { path: path.to_owned(), source })
        };
        let me = ProcessId::current().map_err(io)?;
        let lock = LedgerLock::new(open(&run_dir.ledger_lock())?);
        let map = {
            let _held = lock.hold();
            let file = open(&path)?;
            if file.metadata().map_err(io)?.len() == 0 {
                file.set_len(size_of::<RawLedger>() as u64).map_err(io)?;
            }
            let map = Mapping::<RawLedger>::writable(&file).map_err(io)?;
            map.initialise(&setup.cards);
            map.check().map_err(|why| invalid(&why))?;
            map
        };
        Ok(Self { map, lock, me, rank, slot: OnceLock::new() })
    }

    /// Reserves `bytes` of a device's memory, or refuses.
    pub fn allocate(&self, card: usize, bytes: u64) -> Result<(), Refused> {
        self.change(card, bytes, |share| {
            share.used.fetch_add(bytes, Relaxed);
        })
    }

    /// Releases memory reserved by [`Ledger::allocate`].
    pub fn release(&self, card: usize, bytes: u64) {
        self.give_back(card, |share| {
            let held = share.used.load(Relaxed);
            debug_assert!(held >= bytes, "gave back more than was booked");
            share.used.store(held.saturating_sub(bytes), Relaxed);
        });
    }

    /// Reserves memory outside the allocator, or refuses if its upper bound does not fit.
    pub fn book(&self, card: usize, kind: Outside, size: Interval) -> Result<(), Refused> {
        self.change(card, size.high.get(), |share| {
            share.typical[kind as usize].fetch_add(size.typical.get(), Relaxed);
            share.high[kind as usize].fetch_add(size.high.get(), Relaxed);
        })
    }

    /// Releases memory reserved by [`Ledger::book`].
    pub fn unbook(&self, card: usize, kind: Outside, size: Interval) {
        self.give_back(card, |share| {
            for (held, bytes) in
                [(&share.typical[kind as usize], size.typical), (&share.high[kind as usize], size.high)]
            {
                held.store(held.load(Relaxed).saturating_sub(bytes.get()), Relaxed);
            }
        });
    }

    /// Bytes of a device that can still be allocated, with everything outside the allocator at its upper
    /// bound, and its capacity.
    pub fn free(&self, card: usize) -> Result<(u64, u64), Refused> {
        let raw = self.card(card)?;
        let _held = self.lock.hold();
        self.reap(Some(card));
        let capacity = raw.capacity.load(Relaxed);
        Ok((capacity.saturating_sub(self.load(card).device_upper()), capacity))
    }

    /// Records page-locked host memory.
    pub fn pin(&self, bytes: u64) -> Result<(), Refused> {
        let _held = self.lock.hold();
        let process = &self.map.get().processes[self.slot()?];
        let pinned = process.pinned.fetch_add(bytes, Relaxed) + bytes;
        process.peak_pinned.fetch_max(pinned, Relaxed);
        Ok(())
    }

    /// Removes memory recorded by [`Ledger::pin`].
    pub fn unpin(&self, bytes: u64) {
        let _held = self.lock.hold();
        if let Some(&slot) = self.slot.get() {
            let pinned = &self.map.get().processes[slot].pinned;
            pinned.store(pinned.load(Relaxed).saturating_sub(bytes), Relaxed);
        }
    }

    /// Counts a name. Takes no lock and may be called at any time, also after a fork.
    pub fn count(&self, kind: TallyKind, name: &str) {
        tally::count(&self.map.get().tally, kind, name, 1);
    }

    /// Raises the bytes that a remark concerns. Takes no lock either.
    pub fn raise_remark_bytes(&self, remark: &str, bytes: u64) {
        tally::raise(&self.map.get().tally, TallyKind::RemarkBytes, remark, bytes);
    }

    /// Takes a snapshot of the ledger.
    pub fn view(&self) -> LedgerView {
        view::snapshot(self.map.get())
    }

    fn card(&self, card: usize) -> Result<&RawCard, Refused> {
        let ledger = self.map.get();
        if card >= ledger.card_count.load(Relaxed) as usize {
            return Err(Refused::NoCard { card });
        }
        Ok(&ledger.cards[card])
    }

    /// Raises a device's load by `apply`, which adds at most `bytes`, if that fits.
    fn change(&self, card: usize, bytes: u64, apply: impl FnOnce(&RawShare)) -> Result<(), Refused> {
        let raw = self.card(card)?;
        let _held = self.lock.hold();
        let slot = self.slot()?;
        let capacity = raw.capacity.load(Relaxed);
        let mut before = self.load(card).device_upper();
        // Checks whether other processes still live only if it matters.
        if before.saturating_add(bytes) > raw.peak_device_upper.load(Relaxed).min(capacity)
            && self.reap(Some(card))
        {
            before = self.load(card).device_upper();
        }
        let free = capacity.saturating_sub(before);
        if bytes > free {
            return Err(Refused::Full { asked: bytes, free });
        }
        let ledger = self.map.get();
        ledger.sequence.begin();
        let share = &ledger.processes[slot].shares[card];
        apply(share);
        share.raise_peaks();
        raw.raise_peaks(&self.load(card));
        ledger.sequence.end();
        Ok(())
    }

    fn give_back(&self, card: usize, apply: impl FnOnce(&RawShare)) {
        let _held = self.lock.hold();
        let (Ok(_), Some(&slot)) = (self.card(card), self.slot.get()) else { return };
        let ledger = self.map.get();
        ledger.sequence.begin();
        apply(&ledger.processes[slot].shares[card]);
        ledger.sequence.end();
    }

    /// Sums over all processes that are believed to live. The caller holds the lock.
    fn load(&self, card: usize) -> Load {
        let other = self.map.get().cards[card].other.load(Relaxed);
        let mut load = Load { other, ..Load::default() };
        for process in self.map.get().live() {
            let share = &process.shares[card];
            load.used += share.used.load(Relaxed);
            for kind in Outside::ALL {
                load.typical[kind as usize] += share.typical[kind as usize].load(Relaxed);
                load.high += share.high[kind as usize].load(Relaxed);
            }
        }
        load
    }

    /// Retires dead processes that hold memory: those with memory on `card`, or all.
    fn reap(&self, card: Option<usize>) -> bool {
        let ledger = self.map.get();
        let mut any = false;
        for (slot, process) in ledger.processes.iter().enumerate() {
            if process.state() != SlotState::Live || card.is_some_and(|card| process.shares[card].is_empty())
            {
                continue;
            }
            let id = process.id();
            if id != self.me && !id.is_alive() {
                ledger.retire(slot);
                any = true;
            }
        }
        any
    }

    /// Slot of this process, taken on first use. The caller holds the lock.
    fn slot(&self) -> Result<usize, Refused> {
        if let Some(&slot) = self.slot.get() {
            return Ok(slot);
        }
        let ledger = self.map.get();
        let taken = ledger.vacant().or_else(|| {
            self.reap(None);
            ledger.vacant()
        });
        let slot = taken.ok_or(Refused::TooManyProcesses)?;
        ledger.assign_slot(slot, self.me, self.rank);
        Ok(*self.slot.get_or_init(|| slot))
    }
}

impl LedgerView {
    /// Reads a run's ledger from outside; `None` if no process has created it yet.
    pub fn read(run_dir: &RunDir) -> Result<Option<Self>, ChannelError> {
        let path = run_dir.ledger();
        let file = match OpenOptions::new().read(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ChannelError::Io { path, source }),
        };
        let io = |source| ChannelError::Io { path: path.clone(), source };
        if file.metadata().map_err(io)?.len() == 0 {
            return Ok(None);
        }
        let map = Mapping::<RawLedger>::readable(&file).map_err(io)?;
        if map.get().magic.load(Relaxed) == 0 {
            return Ok(None);
        }
        map.check().map_err(|why| ChannelError::Invalid { path: path.clone(), why })?;
        Ok(Some(view::snapshot(map.get())))
    }
}

impl RawProcess {
    fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid.load(Relaxed), start: self.start.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests;
