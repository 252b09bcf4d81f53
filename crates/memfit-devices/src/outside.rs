//! Memory outside PyTorch's allocator: intervals, and measurements on a GPU.

use std::ops::Add;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;

/// An amount of memory, modelled or measured: at least `low`, at most `high`, typically about `typical`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Lower bound.
    pub low: Bytes,
    /// Typical value.
    pub typical: Bytes,
    /// Upper bound.
    pub high: Bytes,
}

impl Interval {
    /// Creates an interval of a single size.
    pub const fn exact(size: Bytes) -> Self {
        Self { low: size, typical: size, high: size }
    }

    /// Converts each bound of the interval.
    #[must_use]
    pub fn map(self, convert: impl Fn(Bytes) -> Bytes) -> Self {
        Self { low: convert(self.low), typical: convert(self.typical), high: convert(self.high) }
    }
}

impl Add for Interval {
    type Output = Self;

    /// Adds bounds: all extremes may occur together.
    fn add(self, other: Self) -> Self {
        Self {
            low: self.low + other.low,
            typical: self.typical + other.typical,
            high: self.high + other.high,
        }
    }
}

/// Parts of the memory outside PyTorch's allocator, as measured on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideParts {
    /// CUDA context of one process.
    pub context: Option<Interval>,
    /// Kernels and handles that are loaded on first use.
    pub libraries: Option<Interval>,
    /// Buffers of one NCCL communicator.
    pub per_communicator: Option<Interval>,
    /// Memory of other processes at that time.
    pub other_processes: Option<Bytes>,
}

/// A measurement of the memory outside PyTorch's allocator: its parts, and where they are from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideMeasurement {
    /// Major CUDA version of the torch that it was measured with.
    pub cuda_major: Option<u32>,
    /// Source of the measurement.
    pub source: String,
    /// Measured parts.
    pub parts: OutsideParts,
}
