//! `memfit.watch/1`: the runs in progress, at one moment.

use memfit_vocabulary::Phase;
use serde::Serialize;

use super::CardKind;

/// The runs in progress.
#[derive(Clone, Debug, Serialize)]
pub struct WatchReport {
    /// [`super::schema::WATCH`].
    pub schema: &'static str,
    /// The runs, in order of their start.
    pub runs: Vec<WatchedRun>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WatchedRun {
    /// First process.
    pub pid: u32,
    /// The command line of the first process.
    pub command: Vec<String>,
    /// `true` if the run has ended since the last sample.
    pub ended: bool,
    /// Seconds since its start.
    pub seconds: f64,
    /// Completed optimizer steps of the rank that has most.
    pub steps: u64,
    /// Number of steps after which it is stopped; absent if it runs to its end.
    pub steps_wanted: Option<u64>,
    /// `torch.__version__`, once it is known.
    pub torch: Option<String>,
    /// Virtual or real GPUs.
    pub kind: CardKind,
    /// GPUs.
    pub cards: Vec<WatchedCard>,
    /// Processes that have sent messages or use memory.
    pub processes: Vec<WatchedProcess>,
    /// The last out-of-memory error.
    pub oom: Option<WatchedOom>,
}

/// Memory ran out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WatchedOom {
    /// The process.
    pub pid: u32,
    /// Requested bytes.
    pub requested: u64,
    /// The step in progress, counted from 1.
    pub step: u64,
    /// Phase of the step.
    pub phase: Phase,
    /// The innermost module.
    pub module: Option<String>,
    /// The innermost line of the user's code.
    pub line: Option<String>,
}

/// One GPU of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WatchedCard {
    /// Name.
    pub name: String,
    /// Memory.
    pub capacity: u64,
    /// Bytes in use now, inside and outside the allocator.
    pub used: u64,
    /// The most that was.
    pub peak: u64,
    /// Bytes in use at earlier samples, the oldest first.
    #[serde(skip)]
    pub history: Vec<u64>,
}

/// One process of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WatchedProcess {
    /// Process id.
    pub pid: u32,
    /// `RANK`, if it is one of several.
    pub rank: Option<u32>,
    /// `true` while it runs.
    pub alive: bool,
    /// Completed optimizer steps.
    pub steps: u64,
    /// Bytes in PyTorch's blocks after its last step.
    pub allocated: u64,
    /// Peak bytes in blocks in any step.
    pub peak_allocated: u64,
    /// Bytes it currently uses on the GPUs; absent for a real GPU, whose driver does not report them by
    /// process.
    pub used: Option<u64>,
    /// Resident memory on the host.
    pub resident: u64,
    /// Page-locked host memory.
    pub pinned: u64,
}
