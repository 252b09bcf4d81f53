//! Arguments of `memfit watch`.

use super::{OutputArgs, Timeout};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memfit watch
  memfit watch 4711 --every 5s
  memfit watch --once --format json
  memfit watch --prometheus 9177")]
pub(crate) struct WatchArgs {
    /// Any process of the run, or the `memfit run` that started it [default: all runs of this user].
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,

    /// Time between samples.
    #[arg(long, default_value = "1s", value_name = "TIME")]
    pub(crate) every: Timeout,

    /// Take one sample and exit.
    #[arg(long)]
    pub(crate) once: bool,

    /// Serve metrics for Prometheus on this port of 127.0.0.1, at `/metrics`; 0 selects a free port.
    #[arg(long, value_name = "PORT", conflicts_with_all = ["once", "every", "json", "format"])]
    pub(crate) prometheus: Option<u16>,

    #[command(flatten)]
    pub(crate) out: OutputArgs,
}
