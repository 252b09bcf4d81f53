//! The machine: which cards there are, and whether this process may use them.
//!
//! Everything is made at the first call that needs it. A process outside a run has no device; a child that
//! was forked after its parent had made a machine has none that it may use, as with real CUDA.

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

/// The cards that this process sees, and the account of what they hold.
pub(crate) struct Machine {
    /// The run's set-up.
    pub(crate) setup: Setup,
    /// Shared with all processes of the run.
    pub(crate) ledger: Ledger,
    /// In the order of `CUDA_VISIBLE_DEVICES`.
    pub(crate) cards: Vec<Card>,
}

/// One visible card.
pub(crate) struct Card {
    /// What this process calls it.
    pub(crate) ordinal: u32,
    /// What the run calls it.
    pub(crate) index: usize,
    /// The card; its memory is the capacity of this run.
    pub(crate) device: Device,
    /// The memory outside the allocator of one process.
    pub(crate) overhead: Overhead,
    /// How fast it is.
    pub(crate) speeds: Speeds,
    context: AtomicBool,
    libraries: AtomicBool,
    /// Flags for the primary context, from `cudaSetDeviceFlags`.
    pub(crate) flags: AtomicU32,
    /// `cuDevicePrimaryCtxRetain` less `Release`.
    pub(crate) retained: AtomicU32,
    /// One bit for each card to which access was enabled.
    pub(crate) peers: std::sync::atomic::AtomicU64,
}

const UNTOUCHED: u8 = 0;
const USED: u8 = 1;
const FORKED: u8 = 2;

/// Whether CUDA was used here, or in the process that this one was forked from.
static STATE: AtomicU8 = AtomicU8::new(UNTOUCHED);
static MACHINE: OnceLock<Result<Machine, Status>> = OnceLock::new();

/// The machine, made at the first call.
#[inline]
pub(crate) fn get() -> Outcome<&'static Machine> {
    if STATE.load(Acquire) != USED {
        enter()?;
    }
    match MACHINE.get_or_init(make) {
        Ok(machine) => Ok(machine),
        Err(status) => Err(*status),
    }
}

/// The machine if it is there, without making it.
pub(crate) fn peek() -> Option<&'static Machine> {
    MACHINE.get()?.as_ref().ok()
}

#[cold]
fn enter() -> Outcome {
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
    let setup = Setup::read(&run_dir).map_err(|error| complain(&error))?;
    clock::set(setup.clock, setup.host_time);
    beside::keep(&setup.beside);
    let rank = env::var("RANK").ok().and_then(|rank| rank.parse().ok());
    let ledger = Ledger::open(&run_dir, &setup, rank).map_err(|error| complain(&error))?;
    let visible = visible(env::var("CUDA_VISIBLE_DEVICES").ok().as_deref(), setup.cards.len());
    let mut cards = Vec::new();
    for (ordinal, &index) in visible.iter().enumerate() {
        let CardSetup { device, overhead, .. } = setup.cards[index].clone();
        cards.push(Card {
            ordinal: ordinal as u32,
            index,
            speeds: Speeds::of(&device),
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
    // What was refused before there was a ledger to say it in.
    for (name, count) in tally::counts() {
        (0..count).for_each(|_| ledger.count(TallyKind::Unmodelled, &name));
    }
    Ok(Machine { setup, ledger, cards })
}

/// A run directory that cannot be read is a fault of the watcher's, which reads standard error.
fn complain(error: &dyn std::fmt::Display) -> Status {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "memfit: the virtual device cannot start: {error}");
    Status::NO_DEVICE
}

/// The cards that `CUDA_VISIBLE_DEVICES` leaves, in its order: the list ends at the first entry that is not a
/// card.
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
            // CUDA takes a repeated card for a mistake, and shows none.
            return Vec::new();
        }
        cards.push(index);
    }
    cards
}

impl Machine {
    /// The card of an ordinal.
    pub(crate) fn card(&self, ordinal: i32) -> Outcome<&Card> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.cards.get(ordinal))
            .ok_or(Status::INVALID_DEVICE)
    }
}

/// The card of an ordinal.
pub(crate) fn card(ordinal: i32) -> Outcome<&'static Card> {
    get()?.card(ordinal)
}

/// The calling thread's current card, without making a context on it.
#[inline]
pub(crate) fn current() -> Outcome<&'static Card> {
    let machine = get()?;
    machine.cards.get(thread::device() as usize).ok_or(Status::INVALID_DEVICE)
}

/// The calling thread's current card, with a context on it.
#[inline]
pub(crate) fn current_context() -> Outcome<&'static Card> {
    let card = current()?;
    card.need_context()?;
    Ok(card)
}

/// Counts something by name, in the run's ledger where there is one.
pub(crate) fn count(kind: TallyKind, name: &str) {
    if let Some(machine) = peek() {
        machine.ledger.count(kind, name);
    }
}

/// Reports a refused call: counts it in the run's ledger, where there is one.
#[doc(hidden)]
pub fn report_refusal(name: &str) {
    count(TallyKind::Unmodelled, name);
}

/// Counts something that a modelled call does not model, by name: `cudaMemcpy3D (arrays)`.
pub(crate) fn refused(name: &str) {
    tally::refused(name, report_refusal);
}

/// A remark was about so many bytes.
pub(crate) fn at_stake(remark: &str, bytes: u64) {
    if let Some(machine) = peek() {
        machine.ledger.at_stake(remark, bytes);
    }
}

impl Card {
    /// Whether this process has a context here.
    #[inline]
    pub(crate) fn has_context(&self) -> bool {
        self.context.load(Acquire)
    }

    /// Makes the primary context if there is none: on a real card that takes some of its memory.
    #[inline]
    pub(crate) fn need_context(&self) -> Outcome {
        if self.has_context() {
            Ok(())
        } else {
            self.book_once(&self.context, Outside::Context, self.overhead.context)
        }
    }

    /// Books what cuBLAS, cuDNN and the like take in this process; call it when one of them is first used.
    pub(crate) fn need_libraries(&self) -> Outcome {
        if self.libraries.load(Acquire) {
            return Ok(());
        }
        self.need_context()?;
        self.book_once(&self.libraries, Outside::Libraries, self.overhead.libraries)
    }

    /// Books buffers of a communicator.
    pub(crate) fn book_communication(&self, size: Interval) -> Outcome {
        self.need_context()?;
        get()?.ledger.book(self.index, Outside::Communication, size).map_err(ledger_status)
    }

    /// Gives buffers of a communicator back.
    pub(crate) fn unbook_communication(&self, size: Interval) {
        if let Some(machine) = peek() {
            machine.ledger.unbook(self.index, Outside::Communication, size);
        }
    }

    /// `cudaDeviceReset`, `cuDevicePrimaryCtxReset`: whatever the context held is gone.
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

    /// Books device memory.
    pub(crate) fn allocate(&self, bytes: u64) -> Outcome {
        get()?.ledger.allocate(self.index, bytes).map_err(ledger_status)
    }

    /// Gives back device memory.
    pub(crate) fn release(&self, bytes: u64) {
        if let Some(machine) = peek() {
            machine.ledger.release(self.index, bytes);
        }
    }
}

/// What CUDA answers where the ledger refuses.
fn ledger_status(why: Refused) -> Status {
    match why {
        Refused::NoCard { .. } => Status::INVALID_DEVICE,
        // No lack of memory: the report must not say that the card is too small.
        Refused::TooManyProcesses => {
            report_refusal("more processes on the cards than memfit follows");
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
