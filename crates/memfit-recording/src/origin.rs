//! Recording and its origin.

use serde::{Deserialize, Serialize};

use crate::{SourceFile, Track};

/// Allocator events of all processes of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// Source of the recording.
    pub origin: Origin,
    /// One track for each process that used a device.
    pub tracks: Vec<Track>,
}

/// Source of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Kind of source.
    pub kind: OriginKind,
    /// Version of memfit that wrote it.
    #[serde(default)]
    pub memfit: String,
    /// `torch.__version__`.
    #[serde(default)]
    pub torch: Option<String>,
    /// Name of the GPU.
    #[serde(default)]
    pub device: Option<String>,
    /// Total memory of the GPU in bytes, as PyTorch reports it.
    #[serde(default)]
    pub capacity: Option<u64>,
    /// PyTorch's message if memory ran out.
    #[serde(default)]
    pub oom: Option<String>,
    /// Process that ran out of memory, if several were recorded.
    #[serde(default)]
    pub oom_process: Option<u32>,
    /// Allocator settings from the environment.
    #[serde(default)]
    pub alloc_conf: Option<String>,
    /// Command line of the run.
    #[serde(default)]
    pub command: Vec<String>,
    /// The user's source files that ran and have not been written since the run began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceFile>,
    /// Further runs that tried a remedy, after memory ran out in this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<Trial>,
}

/// Result of a run with one remedy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Name of the remedy's lever.
    pub lever: String,
    /// Instructions of the remedy: a lever can have several.
    pub how: String,
    /// `true` if the run did not run out of memory.
    pub fits: bool,
    /// Completed steps.
    pub steps: u64,
    /// Peak bytes in blocks.
    pub allocated: u64,
    /// Peak bytes in segments.
    pub reserved: u64,
    /// Peak bytes that the device saw.
    pub device: u64,
    /// Upper bound of the peak bytes that the device saw.
    pub device_upper: u64,
}

/// Kinds of sources of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OriginKind {
    /// Run on a virtual GPU.
    #[default]
    VirtualRun,
    /// Run on a real GPU.
    RealRun,
    /// Memory snapshot written by PyTorch.
    Snapshot,
    /// Trace of PyTorch's profiler.
    ProfilerTrace,
    /// Export of NVIDIA Nsight Systems.
    NsightSystems,
}
