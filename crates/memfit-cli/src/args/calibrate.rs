//! Arguments of `memfit calibrate`.

use std::path::PathBuf;

use clap::ValueHint;

use super::OutputArgs;

/// The arguments of `memfit calibrate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memfit calibrate
  memfit calibrate --output t4.json       (then, anywhere: memfit run --calibration t4.json …)
  memfit calibrate --show
  memfit calibrate --forget t4
  memfit run --gpu t4 --steps 0 -- memfit calibrate --output rehearsal.json   (without a GPU)")]
pub(crate) struct CalibrateArgs {
    /// The Python interpreter, with PyTorch, that measures [default: as in `memfit run -- python`].
    #[arg(long, value_name = "PATH", value_hint = ValueHint::ExecutablePath)]
    pub(crate) python: Option<PathBuf>,

    /// Write the calibration to this file instead of storing it for this machine.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// Show this machine's stored calibrations, of all GPUs or one; measure nothing.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["output", "python", "forget"])]
    pub(crate) show: Option<String>,

    /// Remove this machine's stored calibrations, of all GPUs or one; measure nothing.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["output", "python"])]
    pub(crate) forget: Option<String>,

    /// A TOML file with GPUs of your own.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) catalogue: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) out: OutputArgs,
}
