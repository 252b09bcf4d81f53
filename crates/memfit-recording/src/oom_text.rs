//! Out-of-memory messages in logs: those of every release of PyTorch and of the libraries below it.
//!
//! This module knows the grammar of the messages and how to find them. It does not know their causes.

mod amount;
mod beginnings;
mod log;
mod message;
mod prefix;
#[cfg(test)]
mod tests;

pub use amount::Amount;
pub use log::find;
pub(crate) use log::{Searched, search};

/// Out-of-memory error found in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomText {
    /// Library that reported the error, and how.
    pub kind: OomKind,
    /// Message without colours and prefixes.
    pub message: String,
    /// Line of the text on which it begins, counted from 1.
    pub line: u64,
    /// Rank of the process that printed it, if the log names it.
    pub rank: Option<u32>,
    /// A worker of a server for language models printed it.
    pub is_of_server: bool,
    /// Number of times that the same rank printed the same message.
    pub count: u64,
    /// Figures of the message.
    pub figures: Figures,
    /// Advice at the end of the message.
    pub advice: Option<Advice>,
    /// Traceback that precedes the message, the outermost frame first.
    pub frames: Vec<LogFrame>,
}

/// Library and call that reported the lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OomKind {
    /// PyTorch's caching allocator could not serve a request.
    CachingAllocator,
    /// PyTorch's caching allocator refused a request that would exceed the process's memory fraction.
    FractionExceeded,
    /// A request of more than an exbibyte: an overflown size.
    Absurd,
    /// The `cudaMallocAsync` backend could not serve a request.
    CudaMallocAsync,
    /// The allocator of a `MemPool` returned nothing.
    MemPool,
    /// The CUDA runtime or driver, outside the caching allocator: the context, a module, a graph, another
    /// library.
    Cuda,
    /// cuBLAS could not get memory for a handle or a workspace.
    Cublas,
    /// cuDNN could not get memory, or found no algorithm that fits into what is left.
    Cudnn,
    /// NCCL could not get memory for its buffers.
    Nccl,
    /// Another library of NVIDIA's: cuSOLVER, cuSPARSE, cuFFT.
    OtherLibrary,
    /// PyTorch's allocator failed while it composed its message: NVML did not answer.
    Unreported,
    /// PyTorch's allocator for Apple's GPUs could not serve a request.
    Mps,
    /// A server for language models found too little memory for its own settings.
    Serving,
    /// The host's memory ran out, not the GPU's: an allocation failed.
    Host,
    /// A process was killed (SIGKILL), or a worker is gone: mostly the kernel's answer to a lack of host
    /// memory.
    Killed,
    /// The kernel, a container, a scheduler or Ray ended a process because of its host memory.
    HostLimit,
    /// The host's shared memory (`/dev/shm`) was full.
    SharedMemory,
}

/// Memory that ran out elsewhere: not in PyTorch, and not the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Elsewhere {
    /// A Triton kernel needs more shared memory than one multiprocessor of the GPU has.
    KernelSharedMemory,
    /// TensorFlow ran out of device memory.
    TensorFlow,
    /// JAX ran out of device memory.
    Jax,
}

impl OomKind {
    /// Returns `true` if the text alone proves that memory ran out. The other kinds often mean that, and
    /// sometimes something else.
    pub const fn is_certain(self, message: &str) -> bool {
        match self {
            Self::Cublas | Self::Cudnn | Self::OtherLibrary | Self::Nccl => {
                message::names_allocation(message)
            }
            Self::Killed | Self::Unreported => false,
            _ => true,
        }
    }

    /// Returns `true` if the error concerns the host's memory.
    pub const fn is_of_host(self) -> bool {
        matches!(self, Self::Host | Self::Killed | Self::HostLimit | Self::SharedMemory)
    }
}

/// Figures of a message. A figure that the message does not state is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Device index.
    pub device: Option<u32>,
    /// Bytes that could not be allocated. The caching allocator reports the size of the segment, not that of
    /// the request.
    pub requested: Option<Amount>,
    /// Total memory of the device.
    pub capacity: Option<Amount>,
    /// Free memory of the device.
    pub free: Option<Amount>,
    /// Limit set by the process's memory fraction.
    pub allowed: Option<Amount>,
    /// Bytes allocated to tensors. Free blocks of private pools count as well.
    pub allocated: Option<Amount>,
    /// Bytes of `allocated` in private pools.
    pub private_pools: Option<Amount>,
    /// Bytes reserved by the allocator. Stated by releases 1.5 to 2.0; earlier and later ones state
    /// `unallocated`.
    pub reserved: Option<Amount>,
    /// Bytes reserved by the allocator but not allocated to tensors.
    pub unallocated: Option<Amount>,
    /// Bytes used by this process on the device, including the context and libraries.
    pub this_process: Option<Amount>,
    /// Bytes used by other processes, by their ids.
    pub other_processes: Vec<(u32, Amount)>,
}

impl Figures {
    /// Bytes reserved by the allocator, as stated or summed from other figures.
    pub fn total_reserved(&self) -> Option<Amount> {
        self.reserved.or_else(|| Some(self.allocated? + self.unallocated?))
    }

    /// Bytes reserved but not allocated, as stated or as the difference of other figures.
    pub fn idle(&self) -> Option<Amount> {
        self.unallocated.or_else(|| Some(self.reserved?.saturating_sub(self.allocated?)))
    }
}

/// Advice at the end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// Set `max_split_size_mb` (1.10 to 2.1).
    MaxSplitSize,
    /// Turn on expandable segments (2.2 and later; up to 2.14 it is printed even if they are on).
    ExpandableSegments,
    /// Expandable segments are on already.
    ExpandableAlreadyOn,
    /// The request is larger than what one expandable segment reserves.
    ExpandableReserve,
}

/// Frame of a traceback in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFrame {
    /// File, or a notebook cell.
    pub file: String,
    /// Line number, or 0 if it is missing.
    pub line: u32,
    /// Function name, or empty if it is missing.
    pub function: String,
}
