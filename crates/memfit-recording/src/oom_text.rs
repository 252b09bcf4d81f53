//! What out-of-memory errors say: the texts of every release of PyTorch, and those of the libraries under it,
//! as they are found in logs.
//!
//! It owns the grammar of the messages and the search for them. It must not know what they prove.

mod amount;
mod log;
mod message;
#[cfg(test)]
mod tests;

pub use amount::Amount;
pub use log::find;
pub(crate) use log::find_counting;

/// An out-of-memory error that was found in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomText {
    /// Who says it.
    pub kind: OomKind,
    /// The message, without colours and prefixes.
    pub message: String,
    /// The line of the text on which it begins, counted from 1.
    pub line: u64,
    /// The rank of the process that it came from, where the log names it.
    pub rank: Option<u32>,
    /// How often the same message came from that rank.
    pub count: u64,
    /// The figures that it gives.
    pub figures: Figures,
    /// The advice that it ends in.
    pub advice: Option<Advice>,
    /// The traceback before it, the outermost frame first.
    pub frames: Vec<LogFrame>,
}

/// Who reports that memory ran out, and how.
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
    /// The host's memory ran out, not the card's.
    Host,
}

impl OomKind {
    /// Whether the text alone proves that memory ran out. The others are often that, and sometimes something
    /// else.
    pub const fn is_certain(self, message: &str) -> bool {
        match self {
            Self::Cublas | Self::Cudnn | Self::OtherLibrary | Self::Nccl => {
                message::names_allocation(message)
            }
            _ => true,
        }
    }
}

/// The figures of a message, as far as it gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The device.
    pub device: Option<u32>,
    /// What could not be had: of the caching allocator, the size of the segment, not that of the request.
    pub requested: Option<Amount>,
    /// The device's memory.
    pub capacity: Option<Amount>,
    /// What the device had left.
    pub free: Option<Amount>,
    /// What the process's memory fraction allows.
    pub allowed: Option<Amount>,
    /// What the tensors had. Free blocks of private pools count, too.
    pub allocated: Option<Amount>,
    /// What of it is in private pools.
    pub private_pools: Option<Amount>,
    /// All that the allocator had reserved. Releases 1.5 to 2.0 say this one, those before and after the
    /// next.
    pub reserved: Option<Amount>,
    /// What was reserved and in no tensor.
    pub unallocated: Option<Amount>,
    /// What this process had on the device, the context and libraries included.
    pub this_process: Option<Amount>,
    /// What other processes had, by their ids.
    pub other_processes: Vec<(u32, Amount)>,
}

impl Figures {
    /// What the allocator had reserved, said or added up.
    pub fn total_reserved(&self) -> Option<Amount> {
        self.reserved.or_else(|| Some(self.allocated? + self.unallocated?))
    }

    /// What was reserved and in no tensor, said or taken from the others.
    pub fn idle(&self) -> Option<Amount> {
        self.unallocated.or_else(|| Some(self.reserved?.less(self.allocated?)))
    }
}

/// The advice that a message ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// To set `max_split_size_mb` (1.10 to 2.1).
    MaxSplitSize,
    /// To turn on expandable segments (2.2 and later; up to 2.14 also where they are on).
    ExpandableSegments,
    /// Expandable segments are on already.
    ExpandableAlreadyOn,
    /// The request is larger than what one expandable segment reserves.
    ExpandableReserve,
}

/// A frame of a traceback in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFrame {
    /// The file, or a notebook's cell.
    pub file: String,
    /// The line, where it is given.
    pub line: u32,
    /// The function, where it is given.
    pub function: String,
}
