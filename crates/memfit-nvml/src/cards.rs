//! The cards of the run, and whether the library may be used.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use memfit_channel::ledger::{CardView, ProcessView};
use memfit_channel::{Ledger, LedgerView, RunDir, Setup};
use memfit_devices::Device;

use crate::status::{Outcome, Status};

/// One card of the run, by its place in the set-up: NVML does not know `CUDA_VISIBLE_DEVICES`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Card {
    /// Its place.
    pub(crate) index: usize,
    /// The catalogue's entry.
    pub(crate) device: &'static Device,
}

/// What is read once and does not change.
struct Run {
    dir: RunDir,
    setup: Setup,
}

/// The run that this process is in; none outside a run, and none if its set-up cannot be used.
fn run() -> Option<&'static Run> {
    static RUN: OnceLock<Option<Run>> = OnceLock::new();
    RUN.get_or_init(|| {
        let dir = RunDir::from_env()?;
        let setup = Setup::read(&dir).ok()?;
        Some(Run { dir, setup })
    })
    .as_ref()
}

/// The run's ledger, to count in.
pub(crate) fn ledger() -> Option<&'static Ledger> {
    static LEDGER: OnceLock<Option<Ledger>> = OnceLock::new();
    LEDGER.get_or_init(|| run().and_then(|run| Ledger::open(&run.dir, &run.setup, None).ok())).as_ref()
}

/// Calls of `nvmlInit` less those of `nvmlShutdown`.
static USERS: AtomicU32 = AtomicU32::new(0);

/// One more user.
pub(crate) fn initialize() -> Outcome {
    if run().is_none_or(|run| run.setup.cards.is_empty()) {
        return Err(Status::DRIVER_NOT_LOADED);
    }
    USERS.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// One user less.
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

/// Nothing but `nvmlInit` may be called before it.
pub(crate) fn check() -> Outcome {
    initialized().map(drop)
}

/// All cards of the run.
pub(crate) fn all() -> Outcome<impl Iterator<Item = Card>> {
    let run = initialized()?;
    let cards = run.setup.cards.iter().enumerate();
    Ok(cards.map(|(index, card)| Card { index, device: &card.device }))
}

/// The card at a place.
pub(crate) fn at(index: usize) -> Outcome<Card> {
    all()?.nth(index).ok_or(Status::INVALID_ARGUMENT)
}

/// What the ledger says now of a card and of those who use it; nothing is used before anyone has made the
/// ledger.
pub(crate) fn usage(card: Card) -> Outcome<(CardView, Vec<ProcessView>)> {
    let run = initialized()?;
    let view = LedgerView::read(&run.dir).map_err(|_| Status::UNKNOWN)?.unwrap_or_default();
    let unused = || run.setup.cards.get(card.index).map(CardView::unused).unwrap_or_default();
    Ok((view.cards.get(card.index).copied().unwrap_or_else(unused), view.processes))
}

/// A card as the caller holds it: its place, marked so that a stray number is not taken for one.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(usize);

impl Handle {
    const MARK: usize = 0x6d66_0000_0000; // "mf"

    /// The handle of a card.
    pub(crate) fn of(card: Card) -> Self {
        Self(Self::MARK | (card.index + 1))
    }

    /// The card, if it is one of the run's.
    pub(crate) fn card(self) -> Outcome<Card> {
        initialized()?;
        let place = self.0 ^ Self::MARK;
        if place == 0 || place > u32::MAX as usize {
            return Err(Status::INVALID_ARGUMENT);
        }
        at(place - 1)
    }
}
