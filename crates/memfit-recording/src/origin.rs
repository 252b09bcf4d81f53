//! A recording as a whole.

use serde::{Deserialize, Serialize};

use crate::Track;

/// What the allocators of a run's processes did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// Where it comes from.
    pub origin: Origin,
    /// One track for each process that used a device.
    pub tracks: Vec<Track>,
}

/// Where a recording comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// What kind of source it was made from.
    pub kind: OriginKind,
    /// The version of memfit that made it.
    #[serde(default)]
    pub memfit: String,
    /// `torch.__version__`.
    #[serde(default)]
    pub torch: Option<String>,
    /// The name of the card.
    #[serde(default)]
    pub device: Option<String>,
    /// The card's memory in bytes, as PyTorch sees it.
    #[serde(default)]
    pub capacity: Option<u64>,
    /// PyTorch's message, where memory ran out.
    #[serde(default)]
    pub oom: Option<String>,
    /// The process that it is of, where several were recorded.
    #[serde(default)]
    pub oom_process: Option<u32>,
    /// The allocator's settings, as the environment gave them.
    #[serde(default)]
    pub alloc_conf: Option<String>,
    /// The command that was run.
    #[serde(default)]
    pub command: Vec<String>,
}

/// The kinds of sources that a recording can be made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OriginKind {
    /// A run on a virtual card.
    #[default]
    VirtualRun,
    /// A run on a real card.
    RealRun,
    /// A memory snapshot that PyTorch wrote.
    Snapshot,
    /// A trace of PyTorch's profiler.
    ProfilerTrace,
    /// An export of NVIDIA Nsight Systems.
    NsightSystems,
}
