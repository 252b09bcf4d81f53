//! What one process did on one device, on a clock that ticks with each thing that happened to memory.

use memfit_vocabulary::{Category, Phase};

use crate::{Envelope, Places};

/// No place: a block of which nobody knows where it was asked for.
pub const NOWHERE: u32 = 0;

/// One process on one device.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// The process.
    pub pid: u32,
    /// Its rank, where it is one of several.
    pub rank: Option<u32>,
    /// The device.
    pub device: u8,
    /// How many ticks there are. The state at tick `t` is that right after the event `t`.
    pub length: u32,
    /// The bounds of every category's curve, level by level.
    pub envelope: Envelope,
    /// When ticks were, in microseconds since the first: both ascend, and between two of these the rest lies
    /// evenly. Empty where the recording has no times.
    pub times: Vec<(u32, u64)>,
    /// What was reserved from a tick on, at each tick at which it changed.
    pub reserved: Vec<(u32, u64)>,
    /// What the allocator counted as allocated beyond the blocks, at each tick at which it changed.
    pub beyond: Vec<(u32, u64)>,
    /// The blocks, by when they were handed out.
    pub pieces: Vec<Piece>,
    /// The segments, by when they came; none where the recording does not tell of them.
    pub spans: Vec<Span>,
    /// The pools that spans belong to.
    pub pools: Vec<Pool>,
    /// Steps, phases, failures and what the program announced, by time.
    pub marks: Vec<Mark>,
    /// Where blocks were asked for, and for whom.
    pub places: Places,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it lay.
    pub address: u64,
    /// What was asked for.
    pub asked: u64,
    /// What it had beyond that.
    pub rounding: u64,
    /// The tick that handed it out.
    pub born: u32,
    /// The first tick at which the program did not hold it any more; the lane's length, if it always did.
    pub freed: u32,
    /// The first tick at which it could be used again: later than `freed` where other streams were still
    /// using it.
    pub reusable: u32,
    /// The stack it was asked for by: a row of the places' stacks, [`NOWHERE`] if not known.
    pub stack: u32,
    /// The module it was made for: a row of the places' texts, 0 if there is none.
    pub module: u32,
    /// What it was for.
    pub category: Category,
}

impl Piece {
    /// How many ticks it lived.
    pub fn life(&self) -> u32 {
        self.reusable.max(self.freed) - self.born
    }

    /// Whether the program held it at a tick.
    pub fn is_live_at(&self, tick: u32) -> bool {
        self.born <= tick && tick < self.freed
    }
}

/// A segment, or a mapped run of an expandable one, while it had one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub address: u64,
    /// How many bytes it has.
    pub bytes: u64,
    /// The tick at which it came.
    pub born: u32,
    /// The first tick at which it was gone; the lane's length, if it stayed.
    pub freed: u32,
    /// Its pool: a row of the lane's pools.
    pub pool: u32,
}

/// A pool of segments: they serve one stream, and either small or large requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    /// The pool's identity; zeros for the default pool.
    pub owner: (u64, u64),
    /// The stream's handle.
    pub stream: u64,
    /// Whether it serves small requests, where that is known.
    pub small: Option<bool>,
    /// Whether its segments grow.
    pub expandable: bool,
}

/// Something to mark on the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The tick from which on it holds.
    pub tick: u32,
    /// When that was, in microseconds since the first tick, where it is known: between two ticks much time
    /// may pass.
    pub time: Option<u64>,
    /// What it is.
    pub kind: MarkKind,
}

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// So many steps were complete.
    Step(u32),
    /// A phase began.
    Phase(Phase),
    /// A request for so many bytes could not be served.
    Oom(u64),
    /// Something that the program announced began: a row of the places' texts.
    Begin(u32),
    /// It ended.
    End(u32),
}

impl MarkKind {
    /// Its code and its figure on the wire.
    pub(crate) fn code(self) -> (u64, u64) {
        match self {
            Self::Step(step) => (1, u64::from(step)),
            Self::Phase(phase) => (2, u64::from(phase.code())),
            Self::Oom(bytes) => (3, bytes),
            Self::Begin(text) => (4, u64::from(text)),
            Self::End(text) => (5, u64::from(text)),
        }
    }
}
