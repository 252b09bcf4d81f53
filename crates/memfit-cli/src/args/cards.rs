//! Arguments of `memfit cards`.

use std::path::PathBuf;

use clap::{ValueEnum, ValueHint};
use memfit_devices::Bytes;
use memfit_report::wire::CardSort;

use super::plan::Allow;
use super::{CommandArgs, OutputArgs, ScriptArgs, Timeout};

#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:
  memfit cards -- python train.py --batch-size 64
  memfit cards --prices prices.toml --epochs 90 -o cards.html -- python train.py
  memfit cards --gpu rtx-4090 --gpu l40s --batch 16,32,64 -- python train.py --batch-size 8
  memfit cards --count 1,2,4 --sort time -- torchrun --nproc-per-node 2 train.py"
)]
pub(crate) struct CardsArgs {
    /// Only this GPU: a name from `memfit gpus`; may be given several times.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) gpu: Vec<String>,

    /// Only GPUs of this generation, for example `ada`, or of this compute capability, for example `8.9`; may
    /// be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) architecture: Vec<String>,

    /// Only GPUs with at least this much memory.
    #[arg(long, value_name = "SIZE")]
    pub(crate) min_memory: Option<Bytes>,

    /// Only GPUs with at most this much memory.
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_memory: Option<Bytes>,

    /// How many GPUs train together [default: one for each process that the command starts].
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) count: Vec<u32>,

    /// Batch sizes to try. They replace the command's batch size argument, such as `--batch-size 8`; if it is
    /// not recognised, write `{batch}` as its value.
    #[arg(long, value_name = "SAMPLES,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch: Vec<u64>,

    /// A TOML file with prices of GPUs.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) prices: Option<PathBuf>,

    /// Compute prices for this many samples [default: one epoch if its length is known, else a million].
    #[arg(long, value_name = "N", conflicts_with = "epochs", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) samples: Option<u64>,

    /// Compute prices for this many epochs.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: Option<u64>,

    /// Order of the table [default: price if prices are known, else memory].
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) sort: Option<Sort>,

    /// Also search for a plan for at most N rows: first rows that do not fit (cheapest first if the table is
    /// sorted by price), then rows of several GPUs that assume a replica of one process on each.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) plan: usize,

    /// How far the plans of `--plan` may change the training.
    #[arg(long, value_enum, value_name = "LABEL", default_value_t)]
    pub(crate) allow: Allow,

    /// Run the script on every GPU instead of replaying one run.
    #[arg(long)]
    pub(crate) prove: bool,

    /// Stop each run after this many optimizer steps [default: 3].
    #[arg(long, short, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,

    /// Time limit of a single run, for example `90s` or `20m`; 0 for none [default: 10m].
    #[arg(long, short, value_name = "TIME")]
    pub(crate) timeout: Option<Timeout>,

    /// Write an HTML page to this file, with a plot of price against time.
    #[arg(long, short, value_name = "FILE.html", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) script: ScriptArgs,

    #[command(flatten)]
    pub(crate) out: OutputArgs,

    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

/// The order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// The cheapest first.
    Price,
    /// The fastest first.
    Time,
    /// The least memory first.
    Memory,
}

impl From<Sort> for CardSort {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Price => Self::Price,
            Sort::Time => Self::Time,
            Sort::Memory => Self::Memory,
        }
    }
}
