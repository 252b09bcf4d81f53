//! The question whether a lever is worth a try: what is known of a training and a card, and the answer.

use crate::{Lever, Training, Value};

/// Savings below 1/20 of all memory on the device are not worth a run.
const MIN_PART: u64 = 20;

/// The facts by which a lever decides if it makes sense.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The training.
    pub training: &'a Training,
    /// Peak bytes of tensors without the lever.
    pub allocated: u64,
    /// Peak bytes that the allocator holds.
    pub reserved: u64,
    /// Peak bytes that the card sees, at most.
    pub device_upper: u64,
    /// Bytes of the card that a plan may take.
    pub budget: u64,
    /// Cards.
    pub cards: u32,
    /// `true` if the GPU computes fast in bf16; fp16 is the alternative.
    pub has_bf16: bool,
    /// `true` if its tensor cores support TF32.
    pub has_tf32: bool,
    /// Bytes a second between the host and the card. `None`: nothing is to be sent there.
    pub link: Option<f64>,
    /// `true` if the search tries `torch.compile`.
    pub compiles: bool,
    /// Samples in one optimizer step, where another number than the script's was asked for.
    pub global_batch: Option<u64>,
}

impl<'a> Situation<'a> {
    /// A training on a card of which nothing is known.
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

    /// `true` if a saving of this size is worth a lever.
    pub(crate) const fn is_worth(&self, bytes: u64) -> bool {
        bytes > 0 && bytes.saturating_mul(MIN_PART) >= self.device_upper
    }

    /// `true` if the optimizer's state is large enough for a lever.
    pub(crate) const fn has_state(&self) -> bool {
        self.training.optimizes && self.is_worth(self.training.state)
    }
}

/// Answer of a lever to a situation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sense {
    /// It is worth a run, moved so far.
    Try(Value),
    /// There is something that it would act on, and a reason against it.
    Against(String),
    /// There is nothing that it could act on.
    Nothing,
}

impl Sense {
    /// Worth a run under a condition.
    pub(crate) fn when(condition: bool) -> Self {
        if condition { Self::Try(Value::default()) } else { Self::Nothing }
    }

    /// A reason against it.
    pub(crate) fn against(why: &str) -> Self {
        Self::Against(why.to_owned())
    }
}

/// When a lever is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// Always: it costs little where it helps.
    Always,
    /// Only where memory is short after those: it pays for memory with time, or with another training.
    IfMemoryShort,
}

/// How the search for a plan tries a lever.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// When it is tried.
    pub turn: Turn,
    /// Its place among the levers of a turn, the lowest first; no two have the same.
    pub place: u16,
    /// Decides if it makes sense.
    pub sense: fn(&Situation<'_>) -> Sense,
    /// Levers that are dropped when this one is taken.
    pub instead_of: &'static [Lever],
    /// Levers that are taken together with it.
    pub with: &'static [(Lever, Value)],
    /// `true` if it acts on compiled code only.
    pub of_compiled: bool,
}

impl Search {
    /// A lever that neither replaces others nor brings them along.
    pub(crate) const fn new(turn: Turn, place: u16, sense: fn(&Situation<'_>) -> Sense) -> Self {
        Self { turn, place, sense, instead_of: &[], with: &[], of_compiled: false }
    }
}

/// Bytes on the device when a sample did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Of parameters.
    pub parameters: u64,
    /// Of parameters that are trained; their gradients take as much at the end of the backward pass.
    pub trained: u64,
    /// Of the optimizer's states.
    pub states: u64,
    /// Of what the sample had by then.
    pub sample: u64,
    /// Bytes that were asked for then, and were not there.
    pub missing: u64,
}
