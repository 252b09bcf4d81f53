//! The request for a run: the device, the limits, the options and the command.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use memfit_channel::env::LONE_RANK;
use memfit_channel::{ClockMode, HostTime, LibrarySetup, Planned, Synthetic};
use memfit_devices::{Bytes, Device, Origin};
use memfit_report::wire::{CardKind, DeviceInfo};

use crate::{RunError, Sizes};

/// Name of the real GPU of this machine.
pub const LOCAL: &str = "local";

/// Devices of a run.
#[derive(Clone, Debug)]
pub enum Card {
    /// A number of virtual devices of one kind.
    Virtual(Box<Device>, u32),
    /// A number of real devices.
    Local(u32),
}

impl Card {
    /// Returns `true` if the devices are real.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// The same virtual devices with another amount of memory; real devices are returned unchanged.
    #[must_use]
    pub fn with_memory(&self, memory: Bytes) -> Self {
        match self {
            Self::Virtual(device, count) => {
                Self::Virtual(Box::new((**device).clone().with_memory(memory)), *count)
            }
            Self::Local(count) => Self::Local(*count),
        }
    }

    /// Description of the device for the report.
    pub fn info(&self) -> DeviceInfo {
        match self {
            Self::Virtual(device, count) => DeviceInfo {
                name: device.name.clone(),
                capacity: device.memory.get(),
                count: *count,
                kind: CardKind::Virtual,
            },
            Self::Local(count) => {
                DeviceInfo { name: LOCAL.to_owned(), capacity: 0, count: *count, kind: CardKind::Real }
            }
        }
    }
}

/// Rank of a run with only one process out of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoneRank {
    rank: u32,
    size: u32,
    /// Ranks per machine: one for each of its devices.
    per_machine: u32,
}

impl LoneRank {
    /// Rank 0 of the processes that a launcher starts on this machine, each with its own device.
    pub(crate) const fn first_rank(size: u32, per_machine: u32) -> Self {
        Self { rank: 0, size, per_machine }
    }

    /// Creates rank `rank` of `size` on virtual devices; `None` without a `size`.
    pub fn new(rank: Option<u32>, size: Option<u32>, card: &Card) -> Result<Option<Self>, RunError> {
        let Some(size) = size else { return Ok(None) };
        let rank = rank.unwrap_or(0);
        match card {
            _ if rank >= size => Err(RunError::NoSuchRank { rank, size }),
            Card::Local(_) => Err(RunError::LoneRankOfLocal),
            Card::Virtual(_, count) => Ok(Some(Self { rank, size, per_machine: *count })),
        }
    }

    /// Environment variables that a launcher sets for this rank.
    pub fn environment(self) -> Vec<(&'static str, String)> {
        let Self { rank, size, per_machine } = self;
        let on_this = per_machine.min(size - rank / per_machine * per_machine);
        let numbers = [
            ("RANK", rank),
            ("WORLD_SIZE", size),
            ("LOCAL_RANK", rank % per_machine),
            ("LOCAL_WORLD_SIZE", on_this),
            ("GROUP_RANK", rank / per_machine),
            ("GROUP_WORLD_SIZE", size.div_ceil(per_machine)),
            ("MASTER_PORT", 29500),
        ];
        let mut variables: Vec<_> =
            numbers.into_iter().map(|(name, number)| (name, number.to_string())).collect();
        variables.push(("MASTER_ADDR", "127.0.0.1".to_owned()));
        variables.push((LONE_RANK, format!("{rank}/{size}")));
        // Without this, NCCL's process groups would query the store every second for failures of other ranks.
        variables.push(("TORCH_NCCL_ENABLE_MONITORING", "0".to_owned()));
        variables
    }
}

/// A request for a run.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent option")]
pub struct Request {
    /// Device of the run.
    pub card: Card,
    /// Rank that the run's only process represents.
    pub lone_rank: Option<LoneRank>,
    /// Optimizer steps; 0 runs to the end.
    pub steps: u64,
    /// Forward passes of a script without an optimizer; 0 runs to the end.
    pub forward_steps: u64,
    /// `true` if the evaluation and the largest batch must run too.
    pub cover_full: bool,
    /// Clock mode of the virtual device.
    pub clock: ClockMode,
    /// Source of host time.
    pub host_time: HostTime,
    /// Time limit.
    pub timeout: Option<Duration>,
    /// Policy for sizes that depend on computed values.
    pub sizes: Sizes,
    /// Replacements for weights and data that this machine lacks.
    pub synthetic: Synthetic,
    /// Bytes that other programs hold on each virtual device.
    pub other_processes: u64,
    /// Origin of `other_processes`.
    pub other_processes_origin: Origin,
    /// Changes applied to the training from outside; `None` if it is only observed.
    pub planned: Option<Planned>,
    /// File for the recording.
    pub output: Option<PathBuf>,
    /// `true` if the script's output is shown as it appears.
    pub show_output: bool,
    /// `true` if saved files omit the user's names.
    pub confidential: bool,
    /// `true` if the run directory is kept.
    pub keep: bool,
    /// `true` if remedies are tried when memory runs out.
    pub prove: bool,
    /// Time for which the training's own `DataLoader` is measured with each number of workers after the
    /// steps; `None` to skip that.
    pub measure_loader: Option<Duration>,
    /// GPUs for which step times are estimated during the run; the run's own comes first.
    pub estimated: Vec<Device>,
    /// Command as typed.
    pub command: Vec<OsString>,
}

impl Request {
    /// How the script's training library distributes it, if it does.
    pub(crate) fn library(&self) -> Option<&LibrarySetup> {
        self.planned.as_ref()?.parallel.as_ref()?.library.as_ref()
    }
}
