//! What a recording does not say, said aloud.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that a track does not say, or may say wrongly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Unknown {
    /// The recording began while memory was in use already: of those blocks it is not known when and for what
    /// they were handed out.
    Before {
        /// How many blocks were there.
        blocks: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// Blocks whose exact size cannot be worked out: up to 1 MiB more each.
    Sizes {
        /// How many.
        blocks: u64,
    },
    /// The trace does not follow from the allocator's rules here and there; the state was worked out anew
    /// each time.
    Resumed {
        /// How often.
        times: u64,
    },
    /// What reserved memory consists of was not recorded.
    Segments,
    /// From where in the program blocks were asked for was not recorded.
    Stacks,
    /// When things happened was not recorded.
    Times,
    /// Where training steps begin and end was not recorded.
    Steps,
    /// Which modules were running was not recorded.
    Modules,
    /// What was asked for was not recorded: sizes are those of blocks.
    Requests,
    /// Only what CUDA gave was recorded: segments stand where blocks would.
    Blocks,
    /// What was read before the file broke off or made no sense is here; the rest is not.
    Rest {
        /// Why.
        why: String,
    },
}

impl fmt::Display for Unknown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before { blocks, .. } => write!(
                formatter,
                "the recording began when {blocks} blocks were in use already; when and for what they were handed out is not known"
            ),
            Self::Sizes { blocks } => {
                write!(formatter, "the exact size of {blocks} blocks is not known: up to 1 MiB more each")
            }
            Self::Resumed { times } => write!(
                formatter,
                "the trace does not follow from the allocator's rules at {times} places, where its state was worked out anew"
            ),
            Self::Segments => formatter.write_str("segments were not recorded"),
            Self::Stacks => formatter.write_str("stacks were not recorded"),
            Self::Times => formatter.write_str("times were not recorded"),
            Self::Steps => formatter.write_str("training steps were not recorded"),
            Self::Modules => formatter.write_str("modules were not recorded"),
            Self::Requests => {
                formatter.write_str("what was asked for was not recorded: sizes are those of blocks")
            }
            Self::Blocks => formatter
                .write_str("PyTorch's own blocks were not recorded, only what the process got from CUDA"),
            Self::Rest { why } => write!(formatter, "the rest of the recording is missing: {why}"),
        }
    }
}
