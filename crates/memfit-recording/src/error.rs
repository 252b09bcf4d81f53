//! Why a recording could not be written or read.

use std::io;

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file could not be written or read.
    #[error("the recording could not be written or read")]
    Io(#[from] io::Error),
    /// It does not begin as a recording does.
    #[error("this is not a memfit recording")]
    NotARecording,
    /// It was written by a later memfit.
    #[error(
        "this recording has format version {found}, and this memfit reads up to version {}",
        crate::VERSION
    )]
    Version {
        /// The version found.
        found: u32,
    },
    /// It is damaged.
    #[error("this recording is damaged: {why}")]
    Damaged {
        /// What is wrong with it.
        why: &'static str,
    },
    /// It is larger than the reader was told to accept.
    #[error("this recording is larger than {limit} bytes once unpacked")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
}

impl RecordingError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotARecording => Some("`memfit run -o FILE.memfit` writes recordings"),
            Self::Version { .. } => Some("upgrade memfit, or record the run again with this one"),
            Self::Damaged { .. } => {
                Some("the file may not have been written to its end; record the run again")
            }
            _ => None,
        }
    }
}
