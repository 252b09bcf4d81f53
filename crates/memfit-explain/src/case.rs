//! Input of an explanation: a track, and the known facts about the GPU.

use memfit_allocator::ReplayConditions;
use memfit_recording::Track;

use crate::explanation::Line;

/// Input of an explanation.
pub struct Case<'given> {
    /// Allocator events.
    pub track: &'given Track,
    /// Device to explain.
    pub device: u8,
    /// Known facts about the GPU.
    pub card: Card,
    /// Allocator settings, and the PyTorch release that they apply to.
    pub given: ReplayConditions,
    /// Settings as a text, if they were recorded.
    pub alloc_conf: String,
    /// Returns the text of a source file, if it is available.
    pub source: &'given dyn Fn(&str) -> Option<String>,
}

/// Known facts about a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// Name.
    pub name: Option<String>,
    /// Total memory in bytes, as PyTorch reports it.
    pub capacity: Option<u64>,
    /// Bytes that the allocator could use when memory ran out: its reserved bytes plus the free memory.
    pub limit: Option<u64>,
    /// Free memory of the GPU that the process was not allowed to use, because it or its environment had set
    /// a memory fraction. [`Self::limit`] does not include it.
    pub withheld: u64,
    /// Free memory in private pools, as PyTorch's message states it.
    pub in_private_pools: u64,
    /// Bytes of the process's own CUDA context and libraries.
    pub own_outside: Option<u64>,
    /// Memory of other processes, if known.
    pub others: Vec<OtherProcess>,
    /// Allocation outside of PyTorch's allocator that failed.
    pub refused: Option<Refused>,
}

/// Failed creation of a CUDA context or another allocation by CUDA itself, in a process other than the one
/// whose memory is explained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// `true` for the training process (another process's memory is explained), `false` for a worker of its
    /// loader.
    pub trains: bool,
    /// Number of the loader worker, if known.
    pub worker: Option<u32>,
    /// User code lines that caused the allocation, innermost first.
    pub lines: Vec<Line>,
}

impl Refused {
    /// Describes the process for a sentence.
    pub(crate) fn describe(&self) -> String {
        match self.worker {
            _ if self.trains => "the process that trains".to_owned(),
            Some(number) => format!("DataLoader worker process {number}"),
            None => "a loader worker".to_owned(),
        }
    }
}

/// Relation of another process to the training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kin {
    /// No known relation.
    #[default]
    Stranger,
    /// Started by the same script.
    OfScript,
    /// Worker of the script's loader.
    LoaderWorker,
}

/// Another process on the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherProcess {
    /// Process id.
    pub pid: u32,
    /// Relation to the training.
    pub kin: Kin,
    /// Lines that allocated its largest block, innermost first, if they were recorded.
    pub lines: Vec<Line>,
    /// Bytes reserved by its allocator, if known.
    pub reserved: u64,
    /// Bytes used in total.
    pub bytes: u64,
}

impl OtherProcess {
    /// Describes the process for a sentence.
    pub(crate) fn describe(&self) -> String {
        let kin = match self.kin {
            Kin::Stranger => "",
            Kin::OfScript => " of the same script",
            Kin::LoaderWorker => ", a worker of the script's own loader,",
        };
        format!("process {}{kin}", self.pid)
    }
}

impl Card {
    /// Total bytes of other processes.
    pub fn others_total(&self) -> u64 {
        self.others.iter().map(|other| other.bytes).sum()
    }
}
