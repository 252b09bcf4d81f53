//! Arguments of `memfit ci`.

use std::path::PathBuf;

use clap::{ValueEnum, ValueHint};

use super::{ScriptArgs, Timeout};

#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:
  memfit ci
  memfit ci --accept
  memfit ci --base origin/main
  memfit ci --base origin/main --format markdown > comment.md
The scripts, GPUs and the permitted growth are under [tool.memfit.ci] in pyproject.toml.
Exit status: 1 if a peak grew by more than is permitted, even if another script failed;
2 if a script has no answer; 0 otherwise, and for new scripts."
)]
pub(crate) struct CiArgs {
    /// Compare with this commit, run in a temporary checkout, instead of the committed baselines.
    #[arg(long, value_name = "REF", conflicts_with = "accept")]
    pub(crate) base: Option<String>,

    /// Write the measured peaks as the new baselines.
    #[arg(long)]
    pub(crate) accept: bool,

    /// Time limit of a single run, for example `90s` or `20m`; 0 for none [default: 10m].
    #[arg(long, short, value_name = "TIME")]
    pub(crate) timeout: Option<Timeout>,

    #[command(flatten)]
    pub(crate) script: ScriptArgs,

    /// Output format on standard output.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<CiFormat>,

    /// Also write the answer as JSON to a file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}

/// Output formats of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CiFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For a comment of a pull request.
    Markdown,
}
