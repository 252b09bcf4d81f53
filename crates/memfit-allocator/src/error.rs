//! What can go wrong with a request.

use crate::ids::{Address, PoolId};
use crate::release::Release;

/// A request that could not be met, with the figures that PyTorch prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What was asked for.
    pub requested: u64,
    /// That, rounded: the size in a trace's entry.
    pub rounded: u64,
    /// The segment that the device refused: what the message calls "tried to allocate".
    pub segment: u64,
    /// What the device had left.
    pub device_free: u64,
    /// What the device has.
    pub device_total: u64,
    /// What this process is allowed, where a fraction is set.
    pub allowed: Option<u64>,
    /// Bytes of blocks handed out.
    pub allocated: u64,
    /// Bytes of free blocks in private pools, which the message counts as allocated.
    pub in_private_pools: u64,
    /// Bytes held from the device.
    pub reserved: u64,
}

/// Why an allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocationError {
    /// The device has too little left, even after all that the allocator can give back.
    #[error("out of memory: a segment of {} bytes was refused, with {} bytes free", .0.segment, .0.device_free)]
    OutOfMemory(OutOfMemory),
    /// More than an exbibyte.
    #[error("out of memory: {0} bytes are more than 1 EiB")]
    TooLarge(u64),
    /// The pool that was named is not there.
    #[error("there is no pool {0}")]
    NoSuchPool(PoolId),
}

/// An address that is not that of a block in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not the address of an allocated block")]
pub struct FreeError(pub Address);

/// A call about a private pool that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// It is not there.
    #[error("there is no pool {0}")]
    NoSuchPool(PoolId),
    /// It is recording already.
    #[error("pool {0} is recording already")]
    AlreadyRecording(PoolId),
    /// It is not recording.
    #[error("pool {0} is not recording")]
    NotRecording(PoolId),
    /// More users let go of it than took it.
    #[error("pool {0} has no user left")]
    NotInUse(PoolId),
    /// The release has no such pools.
    #[error("PyTorch {release} has no {what}")]
    Unsupported {
        /// The release.
        release: Release,
        /// What it lacks.
        what: &'static str,
    },
}

/// A state that no allocator can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The blocks of a segment do not fill it.
    #[error("the blocks of the segment at {address} hold {blocks} bytes, the segment holds {segment}")]
    NotFilled {
        /// The segment.
        address: Address,
        /// What its blocks hold.
        blocks: u64,
        /// What it holds.
        segment: u64,
    },
    /// A segment lies on another.
    #[error("the segment at {0} overlaps the one before it")]
    Overlap(Address),
    /// A block or a segment of no bytes, or one that ends beyond the address space.
    #[error("the segment at {0} has an impossible size")]
    Size(Address),
}
