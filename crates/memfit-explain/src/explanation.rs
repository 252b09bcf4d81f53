//! Result of an explanation.

use memfit_patch::Change;
use memfit_vocabulary::{Cause, Label, Lever, Phase, Proof};

use crate::holders::Holder;

/// Cause of an out-of-memory error, or a description of the peak if memory did not run out.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Device index.
    pub device: u8,
    /// Cause.
    pub cause: Cause,
    /// Evidence, strongest first.
    pub evidence: Vec<Fact>,
    /// Moment that is explained.
    pub moment: MomentFacts,
    /// Breakdown of the memory at that moment.
    pub holders: Vec<Holder>,
    /// Remedies, best first.
    pub fixes: Vec<Fix>,
    /// Memory that each step leaves behind.
    pub leaks: Vec<LeakFacts>,
    /// Reserved memory that cannot be used.
    pub fragmentation: Fragmentation,
    /// Causes considered, with the bytes that each accounts for.
    pub considered: Vec<ConsideredCause>,
    /// Gaps in the available data.
    pub unknown: Vec<String>,
}

/// Gap of a message that says only that memory ran out.
pub const NO_FIGURES: &str = "the message does not say how much memory was requested, in use or free, so the cause is unknown: a step that is too large, a leak, fragmentation, other processes. `nvidia-smi` shows whether other processes use the GPU; if the script runs with half the batch, it needs too much itself";
/// Gap of a process that was ended: the log does not say why.
pub const ENDED: &str = "the log does not say why the process was ended; a scheduler or a person may have done it. `dmesg -T | grep -i -E \"oom|killed process\"` on the host shows whether the kernel did it for lack of memory; `kubectl describe pod` or `sacct` shows it of a container or job";
/// Gap of a message that ends before its figures do.
pub const CUT_OFF: &str = "the message is cut off: how much memory PyTorch held is not in it, so the cause is unknown. A log with the whole message says more";
/// Gap of a message of a GPU that was not full.
pub const HAD_ROOM: &str = "other reasons for a refusal are: on Windows, a page file that is too small; a limit on the host's memory or address space (a container, `ulimit -v`); another process that took the memory and ended at that moment; a driver that limits the size of one allocation";
/// Gap of a snapshot that was taken without a history.
pub const NO_HISTORY: &str = "no allocations were recorded, only the blocks in use at one moment; `torch.cuda.memory._record_memory_history()` at the start of the script records them";
/// Gap of a history in which neither steps nor passes can be told apart.
pub const NO_PERIODS: &str =
    "neither steps nor the model's passes were recorded, so growth from one to the next cannot be seen";

impl Explanation {
    /// Explanation for a device without events.
    pub fn without_events(device: u8) -> Self {
        Self {
            device,
            cause: Cause::None,
            evidence: Vec::new(),
            moment: MomentFacts::default(),
            holders: Vec::new(),
            fixes: Vec::new(),
            leaks: Vec::new(),
            fragmentation: Fragmentation::default(),
            considered: Vec::new(),
            unknown: Vec::new(),
        }
    }
}

/// Evidence for a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Sentence that states it.
    pub text: String,
    /// Bytes concerned.
    pub bytes: u64,
    /// User code lines concerned, innermost first.
    pub lines: Vec<Line>,
}

/// Line of user code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// File path as recorded.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
    /// Function name.
    pub function: String,
    /// Source text, if the file is available.
    pub text: Option<String>,
}

/// Moment that is explained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MomentFacts {
    /// Index in the track.
    pub moment: u32,
    /// Training step in progress, from 1; 0 if it is unknown.
    pub step: u64,
    /// Phase in progress.
    pub phase: Option<Phase>,
    /// Size of the failed request.
    pub requested: Option<u64>,
    /// Segment that the request needed; `None` if only PyTorch's message is known, which states the segment.
    pub segment: Option<u64>,
    /// Allocated bytes.
    pub allocated: u64,
    /// Reserved bytes.
    pub reserved: u64,
    /// Bytes that the allocator could use.
    pub limit: Option<u64>,
    /// Missing bytes: request plus allocated bytes, minus the limit.
    pub missing: Option<u64>,
}

/// A remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// Change to make.
    pub lever: Lever,
    /// Bytes saved at the explained moment.
    pub saves: u64,
    /// Instructions.
    pub how: String,
    /// Kind of proof.
    pub proof: Proof,
    /// `true` if the recorded run would have continued; `None` if unknown.
    pub fits: Option<bool>,
    /// Automatically applicable part.
    pub apply: Apply,
}

impl Fix {
    /// Effect on the training results. A recording does not show if a batch can be divided.
    pub const fn label(&self) -> Label {
        self.lever.label_unverified()
    }
}

/// Automatically applicable part of a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Apply {
    /// Nothing: the change needs knowledge of the program. Holds the reason if a source edit was refused, as
    /// a sentence without a final full stop.
    ByHand(Option<String>),
    /// Environment variable and value; an empty value unsets it.
    Environment(&'static str, String),
    /// Edit of a source file.
    Edit(Change),
    /// Card on which the allocator can use this many bytes.
    Card(u64),
}

impl Default for Apply {
    fn default() -> Self {
        Self::ByHand(None)
    }
}

/// Memory that each step leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakFacts {
    /// Line that allocated it.
    pub line: Option<Line>,
    /// Module in whose call it was allocated.
    pub module: Option<String>,
    /// Category.
    pub category: memfit_vocabulary::Category,
    /// Bytes left by each step.
    pub per_step: u64,
    /// Total bytes left.
    pub bytes: u64,
    /// Number of steps that they are from.
    pub steps: u64,
    /// Step in which memory runs out.
    pub dies_at: Option<u64>,
}

/// Reserved memory that cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fragmentation {
    /// Reserved bytes that are in no used block.
    pub unused: u64,
    /// Largest free block; `None` if segments were not recorded.
    pub largest_free: Option<u64>,
    /// Number of free blocks.
    pub free_blocks: Option<u64>,
    /// Free bytes in private pools.
    pub in_private_pools: u64,
    /// Unused share of the reserved bytes.
    pub share: f64,
}

/// Cause that was considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsideredCause {
    /// Cause.
    pub cause: Cause,
    /// Bytes that it accounts for.
    pub bytes: u64,
    /// `true` if its removal would have prevented the failure.
    pub enough: bool,
}
