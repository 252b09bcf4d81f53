//! `memfit.replay/1`: what came of replaying a recording.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Result of replaying one device of a recording.
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
    /// Requested changes to blocks.
    pub changes: Vec<BlockChange>,
    /// The recorded figures, where the replay was asked to differ.
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
    /// Number of times the allocator's state was rebuilt from the recording.
    pub resumed: u64,
    /// The first predictions that were wrong.
    pub mismatches: Vec<String>,
    /// Parts that could not be read.
    pub problems: Vec<String>,
}

/// Predictions, and how many were right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// Number of predictions.
    pub predicted: u64,
    /// Number of right ones.
    pub matching: u64,
}

impl Predicted {
    /// `true` if all were right.
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
    /// Requested bytes.
    pub requested: u64,
    /// Bytes in blocks then.
    pub allocated: u64,
    /// Bytes in segments then.
    pub reserved: u64,
    /// Free bytes of the device.
    pub device_free: Option<u64>,
}

/// Under what the calls were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circumstances {
    /// The allocator's settings as a text; empty for the defaults.
    pub alloc_conf: String,
    /// Bytes available to the allocator; absent where that is unknown.
    pub capacity: Option<u64>,
    /// The release of PyTorch whose rules were followed.
    pub torch: String,
}

/// The figures of the recording itself.
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

/// A change to the blocks of a line, a category or a module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockChange {
    /// The line, the category or the module.
    pub of: String,
    /// `drop`, `scale` or `each-step`.
    pub effect: String,
    /// Factor of the requested sizes, for `scale`.
    pub factor: Option<f64>,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of those that were allocated at the peak or at the out-of-memory error.
    pub at_peak: u64,
}
