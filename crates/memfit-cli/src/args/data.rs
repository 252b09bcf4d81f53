//! Arguments of `memfit data`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueHint;
use memfit_devices::Bytes;

use super::{GpuChoice, OutputArgs, Timeout};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memfit data photos/
  memfit data photos/ --size 384 --batch-size 128 --workers 16 --verify
  memfit data shards/train-000.tar --format json
  memfit data --gpu rtx-4090 --loader train.py --batch-size 64")]
pub(crate) struct DataArgs {
    /// A folder with one folder for each class, or tar shards.
    #[arg(required_unless_present = "loader", conflicts_with = "loader", value_hint = ValueHint::AnyPath)]
    pub(crate) path: Vec<PathBuf>,

    /// Measure the `DataLoader` of this script or command instead, and find settings that keep the GPU busy.
    /// Must come last: everything after it belongs to that command.
    #[arg(
        long,
        value_name = "COMMAND",
        num_args = 1..,
        allow_hyphen_values = true,
        value_hint = ValueHint::FilePath
    )]
    pub(crate) loader: Vec<OsString>,

    /// With `--loader`: the GPU that it feeds, a name from `memfit gpus`.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) gpu: Option<GpuChoice>,

    /// With `--loader`: time limit, for example `90s` or `20m`; 0 for none [default: 10m].
    #[arg(long, short, value_name = "TIME")]
    pub(crate) timeout: Option<Timeout>,

    /// Width and height of the images that training uses, in pixels.
    #[arg(long, default_value_t = 224, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..65536))]
    pub(crate) size: u32,

    /// Samples in a batch.
    #[arg(long, default_value_t = 64, value_name = "B", value_parser = clap::value_parser!(u64).range(1..1 << 20))]
    pub(crate) batch_size: u64,

    /// `num_workers` of the compared DataLoader.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(0..4096))]
    pub(crate) workers: u64,

    /// `prefetch_factor` of the compared DataLoader.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u64).range(1..4096))]
    pub(crate) prefetch_factor: u64,

    /// Compare with a DataLoader that does not pin memory.
    #[arg(long)]
    pub(crate) no_pin_memory: bool,

    /// Memory budget of memfit's loader.
    #[arg(long, default_value = "2GiB", value_name = "SIZE")]
    pub(crate) memory: Bytes,

    /// Decoding threads [default: number of cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1024))]
    pub(crate) threads: Option<u64>,

    /// Duration of the speed measurement, with `--loader` for each number of workers; 0 for none.
    #[arg(long, default_value = "3s", value_name = "TIME")]
    pub(crate) measure: Timeout,

    /// Decode every image, to find truncated and damaged ones.
    #[arg(long)]
    pub(crate) verify: bool,

    #[command(flatten)]
    pub(crate) out: OutputArgs,
}
