//! `memfit.replay/1`: what came of replaying a recording.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What came of replaying one device of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayReport {
    /// [`schema::REPLAY`](super::schema::REPLAY).
    pub schema: String,
    /// The file.
    pub file: String,
    /// The rank that was replayed, where the recording is of several processes.
    pub rank: Option<u32>,
    /// All ranks of the recording.
    pub ranks: Vec<u32>,
    /// The device that was replayed.
    pub device: u32,
    /// All devices of the recording, or of that rank.
    pub devices: Vec<u32>,
    /// Events of that device.
    pub events: u64,
    /// Addresses of blocks.
    pub addresses: Predicted,
    /// Segments got and given back, ranges mapped and unmapped.
    pub segments: Predicted,
    /// Blocks at the end.
    pub blocks: Predicted,
    /// The most that was in blocks and in segments, in the circumstances that were asked for.
    pub peak: ReplayPeak,
    /// The request that failed in those circumstances, where one did.
    pub oom: Option<ReplayOom>,
    /// The circumstances.
    pub under: Circumstances,
    /// What is different about the blocks, where that was asked for.
    pub changes: Vec<BlockChange>,
    /// What the recording itself says, where other circumstances were asked for.
    pub recorded: Option<Recorded>,
    /// The statistics at the end, under the names of `torch.cuda.memory_stats()`.
    pub statistics: BTreeMap<String, i64>,
    /// Bytes of blocks from before the recording began.
    pub before: u64,
    /// Blocks of which the exact size is not known.
    pub uncertain: u64,
    /// Events that the recording had to tell, because what decides them lies before its beginning. They are
    /// in no count of predictions.
    pub told: u64,
    /// How often the state had to be worked out anew from the recording.
    pub resumed: u64,
    /// The first predictions that were wrong.
    pub mismatches: Vec<String>,
    /// What could not be read.
    pub problems: Vec<String>,
}

/// How many predictions there were, and how many of them were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// How many there were.
    pub predicted: u64,
    /// How many were right.
    pub matching: u64,
}

impl Predicted {
    /// Whether all were right.
    pub const fn all(self) -> bool {
        self.predicted == self.matching
    }
}

/// The most that was in blocks and in segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayPeak {
    /// Bytes in blocks.
    pub allocated: u64,
    /// Bytes in segments.
    pub reserved: u64,
}

/// A request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayOom {
    /// Its place among the device's events.
    pub event: u64,
    /// What was asked for.
    pub requested: u64,
    /// Bytes in blocks then.
    pub allocated: u64,
    /// Bytes in segments then.
    pub reserved: u64,
    /// What the device had left.
    pub device_free: Option<u64>,
}

/// Under what the calls were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circumstances {
    /// The allocator's settings as a text; empty for the defaults.
    pub alloc_conf: String,
    /// What the allocator could get; absent where it is not known.
    pub capacity: Option<u64>,
    /// The release of PyTorch whose rules were followed.
    pub torch: String,
}

/// What a recording itself says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// The most that was in blocks and in segments.
    pub peak: ReplayPeak,
    /// The last request that failed, where one did.
    pub oom: Option<ReplayOom>,
    /// Under what it was recorded.
    pub under: Circumstances,
    /// The most when the calls are made again with nothing different: what separates it from what was
    /// recorded is what a replay with addresses of its own cannot know.
    pub again: ReplayPeak,
}

/// What is different about the blocks of a line, a category or a module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockChange {
    /// The line, the category or the module.
    pub of: String,
    /// `drop`, `scale` or `each-step`.
    pub effect: String,
    /// How many times what was asked for, of `scale`.
    pub factor: Option<f64>,
    /// How many blocks these are.
    pub blocks: u64,
    /// What those of them took that were there when memory was fullest, or ran out.
    pub at_peak: u64,
}
