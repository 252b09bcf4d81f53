//! Devices of the run, and the initialisation of the library.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use memfit_channel::ledger::{CardView, ProcessView};
use memfit_channel::{Ledger, LedgerView, RunDir, Setup};
use memfit_devices::Device;

use crate::status::{Outcome, Status};

/// A device of the run, by its index in the set-up: NVML does not apply `CUDA_VISIBLE_DEVICES`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Card {
    /// Index in the set-up.
    pub(crate) index: usize,
    /// Catalogue entry.
    pub(crate) device: &'static Device,
}

/// State that is read once and does not change.
struct Run {
    dir: RunDir,
    setup: Setup,
}

/// Run of this process; `None` outside a run, and if its set-up is unusable.
fn run() -> Option<&'static Run> {
    static RUN: OnceLock<Option<Run>> = OnceLock::new();
    RUN.get_or_init(|| {
        let dir = RunDir::from_env()?;
        let setup = Setup::read(&dir).ok()?;
        Some(Run { dir, setup })
    })
    .as_ref()
}

/// Ledger of the run, for counting.
pub(crate) fn ledger() -> Option<&'static Ledger> {
    static LEDGER: OnceLock<Option<Ledger>> = OnceLock::new();
    LEDGER.get_or_init(|| run().and_then(|run| Ledger::open(&run.dir, &run.setup, None).ok())).as_ref()
}

/// Calls of `nvmlInit` minus those of `nvmlShutdown`.
static USERS: AtomicU32 = AtomicU32::new(0);

/// Adds a user.
pub(crate) fn initialize() -> Outcome {
    if run().is_none_or(|run| run.setup.cards.is_empty()) {
        return Err(Status::DRIVER_NOT_LOADED);
    }
    USERS.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// Removes a user.
pub(crate) fn shut_down() -> Outcome {
    let left = USERS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| users.checked_sub(1));
    left.map(drop).map_err(|_| Status::UNINITIALIZED)
}

fn initialized() -> Outcome<&'static Run> {
    match run() {
        Some(run) if USERS.load(Ordering::Acquire) > 0 => Ok(run),
        _ => Err(Status::UNINITIALIZED),
    }
}

/// Checks that `nvmlInit` was called.
pub(crate) fn check() -> Outcome {
    initialized().map(drop)
}

/// All devices of the run.
pub(crate) fn all_cards() -> Outcome<impl Iterator<Item = Card>> {
    let run = initialized()?;
    let cards = run.setup.cards.iter().enumerate();
    Ok(cards.map(|(index, card)| Card { index, device: &card.device }))
}

/// Returns the device at an index.
pub(crate) fn card_at(index: usize) -> Outcome<Card> {
    all_cards()?.nth(index).ok_or(Status::INVALID_ARGUMENT)
}

/// Current state of a device in the ledger, and of its processes; zero use before the ledger exists.
pub(crate) fn usage(card: Card) -> Outcome<(CardView, Vec<ProcessView>)> {
    let run = initialized()?;
    let view = LedgerView::read(&run.dir).map_err(|_| Status::UNKNOWN)?.unwrap_or_default();
    let unused = || run.setup.cards.get(card.index).map(CardView::unused).unwrap_or_default();
    Ok((view.cards.get(card.index).copied().unwrap_or_else(unused), view.processes))
}

/// Handle of a device: its index, marked so that a stray number is not accepted.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(usize);

impl Handle {
    const MARK: usize = 0x6d66_0000_0000; // "mf"

    /// Creates the handle of a device.
    pub(crate) fn new(card: Card) -> Self {
        Self(Self::MARK | (card.index + 1))
    }

    /// Returns the device, if it belongs to the run.
    pub(crate) fn card(self) -> Outcome<Card> {
        initialized()?;
        let place = self.0 ^ Self::MARK;
        if place == 0 || place > u32::MAX as usize {
            return Err(Status::INVALID_ARGUMENT);
        }
        card_at(place - 1)
    }
}
