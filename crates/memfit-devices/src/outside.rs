//! Amounts of memory outside PyTorch's allocator: an interval, and those that were measured on a card.

use std::ops::Add;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;

/// A modelled amount of memory: at least `low`, at most `high`, most often about `typical`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// The least.
    pub low: Bytes,
    /// What is most often seen.
    pub typical: Bytes,
    /// The most.
    pub high: Bytes,
}

impl Interval {
    /// An interval of a single size.
    pub const fn exact(size: Bytes) -> Self {
        Self { low: size, typical: size, high: size }
    }

    /// The interval with each of its sizes converted.
    #[must_use]
    pub fn map(self, convert: impl Fn(Bytes) -> Bytes) -> Self {
        Self { low: convert(self.low), typical: convert(self.typical), high: convert(self.high) }
    }
}

impl Add for Interval {
    type Output = Self;

    /// Adds end to end: the ends may all occur together.
    fn add(self, other: Self) -> Self {
        Self {
            low: self.low + other.low,
            typical: self.typical + other.typical,
            high: self.high + other.high,
        }
    }
}

/// What lies outside PyTorch's allocator, as it was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedOutside {
    /// The CUDA context of one process.
    pub context: Option<Interval>,
    /// Kernels and handles that are loaded on use.
    pub libraries: Option<Interval>,
    /// One NCCL communicator's buffers.
    pub per_communicator: Option<Interval>,
    /// What other processes held then.
    pub other_processes: Option<Bytes>,
}

/// What was measured outside PyTorch's allocator, as a device carries it along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredOutside {
    /// CUDA's major version of the torch that it was measured with.
    pub cuda_major: Option<u32>,
    /// Who says so.
    pub source: String,
    /// What was measured.
    pub parts: CalibratedOutside,
}
