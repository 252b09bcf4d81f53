//! The machine: the devices that exist and whether this process may use them.
//!
//! Everything is created at the first call that needs it. A process outside a run has no device. A child
//! forked after its parent created a machine cannot use it, as with real CUDA.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::{
    env,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicU8, AtomicU32,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
};

use memfit_abi::tally;
use memfit_channel::{CardSetup, Ledger, Outside, RunDir, Setup, TallyKind, identity, ledger::Refused};
use memfit_devices::{Device, Interval, Overhead};

use crate::{
    beside, clock,
    status::{Outcome, Status},
    thread,
};
use memfit_kernels::cost::Speeds;

/// The devices that this process sees, and the ledger of their memory.
pub(crate) struct Machine {
    /// The run's set-up.
    pub(crate) setup: Setup,
    /// Ledger shared by all processes of the run.
    pub(crate) ledger: Ledger,
    /// In the order of `CUDA_VISIBLE_DEVICES`.
    pub(crate) cards: Vec<Card>,
}

/// A visible device.
pub(crate) struct Card {
    /// Ordinal in this process.
    pub(crate) ordinal: u32,
    /// Index in the run.
    pub(crate) index: usize,
    /// Catalogue entry, with the memory capacity of this run.
    pub(crate) device: Device,
    /// Memory outside the allocator, for one process.
    pub(crate) overhead: Overhead,
    /// Speeds that durations are computed from.
    pub(crate) speeds: Speeds,
    context: AtomicBool,
    libraries: AtomicBool,
    /// Flags for the primary context, from `cudaSetDeviceFlags`.
    pub(crate) flags: AtomicU32,
    /// Number of `cuDevicePrimaryCtxRetain` calls minus `Release` calls.
    pub(crate) retained: AtomicU32,
    /// One bit per device to which peer access is enabled.
    pub(crate) peers: std::sync::atomic::AtomicU64,
}

const UNTOUCHED: u8 = 0;
const USED: u8 = 1;
const FORKED: u8 = 2;

/// Use of CUDA in this process, or in the process that it was forked from.
static STATE: AtomicU8 = AtomicU8::new(UNTOUCHED);
static MACHINE: OnceLock<Result<Machine, Status>> = OnceLock::new();

/// Returns the machine, created at the first call.
#[inline]
pub(crate) fn get() -> Outcome<&'static Machine> {
    if STATE.load(Acquire) != USED {
        start()?;
    }
    match MACHINE.get_or_init(make) {
        Ok(machine) => Ok(machine),
        Err(status) => Err(*status),
    }
}

/// Returns the machine if it exists, without creating it.
pub(crate) fn peek() -> Option<&'static Machine> {
    MACHINE.get()?.as_ref().ok()
}

