//! The arguments of `memfit convert`.

use std::path::PathBuf;

use clap::{ValueEnum, ValueHint};
use memfit_allocator::Release;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  memfit convert run.memfit run.pickle
  memfit convert --rank 1 run.memfit rank1.perfetto-trace
  memfit convert snapshot.pickle - --to csv --rows events > events.csv")]
pub(crate) struct ConvertArgs {
    /// A recording of `memfit run -o`, a PyTorch memory snapshot, a profiler trace, or an export of
    /// Nsight Systems.
    #[arg(value_name = "IN", value_hint = ValueHint::FilePath)]
    pub(crate) input: PathBuf,

    /// The file to write; `-` is standard output. Its extension chooses the format.
    #[arg(value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,

    /// The format, instead of the extension's.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) to: Option<ConvertFormat>,

    /// Contents of the rows of a CSV or JSON-lines file.
    #[arg(long, value_enum, default_value_t, value_name = "ROWS")]
    pub(crate) rows: ConvertRows,

    /// Convert this rank's part; a snapshot contains only one process.
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,

    /// Assume that this PyTorch release wrote it, for example 2.9; snapshots do not record the release.
    #[arg(long, value_name = "RELEASE")]
    pub(crate) torch: Option<Release>,

    /// Leave out the command, paths, and the names of functions and modules.
    #[arg(long)]
    pub(crate) confidential: bool,

    /// Overwrite an existing file.
    #[arg(long, short)]
    pub(crate) force: bool,
}

/// Target formats of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConvertFormat {
    /// memfit recording: `.memfit`.
    Memfit,
    /// A PyTorch memory snapshot, for memory_viz: `.pickle`, `.pkl`.
    Pickle,
    /// Perfetto trace: `.perfetto-trace`, `.pftrace`.
    Perfetto,
    /// Chrome trace events: `.json`.
    Chrome,
    /// Comma-separated rows: `.csv`.
    Csv,
    /// A JSON object on each line: `.jsonl`.
    Jsonl,
}

impl ConvertFormat {
    /// The format that a file extension selects.
    pub(crate) fn from_extension(path: &std::path::Path) -> Option<Self> {
        Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "memfit" => Self::Memfit,
            "pickle" | "pkl" => Self::Pickle,
            "perfetto-trace" | "pftrace" | "perfetto" => Self::Perfetto,
            "json" => Self::Chrome,
            "csv" => Self::Csv,
            "jsonl" | "ndjson" => Self::Jsonl,
            _ => return None,
        })
    }

    /// Purpose of the format, as the rest of a sentence.
    pub(crate) const fn use_of(self) -> &'static str {
        match self {
            Self::Pickle => "; PyTorch's page memory_viz opens it",
            Self::Perfetto | Self::Chrome => "; the page ui.perfetto.dev opens it",
            Self::Memfit | Self::Csv | Self::Jsonl => "",
        }
    }
}

/// Contents of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConvertRows {
    /// One row per block, with its lifetime.
    #[default]
    Blocks,
    /// One row per event, in order.
    Events,
}
