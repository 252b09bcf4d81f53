//! Errors of recordings and of the files that they are read from.

use std::{fmt, io};

use crate::SnapshotError;

/// How many times over a file may be compressed.
pub(crate) const MAX_LAYERS: u32 = 3;

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

/// Why a file could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It cannot be read.
    #[error("the file cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is empty.
    #[error("the file is empty")]
    Empty,
    /// It is a snapshot, or looks like one, and nothing of it can be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// It is a recording, and nothing of it can be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// It is compressed in a way that is not read.
    #[error("the file is {0}, which memfit does not read")]
    Packed(&'static str),
    /// It is compressed again and again.
    #[error("the file is compressed more than {MAX_LAYERS} times over")]
    Layers,
    /// It claims to be what it is not.
    #[error("this {format} cannot be read: {why}")]
    Broken {
        /// What it looks like.
        format: &'static str,
        /// What is wrong with it, with the place.
        why: String,
    },
    /// It is a text without an out-of-memory error.
    #[error("there is no out-of-memory error in this text of {lines} lines")]
    NoError {
        /// How many lines were searched.
        lines: u64,
    },
    /// It is nothing that is known.
    #[error("this is no file that memfit knows")]
    Unknown,
}

impl OpenError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Snapshot(error) => error.hint(),
            Self::Recording(error) => error.hint(),
            Self::Packed(_) => Some("unpack it first, or compress it with gzip, zstd or xz"),
            Self::NoError { .. } => {
                Some("name the log that has the `OutOfMemoryError`, from the traceback on")
            }
            Self::Unknown | Self::Empty => Some(
                "memfit reads memory snapshots of PyTorch, its own recordings, profiler traces, exports of Nsight Systems, and logs",
            ),
            _ => None,
        }
    }
}
