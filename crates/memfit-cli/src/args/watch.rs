//! Arguments of `memfit watch`.

use super::{OutputArgs, Timeout};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memfit watch
  memfit watch 4711 --every 5s
  memfit watch --once --format json")]
pub(crate) struct WatchArgs {
    /// Any process of the run, or the `memfit run` that started it [default: every run of this user's].
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,

    /// Time between samples.
    #[arg(long, default_value = "1s", value_name = "TIME")]
    pub(crate) every: Timeout,

    /// Take one sample and exit.
    #[arg(long)]
    pub(crate) once: bool,

    #[command(flatten)]
    pub(crate) out: OutputArgs,
}
