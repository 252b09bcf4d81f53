//! Errors of recordings and of the files that they are read from.

use std::{fmt, io};

use crate::{Elsewhere, SnapshotError};

/// Maximum number of nested compression layers.
pub(crate) const MAX_LAYERS: u32 = 3;

/// Error while a recording is written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// Reading or writing the file failed.
    #[error("the recording could not be written or read")]
    Io(#[from] io::Error),
    /// The file does not begin with [`MAGIC`](crate::MAGIC).
    #[error("this is not a memfit recording")]
    NotARecording,
    /// The recording was written by a later version of memfit.
    #[error(
        "this recording has format version {found}, and this memfit reads up to version {}",
        crate::VERSION
    )]
    Version {
        /// Format version found in the file.
        found: u32,
    },
    /// The file is damaged.
    #[error("this recording is damaged{}: {why}", AtByte(*.at))]
    Damaged {
        /// Description of the damage.
        why: &'static str,
        /// Offset in the uncompressed data at which the damage was found, if known.
        at: Option<u64>,
    },
    /// The recording exceeds the reader's size limit.
    #[error("this recording is larger than {limit} bytes once unpacked")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
}

/// Offset in the uncompressed data of a recording; printed as part of an error message.
struct AtByte(Option<u64>);

impl fmt::Display for AtByte {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |at| write!(formatter, " at byte {at} of what it unpacks to"))
    }
}

impl RecordingError {
    /// Adds the offset in the uncompressed data at which the error was found.
    #[must_use]
    pub(crate) fn seen_at(self, place: u64) -> Self {
        match self {
            Self::Damaged { why, at: None } => Self::Damaged { why, at: Some(place) },
            other => other,
        }
    }

    /// Advice for the user, if there is any.
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

/// Error while a file of any kind is opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Reading the file failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The file is or looks like a snapshot, but nothing of it can be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The file is a recording, but nothing of it can be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The compression format is not supported.
    #[error("the file is {0}, which memfit cannot read")]
    Packed(&'static str),
    /// The file has more nested compression layers than are allowed.
    #[error("the file is compressed more than {MAX_LAYERS} times")]
    Layers,
    /// The file looks like a known format but cannot be read as one.
    #[error("this {format} cannot be read: {why}")]
    Broken {
        /// Name of the format that the file seems to have.
        format: &'static str,
        /// Description of the fault and its position.
        why: String,
    },
    /// The file is a text without an out-of-memory error.
    #[error("it is no recording, snapshot or trace, and a text without an out-of-memory error ({lines} {})", if *lines == 1 { "line" } else { "lines" })]
    NoError {
        /// Number of lines searched.
        lines: u64,
    },
    /// The text has an error of memory that is not PyTorch's device memory.
    #[error("the error on line {line} is {}", what.name())]
    Elsewhere {
        /// Memory that ran out.
        what: Elsewhere,
        /// Line of the text, counted from 1.
        line: u64,
    },
    /// The format is unknown.
    #[error("this is not a file that memfit can read")]
    Unknown,
}

impl OpenError {
    /// Advice for the user, if there is any.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Snapshot(error) => error.hint(),
            Self::Recording(error) => error.hint(),
            Self::Packed(_) => Some("unpack it first, or compress it with gzip, zstd or xz"),
            Self::NoError { .. } => Some(
                "`memfit explain` needs a log with the message of an out-of-memory error, of the GPU or of the host; other verbs need a recording or a snapshot",
            ),
            Self::Elsewhere { what, .. } => Some(what.hint()),
            Self::Unknown | Self::Empty => Some(
                "memfit reads memory snapshots of PyTorch, its own recordings, profiler traces, exports of Nsight Systems, and logs",
            ),
            _ => None,
        }
    }
}

impl Elsewhere {
    /// Name of the memory and of what used it.
    const fn name(self) -> &'static str {
        match self {
            Self::KernelSharedMemory => {
                "about the shared memory inside the GPU's multiprocessors, which a Triton kernel exceeds: the GPU's memory did not run out"
            }
            Self::TensorFlow => "TensorFlow's, and memfit explains PyTorch's",
            Self::Jax => "JAX's, and memfit explains PyTorch's",
        }
    }

    const fn hint(self) -> &'static str {
        match self {
            Self::KernelSharedMemory => {
                "a smaller batch does not help: use smaller block sizes or fewer `num_stages` in the kernel, a release of its library that supports this GPU, or a GPU with more shared memory per block"
            }
            Self::TensorFlow => {
                "try a smaller batch; `tf.config.experimental.set_memory_growth` leaves memory to other processes"
            }
            Self::Jax => {
                "try a smaller batch or `jax.checkpoint`; JAX reserves most of the GPU at the start, unless XLA_PYTHON_CLIENT_PREALLOCATE=false is set"
            }
        }
    }
}
