//! The request for a run: the card, the limits, the options and the command.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use memfit_channel::env::LONE_RANK;
use memfit_channel::{ClockMode, HostTime, Planned, Synthetic};
use memfit_devices::{Device, Origin};
use memfit_report::wire::{CardKind, DeviceInfo};

use crate::{RunError, Sizes};

/// The name of the real GPU of this machine.
pub const LOCAL: &str = "local";

/// The cards of a run.
#[derive(Clone, Debug)]
pub enum Card {
    /// A number of virtual cards of one kind.
    Virtual(Box<Device>, u32),
    /// A number of real ones.
    Local(u32),
}

impl Card {
    /// Whether the cards are real.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Local(_))
    }

    /// The report's description of the card.
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

/// A run's only process in the role of one rank of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoneRank {
    rank: u32,
    size: u32,
    /// Ranks on each machine: one for each of its cards.
    on_each: u32,
}

impl LoneRank {
    /// The first of the processes that a launcher starts on this machine, each with a card of its own.
    pub(crate) const fn first_of(size: u32, on_each: u32) -> Self {
        Self { rank: 0, size, on_each }
    }

    /// The rank `rank` of `size` on virtual cards; `None` without a `size`.
    pub fn new(rank: Option<u32>, size: Option<u32>, card: &Card) -> Result<Option<Self>, RunError> {
        let Some(size) = size else { return Ok(None) };
        let rank = rank.unwrap_or(0);
        match card {
            _ if rank >= size => Err(RunError::NoSuchRank { rank, size }),
            Card::Local(_) => Err(RunError::LoneRankOfLocal),
            Card::Virtual(_, count) => Ok(Some(Self { rank, size, on_each: *count })),
        }
    }

    /// The environment variables that a launcher sets for that rank.
    pub fn environment(self) -> Vec<(&'static str, String)> {
        let Self { rank, size, on_each } = self;
        let on_this = on_each.min(size - rank / on_each * on_each);
        let numbers = [
            ("RANK", rank),
            ("WORLD_SIZE", size),
            ("LOCAL_RANK", rank % on_each),
            ("LOCAL_WORLD_SIZE", on_this),
            ("GROUP_RANK", rank / on_each),
            ("GROUP_WORLD_SIZE", size.div_ceil(on_each)),
            ("MASTER_PORT", 29500),
        ];
        let mut variables: Vec<_> =
            numbers.into_iter().map(|(name, number)| (name, number.to_string())).collect();
        variables.push(("MASTER_ADDR", "127.0.0.1".to_owned()));
        variables.push((LONE_RANK, format!("{rank}/{size}")));
        // NCCL's groups would ask the store every second whether another rank has failed.
        variables.push(("TORCH_NCCL_ENABLE_MONITORING", "0".to_owned()));
        variables
    }
}

/// A request for a run.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Request {
    /// The card.
    pub card: Card,
    /// The rank of many that the run's only process stands for.
    pub lone_rank: Option<LoneRank>,
    /// Optimizer steps; 0 runs to the end.
    pub steps: u64,
    /// Forward passes of a script without an optimizer; 0 runs to the end.
    pub forward_steps: u64,
    /// Whether the evaluation and the largest batch must run too.
    pub cover_full: bool,
    /// The pace of the virtual card's clock.
    pub clock: ClockMode,
    /// Whether computing on the host advances that clock.
    pub host_time: HostTime,
    /// The time limit.
    pub timeout: Option<Duration>,
    /// The position of sizes that a kernel would compute between their bounds.
    pub sizes: Sizes,
    /// Replacements for weights and data that this machine lacks.
    pub synthetic: Synthetic,
    /// Bytes that other programs hold of each virtual card.
    pub other_processes: u64,
    /// The source of that figure.
    pub others: Origin,
    /// Changes that are applied to the training from outside; `None` where it is only watched.
    pub planned: Option<Planned>,
    /// The file for the recording.
    pub output: Option<PathBuf>,
    /// Whether the script's output is shown as it appears.
    pub show_output: bool,
    /// Whether what is saved goes without the user's names.
    pub confidential: bool,
    /// Whether the run directory is kept.
    pub keep: bool,
    /// Whether remedies are tried when memory runs out.
    pub prove: bool,
    /// How long the training's own `DataLoader` is tried with each number of workers after the steps, if it
    /// is.
    pub measure_loader: Option<Duration>,
    /// Cards on which the run's work is timed as well, the run's own first.
    pub beside: Vec<Device>,
    /// The command as typed.
    pub command: Vec<OsString>,
}
