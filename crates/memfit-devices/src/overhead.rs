//! What a process holds on a card outside PyTorch's allocator: context, libraries, communication buffers.
//!
//! The driver does not publish these figures and they move with its release, so each is an interval with its source.
//! A verdict uses the upper ends.

use std::ops::Add;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::device::{ComputeCapability, Device};

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

/// What lies outside PyTorch's allocator, for one process on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Overhead {
    /// The CUDA context: the driver's own, the local memory of all resident threads, PyTorch's modules as far as they
    /// are loaded from the start.
    pub context: Interval,
    /// Kernels and handles that are loaded on use, of PyTorch, cuBLAS, cuBLASLt and cuDNN.
    pub libraries: Interval,
    /// Buffers of one NCCL communicator, with the first collective done. Multiply by the number of communicators.
    pub per_communicator: Interval,
    /// Where the three come from, in that order.
    pub sources: [String; 3],
}

impl Overhead {
    /// Context and libraries: what a process on one GPU has.
    pub fn total(&self) -> Interval {
        self.context + self.libraries
    }

    pub(crate) fn of(device: &Device, cuda_major: u32) -> Self {
        let entry = TABLE.entry(device.compute_capability, cuda_major);
        let threads = device.resident_threads();
        let local = |per_thread: Bytes| per_thread * threads;
        let context = Interval {
            low: entry.context.low + local(entry.context_per_thread.low),
            typical: entry.context.typical + local(entry.context_per_thread.typical),
            high: entry.context.high + local(entry.context_per_thread.high),
        };
        Self {
            context,
            libraries: entry.libraries,
            per_communicator: entry.per_communicator,
            sources: [
                entry.sources.context.clone(),
                entry.sources.libraries.clone(),
                entry.sources.per_communicator.clone(),
            ],
        }
    }
}

/// `overhead.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    overhead: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Compute capabilities, from and to, both included.
    capability: [ComputeCapability; 2],
    /// CUDA major versions, from and to, both included.
    cuda_major: [u32; 2],
    /// The part of the context that does not grow with the card.
    context: Interval,
    /// The part that the driver sets aside for each thread that can be resident.
    context_per_thread: Interval,
    libraries: Interval,
    per_communicator: Interval,
    sources: EntrySources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntrySources {
    context: String,
    libraries: String,
    per_communicator: String,
}

impl Table {
    /// The entry for a card and a CUDA version; for one that is not listed, the nearest that is.
    fn entry(&self, capability: ComputeCapability, cuda_major: u32) -> &Entry {
        let distance = |entry: &&Entry| {
            let [from, to] = entry.capability.map(ComputeCapability::sm_version);
            let [oldest, newest] = entry.cuda_major;
            (outside(capability.sm_version(), from, to), outside(cuda_major, oldest, newest))
        };
        self.overhead
            .iter()
            .min_by_key(distance)
            .unwrap_or_else(|| unreachable!("the built-in table is empty"))
    }
}

/// How far a value lies outside a range.
fn outside(value: u32, from: u32, to: u32) -> u32 {
    from.saturating_sub(value).max(value.saturating_sub(to))
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    // The text is part of the program and a test reads it: that it cannot be read is a bug, not a condition.
    toml::from_str(include_str!("../data/overhead.toml"))
        .unwrap_or_else(|error| unreachable!("the built-in overhead table: {error}"))
});
