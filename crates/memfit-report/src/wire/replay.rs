//! `memfit.replay/1`: the result of replaying a recording.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Result of replaying one device of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayReport {
    /// [`schema::REPLAY`](super::schema::REPLAY).
    pub schema: String,
    /// The file.
    pub file: String,
    /// The replayed rank, if the recording has several processes.
    pub rank: Option<u32>,
    /// All ranks of the recording.
    pub ranks: Vec<u32>,
    /// The replayed device.
    pub device: u32,
    /// All devices of the recording, or of that rank.
    pub devices: Vec<u32>,
    /// Events of that device.
    pub events: u64,
    /// Addresses of blocks.
    pub addresses: Predicted,
    /// Predicted calls that allocate, release, map or unmap segments.
    pub segments: Predicted,
    /// Blocks at the end.
    pub blocks: Predicted,
    /// Peak bytes in blocks and segments, under the requested conditions.
    pub peak: ReplayPeak,
    /// The request that failed under those conditions, if one did.
    pub oom: Option<ReplayOom>,
    /// The circumstances.
    pub under: Circumstances,
    /// Requested changes to blocks.
    pub changes: Vec<BlockChange>,
    /// The recorded figures, if the replay had other conditions.
    pub recorded: Option<Recorded>,
    /// The statistics at the end, by the names of `torch.cuda.memory_stats()`.
    pub statistics: BTreeMap<String, i64>,
    /// Bytes in blocks from before the recording began.
    pub before: u64,
    /// Number of blocks of unknown exact size.
    pub uncertain: u64,
    /// Events that were taken from the recording, because they depend on state from before its beginning.
    /// They do not count as predictions.
    pub told: u64,
    /// Number of times the allocator's state was rebuilt from the recording.
    pub resumed: u64,
    /// The first wrong predictions.
    pub mismatches: Vec<String>,
    /// Parts that could not be read.
    pub problems: Vec<String>,
}

/// Number of predictions, and of correct ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicted {
    /// Number of predictions.
    pub predicted: u64,
    /// Number of right ones.
    pub matching: u64,
}

impl Predicted {
    /// `true` if all were correct.
    pub const fn all(self) -> bool {
        self.predicted == self.matching
    }
}

/// Peak bytes in blocks and segments.
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
    /// Index among the device's events.
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

/// Conditions of the allocator calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circumstances {
    /// The allocator's settings as text; empty for the defaults.
    pub alloc_conf: String,
    /// Bytes available to the allocator; absent if unknown.
    pub capacity: Option<u64>,
    /// The release of PyTorch whose rules apply.
    pub torch: String,
}

/// The figures of the recording itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Peak bytes in blocks and segments.
    pub peak: ReplayPeak,
    /// The last request that failed, if one did.
    pub oom: Option<ReplayOom>,
    /// The conditions of the recording.
    pub under: Circumstances,
    /// Peak of a replay under unchanged conditions. It differs from the recorded peak only by effects that a
    /// replay with its own addresses cannot reproduce.
    pub again: ReplayPeak,
}

/// Change to the blocks of a line, a category or a module.
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
    /// Bytes of the selected blocks that were live at the peak or at the out-of-memory error.
    pub at_peak: u64,
}