#[cold]
fn start() -> Outcome {
    static AT_FORK: OnceLock<()> = OnceLock::new();
    AT_FORK.get_or_init(|| {
        // SAFETY: the handler only stores to an atomic, which is safe in a child after fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    match STATE.compare_exchange(UNTOUCHED, USED, AcqRel, Acquire) {
        Err(FORKED) => Err(Status::INITIALIZATION),
        _ => Ok(()),
    }
}

extern "C" fn in_child() {
    if STATE.load(Relaxed) == USED {
        STATE.store(FORKED, Release);
    }
}

fn make() -> Result<Machine, Status> {
    let run_dir = RunDir::from_env().ok_or(Status::NO_DEVICE)?;
    let setup = Setup::read(&run_dir).map_err(|error| report_unreadable_run(&error))?;
    clock::configure(setup.clock, setup.host_time);
    beside::keep(&setup.beside);
    let rank = env::var("RANK").ok().and_then(|rank| rank.parse().ok());
    let ledger = Ledger::open(&run_dir, &setup, rank).map_err(|error| report_unreadable_run(&error))?;
    let visible = visible(env::var("CUDA_VISIBLE_DEVICES").ok().as_deref(), setup.cards.len());
    let mut cards = Vec::new();
    for (ordinal, &index) in visible.iter().enumerate() {
        let CardSetup { device, overhead, .. } = setup.cards[index].clone();
        cards.push(Card {
            ordinal: ordinal as u32,
            index,
            speeds: Speeds::from_device(&device),
            device,
            overhead,
            context: AtomicBool::new(false),
            libraries: AtomicBool::new(false),
            flags: AtomicU32::new(0),
            retained: AtomicU32::new(0),
            peers: std::sync::atomic::AtomicU64::new(0),
        });
    }
    if cards.is_empty() {
        return Err(Status::NO_DEVICE);
    }
    // Add the calls that were refused before the ledger existed.
    for (name, count) in tally::counts() {
        (0..count).for_each(|_| ledger.count(TallyKind::Unmodelled, &name));
    }
    Ok(Machine { setup, ledger, cards })
}

/// Reports that the run directory cannot be read. The watcher is responsible for it, and reads standard
/// error.
fn report_unreadable_run(error: &dyn std::fmt::Display) -> Status {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "memfit: the virtual device cannot start: {error}");
    Status::NO_DEVICE
}

/// Devices that `CUDA_VISIBLE_DEVICES` selects, in its order. The list ends at the first invalid entry.
fn visible(variable: Option<&str>, count: usize) -> Vec<usize> {
    let Some(list) = variable else { return (0..count).collect() };
    let mut cards = Vec::new();
    for entry in list.split(',') {
        let entry = entry.trim();
        let index = match entry.parse::<usize>() {
            Ok(index) => index,
            Err(_) => {
                match (0..count)
                    .find(|&index| entry.len() > 4 && identity::uuid_text(index).starts_with(entry))
                {
                    Some(index) => index,
                    None => break,
                }
            }
        };
        if index >= count {
            break;
        }
        if cards.contains(&index) {
            // CUDA treats a repeated device as an error and shows none.
            return Vec::new();
        }
        cards.push(index);
    }
    cards
}

impl Machine {
    /// Returns the device with an ordinal.
    pub(crate) fn card(&self, ordinal: i32) -> Outcome<&Card> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.cards.get(ordinal))
            .ok_or(Status::INVALID_DEVICE)
    }
}

/// Returns the device with an ordinal.
pub(crate) fn card(ordinal: i32) -> Outcome<&'static Card> {
    get()?.card(ordinal)
}

/// Calling thread's current device, without creating a context on it.
#[inline]
pub(crate) fn current() -> Outcome<&'static Card> {
    let machine = get()?;
    machine.cards.get(thread::device() as usize).ok_or(Status::INVALID_DEVICE)
}

/// Calling thread's current device, with a context on it.
#[inline]
pub(crate) fn current_context() -> Outcome<&'static Card> {
    let card = current()?;
    card.need_context()?;
    Ok(card)
}

/// Counts something by name in the run's ledger, if there is one.
pub(crate) fn count(kind: TallyKind, name: &str) {
    if let Some(machine) = peek() {
        machine.ledger.count(kind, name);
    }
}

/// Reports a refused call by counting it in the run's ledger, if there is one.
#[doc(hidden)]
pub fn report_refusal(name: &str) {
    count(TallyKind::Unmodelled, name);
}

/// Counts, by name, a feature that a modelled call does not model, such as `cudaMemcpy3D (arrays)`.
pub(crate) fn count_unmodelled(name: &str) {
    tally::count_partial(name, report_refusal);
}

/// Adds the bytes that a remark concerns.
pub(crate) fn add_remark_bytes(remark: &str, bytes: u64) {
    if let Some(machine) = peek() {
        machine.ledger.raise_remark_bytes(remark, bytes);
    }
}

impl Card {
    /// Returns `true` if this process has a context on the device.
    #[inline]
    pub(crate) fn has_context(&self) -> bool {
        self.context.load(Acquire)
    }

