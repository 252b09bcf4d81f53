//! Decides whether the search for a plan tries a lever: the facts about training and a GPU, and the lever's
//! decision.

use crate::{Lever, Training, Value};

/// Reciprocal of the minimum share of the device peak that must be saved for a run.
const MIN_SAVING_DIVISOR: u64 = 20;

/// Facts by which a lever decides whether it is worth a run.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The training.
    pub training: &'a Training,
    /// Peak bytes of tensors without the lever.
    pub allocated: u64,
    /// Peak bytes reserved by the allocator.
    pub reserved: u64,
    /// Upper bound of the device peak in bytes.
    pub device_upper: u64,
    /// Bytes of GPU memory that a plan may use.
    pub budget: u64,
    /// Number of GPUs.
    pub cards: u32,
    /// `true` if the GPU computes fast in bf16; fp16 is the alternative.
    pub has_bf16: bool,
    /// `true` if its tensor cores support TF32.
    pub has_tf32: bool,
    /// Bytes per second between host and GPU; `None` if nothing may be offloaded.
    pub link: Option<f64>,
    /// `true` if the search tries `torch.compile`.
    pub compiles: bool,
    /// Requested samples in one optimizer step; `None` for the script's own number.
    pub global_batch: Option<u64>,
}

impl<'a> Situation<'a> {
    /// Creates a situation without facts about the GPU and the peaks.
    pub const fn new(training: &'a Training) -> Self {
        Self {
            training,
            allocated: 0,
            reserved: 0,
            device_upper: 0,
            budget: 0,
            cards: 1,
            has_bf16: false,
            has_tf32: false,
            link: None,
            compiles: false,
            global_batch: None,
        }
    }

    /// Returns `true` if a saving of this size is worth a run.
    pub(crate) const fn is_worth(&self, bytes: u64) -> bool {
        bytes > 0 && bytes.saturating_mul(MIN_SAVING_DIVISOR) >= self.device_upper
    }

    /// Returns `true` if the optimizer state is large enough for a lever that reduces it.
    pub(crate) const fn has_state(&self) -> bool {
        self.training.optimizes && self.is_worth(self.training.state)
    }
}

/// A lever's decision in a situation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sense {
    /// Worth a run with this value.
    Try(Value),
    /// The lever would have an effect, but there is a reason against it.
    Against(String),
    /// The lever would have no effect.
    Nothing,
}

impl Sense {
    /// Returns `Try` if the condition holds, else `Nothing`.
    pub(crate) fn when(condition: bool) -> Self {
        if condition { Self::Try(Value::default()) } else { Self::Nothing }
    }

    /// Returns `Against` with a reason.
    pub(crate) fn against(why: &str) -> Self {
        Self::Against(why.to_owned())
    }
}

/// The part of the search in which a lever is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// Always tried, and first, since it costs little.
    Always,
    /// Tried only if the script does not fit with those: it saves memory, but costs time or changes training
    /// results.
    IfMemoryShort,
}

/// How the search for a plan tries a lever.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The part of the search in which it is tried.
    pub turn: Turn,
    /// Unique position among the levers of a turn; the lowest is tried first.
    pub place: u16,
    /// Decides whether it is worth a run.
    pub sense: fn(&Situation<'_>) -> Sense,
    /// Levers that this one replaces.
    pub instead_of: &'static [Lever],
    /// Levers that are applied together with it.
    pub with: &'static [(Lever, Value)],
    /// `true` if it affects only compiled code.
    pub of_compiled: bool,
}

impl Search {
    /// Creates the search entry of a lever that neither replaces nor requires other levers.
    pub(crate) const fn new(turn: Turn, place: u16, sense: fn(&Situation<'_>) -> Sense) -> Self {
        Self { turn, place, sense, instead_of: &[], with: &[], of_compiled: false }
    }
}
