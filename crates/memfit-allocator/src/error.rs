//! Errors of requests and of restored states.

use crate::ids::{Address, PoolId};
use crate::release::Release;

/// Failed request, with the figures that PyTorch prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Requested bytes.
    pub requested: u64,
    /// Rounded request: the size in a trace's entry.
    pub rounded: u64,
    /// Size of the segment that the device refused: "tried to allocate" in the message.
    pub segment: u64,
    /// Free memory of the device.
    pub device_free: u64,
    /// Total memory of the device.
    pub device_total: u64,
    /// Limit set by the memory fraction, if any.
    pub allowed: Option<u64>,
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes of free blocks in private pools, which the message counts as allocated.
    pub in_private_pools: u64,
    /// Bytes reserved on the device.
    pub reserved: u64,
}

/// Error of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocationError {
    /// The device has too little memory, even after all cached memory was released.
    #[error("out of memory: a segment of {} bytes was refused, with {} bytes free", .0.segment, .0.device_free)]
    OutOfMemory(OutOfMemory),
    /// The request is larger than an exbibyte.
    #[error("out of memory: {0} bytes are more than 1 EiB")]
    TooLarge(u64),
    /// The pool does not exist.
    #[error("pool {0} does not exist")]
    NoSuchPool(PoolId),
}

/// The address is not that of an allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not the address of an allocated block")]
pub struct FreeError(pub Address);

/// Invalid call for a private pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The pool does not exist.
    #[error("pool {0} does not exist")]
    NoSuchPool(PoolId),
    /// The pool is recording already.
    #[error("pool {0} is already recording")]
    AlreadyRecording(PoolId),
    /// The pool is not recording.
    #[error("pool {0} is not recording")]
    NotRecording(PoolId),
    /// The pool has no users left to remove.
    #[error("pool {0} has no user left")]
    NotInUse(PoolId),
    /// The release does not support such pools.
    #[error("PyTorch {release} has no {what}")]
    Unsupported {
        /// PyTorch release.
        release: Release,
        /// Missing feature.
        what: &'static str,
    },
}

/// State that no allocator can be in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The blocks of a segment do not fill it.
    #[error("the blocks of the segment at {address} hold {blocks} bytes, the segment holds {segment}")]
    NotFilled {
        /// Address of the segment.
        address: Address,
        /// Bytes of its blocks.
        blocks: u64,
        /// Bytes of the segment.
        segment: u64,
    },
    /// Two segments overlap.
    #[error("the segment at {0} overlaps the previous one")]
    Overlap(Address),
    /// A block or segment has no bytes, or exceeds the address space.
    #[error("the segment at {0} has an impossible size")]
    Size(Address),
}
