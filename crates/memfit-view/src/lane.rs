//! Activity of one process on one device, with a clock that ticks at each memory event.

use memfit_vocabulary::{Category, Phase};

use crate::{Envelope, Places};

/// Row for a block whose allocation site is unknown.
pub const NOWHERE: u32 = 0;

/// One process on one device.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Process id.
    pub pid: u32,
    /// Rank, if the process is one of several.
    pub rank: Option<u32>,
    /// Device index.
    pub device: u8,
    /// Number of ticks. Tick `t` is the state right after event `t`.
    pub length: u32,
    /// Bounds of every category's curve, level by level.
    pub envelope: Envelope,
    /// Times of some ticks in microseconds since the first; both ascend, with linear interpolation between.
    /// Empty if the recording has no times.
    pub times: Vec<(u32, u64)>,
    /// Reserved bytes: for each change, its tick and the new value.
    pub reserved: Vec<(u32, u64)>,
    /// Difference between the allocator's allocated bytes and the blocks: for each change, its tick and the
    /// new value.
    pub beyond: Vec<(u32, u64)>,
    /// Blocks in order of allocation.
    pub pieces: Vec<Piece>,
    /// Segments in order of allocation; empty if the recording does not contain them.
    pub spans: Vec<Span>,
    /// Pools of the spans.
    pub pools: Vec<Pool>,
    /// Steps, phases, failures and announced ranges, by time.
    pub marks: Vec<Mark>,
    /// Allocation sites and modules.
    pub places: Places,
}

/// Block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address.
    pub address: u64,
    /// Requested bytes.
    pub asked: u64,
    /// Bytes beyond the requested ones.
    pub rounding: u64,
    /// Tick of the allocation.
    pub born: u32,
    /// First tick at which the program no longer held it; the lane's length if it was never freed.
    pub freed: u32,
    /// First tick at which it could be reused: later than `freed` if other streams were still using it.
    pub reusable: u32,
    /// Allocation stack: a row of the sites' stacks, or [`NOWHERE`].
    pub stack: u32,
    /// Module: a row of the sites' texts, or 0.
    pub module: u32,
    /// Category.
    pub category: Category,
}

impl Piece {
    /// Lifetime in ticks.
    pub fn life(&self) -> u32 {
        self.reusable.max(self.freed) - self.born
    }

    /// Returns `true` if the program held it at a tick.
    pub fn is_live_at(&self, tick: u32) -> bool {
        self.born <= tick && tick < self.freed
    }
}

/// Segment, or mapped range of an expandable one, while its size was constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Tick of the allocation.
    pub born: u32,
    /// First tick after its release; the lane's length if it was never released.
    pub freed: u32,
    /// Row of the lane's pools.
    pub pool: u32,
}

/// Pool of segments for one stream, and for either small or large requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    /// Id of the pool; zeros for the default pool.
    pub owner: (u64, u64),
    /// Handle of the stream.
    pub stream: u64,
    /// `true` if it serves small requests; `None` if unknown.
    pub small: Option<bool>,
    /// `true` if its segments are expandable.
    pub expandable: bool,
}

/// Annotation on the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Tick from which it holds.
    pub tick: u32,
    /// Time in microseconds since the first tick, if known: much time may pass between two ticks.
    pub time: Option<u64>,
    /// Kind.
    pub kind: MarkKind,
}

/// Kind of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// The number of completed steps reached this value.
    Step(u32),
    /// A phase began.
    Phase(Phase),
    /// A request for this many bytes failed.
    Oom(u64),
    /// An announced range began: a row of the sites' texts.
    Begin(u32),
    /// The range ended.
    End(u32),
}

impl MarkKind {
    /// Code and value of the annotation in the wire format.
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
