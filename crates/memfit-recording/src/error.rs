//! Why a recording could not be written or read.

use std::{fmt, io};

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
    #[error("this recording is damaged{}: {why}", Place(*.at))]
    Damaged {
        /// What is wrong with it.
        why: &'static str,
        /// The byte of what it unpacks to at which that was seen, where it is known.
        at: Option<u64>,
    },
    /// It is larger than the reader was told to accept.
    #[error("this recording is larger than {limit} bytes once unpacked")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
}

/// Where in what a recording unpacks to.
struct Place(Option<u64>);

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |at| write!(formatter, " at byte {at} of what it unpacks to"))
    }
}

impl RecordingError {
    /// The same error, seen at this byte of what the recording unpacks to.
    #[must_use]
    pub(crate) fn seen_at(self, place: u64) -> Self {
        match self {
            Self::Damaged { why, at: None } => Self::Damaged { why, at: Some(place) },
            other => other,
        }
    }

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
