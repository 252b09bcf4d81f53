//! Gaps of a recording, which reports state.

use std::fmt;

use memfit_vocabulary::counted;
use serde::{Deserialize, Serialize};

/// Aspect that a track does not cover, or may state wrongly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Unknown {
    /// The recording began while memory was in use; the time and purpose of these blocks' allocations are
    /// unknown.
    Before {
        /// Number of these blocks.
        blocks: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// Blocks whose exact size cannot be computed: up to 1 MiB more each.
    Sizes {
        /// Number of these blocks.
        blocks: u64,
    },
    /// The trace deviates from the allocator's rules in places; the replay was reset to a consistent state
    /// each time.
    Resumed {
        /// Number of deviations.
        times: u64,
    },
    /// Segments were not recorded.
    Segments,
    /// Call stacks were not recorded.
    Stacks,
    /// Times were not recorded.
    Times,
    /// Step boundaries were not recorded.
    Steps,
    /// Module calls were not recorded.
    Modules,
    /// Requested sizes were not recorded: sizes are those of blocks.
    Requests,
    /// Only CUDA allocations were recorded: segments stand in for blocks.
    Blocks,
    /// The file was damaged or truncated; its rest is missing.
    Rest {
        /// Description of the damage.
        why: String,
    },
}

impl fmt::Display for Unknown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before { blocks, .. } => write!(
                formatter,
                "when the recording began, memory was already in use ({}): when and for what it was allocated is not known",
                counted(*blocks, "block")
            ),
            Self::Sizes { blocks } => {
                write!(
                    formatter,
                    "the exact size of {} is not known: up to 1 MiB more each",
                    counted(*blocks, "block")
                )
            }
            Self::Resumed { times } => write!(
                formatter,
                "the trace does not follow from the allocator's rules at {}, where its state was restored from the trace",
                counted(*times, "place")
            ),
            Self::Segments => formatter.write_str("segments were not recorded"),
            Self::Stacks => formatter.write_str("stacks were not recorded"),
            Self::Times => formatter.write_str("times were not recorded"),
            Self::Steps => formatter.write_str("training steps were not recorded"),
            Self::Modules => formatter.write_str("modules were not recorded"),
            Self::Requests => {
                formatter.write_str("requested sizes were not recorded: sizes are those of blocks")
            }
            Self::Blocks => formatter
                .write_str("PyTorch's own blocks were not recorded, only what the process got from CUDA"),
            Self::Rest { why } => write!(formatter, "the rest of the recording is missing: {why}"),
        }
    }
}
