//! Arguments of `memfit shrink`.

use clap::builder::PossibleValuesParser;
use memfit_devices::Bytes;
use memfit_shrink::TECHNIQUES;

use super::{CommandArgs, GpuChoice, OutputArgs, ScriptArgs, Timeout};

#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:
  memfit shrink --gpu t4 -- python train.py
  memfit shrink --gpu rtx-4090 --only lora,qlora -- python finetune.py
  memfit shrink --gpu l4 --format json -- python train.py"
)]
pub(crate) struct ShrinkArgs {
    /// The GPU: a name from `memfit gpus`.
    #[arg(long, short, value_name = "NAME")]
    pub(crate) gpu: Option<GpuChoice>,

    /// Give the GPU this much memory, for example `12GiB` [default: that of the named GPU].
    #[arg(long, short, value_name = "SIZE")]
    pub(crate) memory: Option<Bytes>,

    /// Only these techniques, separated by commas; may be given several times.
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(TECHNIQUES.iter().map(|technique| technique.name))
    )]
    pub(crate) only: Vec<String>,

    /// Stop each run after this many optimizer steps [default: 3].
    #[arg(long, short, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,

    /// Time limit of a single run, for example `90s` or `20m`; 0 for none [default: 10m].
    #[arg(long, short, value_name = "TIME")]
    pub(crate) timeout: Option<Timeout>,

    #[command(flatten)]
    pub(crate) script: ScriptArgs,

    #[command(flatten)]
    pub(crate) out: OutputArgs,

    #[command(flatten)]
    pub(crate) command: CommandArgs,
}
