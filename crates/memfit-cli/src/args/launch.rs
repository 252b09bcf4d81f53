//! Arguments of `memfit launch`.

use std::path::PathBuf;

use clap::{ValueEnum, ValueHint};
use memfit_plan::Launcher;

use super::CommandArgs;

#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:
  memfit launch memfit.plan.toml -- python train.py
  memfit launch memfit.plan.toml --run -- python train.py --epochs 3
  memfit launch memfit.plan.toml --on slurm -- python train.py"
)]
pub(crate) struct LaunchArgs {
    /// A plan written by `memfit plan --gpu NAME:N -o FILE`.
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) plan: PathBuf,

    /// Program that starts the processes.
    #[arg(long, value_enum, value_name = "LAUNCHER", default_value_t)]
    pub(crate) on: On,

    /// Run the command instead of printing it; the exit status is the command's.
    #[arg(long)]
    pub(crate) run: bool,

    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

/// Program that starts the processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum On {
    /// `torchrun`; with several machines, to be started on each of them.
    #[default]
    Torchrun,
    /// `srun`, within a Slurm allocation.
    Slurm,
}

impl From<On> for Launcher {
    fn from(on: On) -> Self {
        match on {
            On::Torchrun => Self::Torchrun,
            On::Slurm => Self::Slurm,
        }
    }
}