    /// Creates the primary context if there is none; as on a real device, that takes memory.
    #[inline]
    pub(crate) fn need_context(&self) -> Outcome {
        if self.has_context() {
            Ok(())
        } else {
            self.book_once(&self.context, Outside::Context, self.overhead.context)
        }
    }

    /// Reserves the memory that cuBLAS, cuDNN and similar libraries take in this process, at the first use of
    /// one.
    pub(crate) fn need_libraries(&self) -> Outcome {
        if self.libraries.load(Acquire) {
            return Ok(());
        }
        self.need_context()?;
        self.book_once(&self.libraries, Outside::Libraries, self.overhead.libraries)
    }

    /// Reserves communicator buffers.
    pub(crate) fn book_communication(&self, size: Interval) -> Outcome {
        self.need_context()?;
        get()?.ledger.book(self.index, Outside::Communication, size).map_err(ledger_status)
    }

    /// Releases communicator buffers.
    pub(crate) fn unbook_communication(&self, size: Interval) {
        if let Some(machine) = peek() {
            machine.ledger.unbook(self.index, Outside::Communication, size);
        }
    }

    /// Drops the context with everything that it held (`cudaDeviceReset`, `cuDevicePrimaryCtxReset`).
    pub(crate) fn drop_context(&self) {
        let Some(machine) = peek() else { return };
        for (held, kind, size) in [
            (&self.libraries, Outside::Libraries, self.overhead.libraries),
            (&self.context, Outside::Context, self.overhead.context),
        ] {
            if held.swap(false, AcqRel) {
                machine.ledger.unbook(self.index, kind, size);
            }
        }
    }

    #[cold]
    fn book_once(&self, held: &AtomicBool, kind: Outside, size: Interval) -> Outcome {
        static BOOKING: Mutex<()> = Mutex::new(());
        let machine = get()?;
        let _booking = BOOKING.lock().unwrap_or_else(PoisonError::into_inner);
        if !held.load(Acquire) {
            machine.ledger.book(self.index, kind, size).map_err(ledger_status)?;
            held.store(true, Release);
        }
        Ok(())
    }

    /// Reserves device memory.
    pub(crate) fn allocate(&self, bytes: u64) -> Outcome {
        get()?.ledger.allocate(self.index, bytes).map_err(ledger_status)
    }

    /// Releases device memory.
    pub(crate) fn release(&self, bytes: u64) {
        if let Some(machine) = peek() {
            machine.ledger.release(self.index, bytes);
        }
    }
}

/// CUDA error for a refusal by the ledger.
fn ledger_status(why: Refused) -> Status {
    match why {
        Refused::NoCard { .. } => Status::INVALID_DEVICE,
        // Not an out-of-memory: the report must not say that the device is too small.
        Refused::TooManyProcesses => {
            report_refusal("more processes on the GPUs than memfit follows");
            Status::OPERATING_SYSTEM
        }
        _ => Status::OUT_OF_MEMORY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lack_of_memory_is_out_of_memory() {
        assert_eq!(ledger_status(Refused::TooManyProcesses), Status::OPERATING_SYSTEM);
    }

    #[test]
    fn visible_devices_follow_the_variable() {
        for (variable, expected) in [
            (None, vec![0, 1, 2]),
            (Some("1"), vec![1]),
            (Some("2,0"), vec![2, 0]),
            (Some(" 2 , 1"), vec![2, 1]),
            (Some(""), vec![]),
            (Some("-1"), vec![]),
            (Some("0,-1,1"), vec![0]),
            (Some("0,7,1"), vec![0]),
            (Some("0,0"), vec![]),
            (Some("NoDevFiles"), vec![]),
        ] {
            assert_eq!(visible(variable, 3), expected, "{variable:?}");
        }
        assert_eq!(visible(Some(&identity::uuid_text(2)), 3), [2]);
    }
}
