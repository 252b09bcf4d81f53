//! `memfit.ci/1`: the peaks of a project's scripts at two commits, and the lines that grew.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::run::{Peak, Problem};

/// The report of `memfit ci`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CiReport {
    /// [`schema::CI`](super::schema::CI).
    pub schema: String,
    /// One row for each script and GPU, in the order of the settings.
    pub rows: Vec<CiRow>,
    /// The commit of `--base`; `None` for a comparison with the committed baselines.
    pub base: Option<CiCommit>,
    /// The peak that is compared: `device`, `reserved` or `allocated`.
    pub peak: String,
    /// Baselines that were written, relative to the settings file.
    pub accepted: Vec<String>,
    /// Version of memfit.
    pub memfit: String,
    /// Seconds from the start to the answer.
    pub wall_s: f64,
    /// Remarks.
    pub notes: Vec<String>,
    /// Reason why there is no answer at all.
    pub problem: Option<Problem>,
}

/// A commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CiCommit {
    /// Name, as given.
    pub reference: String,
    /// Hash.
    pub commit: String,
}

/// A script on a GPU, in the base and now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CiRow {
    /// The script's name in the settings.
    pub script: String,
    /// The GPU, as named in the settings.
    pub gpu: String,
    /// The command.
    pub command: Vec<String>,
    /// The base side of the comparison.
    pub base: Option<CiSide>,
    /// The working tree.
    pub head: Option<CiSide>,
    /// Growth of the compared peak in bytes; negative if it shrank.
    pub growth: Option<i64>,
    /// The permitted growth in bytes.
    pub permitted: Option<u64>,
    /// The permitted growth as written in the settings.
    pub max_growth: String,
    /// Lines that hold more or less memory at the peak, largest change first.
    pub lines: Vec<CiLine>,
    /// Modules that hold more or less memory at the peak, largest change first.
    pub modules: Vec<CiModule>,
    /// Change of each category at the peak, in bytes.
    pub categories: BTreeMap<String, i64>,
    /// The answer.
    pub verdict: CiVerdict,
    /// Remarks on this row.
    pub notes: Vec<String>,
    /// Reason why this row has no answer.
    pub problem: Option<Problem>,
}

/// One side of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CiSide {
    /// The peaks; if the script does not fit, those of a run with unlimited memory.
    pub peak: Peak,
    /// `true` if it fits on the GPU.
    pub fits: bool,
    /// The largest batch that fits, if the settings ask for it.
    pub largest_batch: Option<u64>,
    /// Estimated milliseconds of an optimizer step.
    pub step_ms_estimate: Option<f64>,
    /// `torch.__version__`.
    pub torch: Option<String>,
    /// Version of memfit.
    pub memfit: String,
}

/// A line at the peak, in the base and now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CiLine {
    /// File, relative to the repository.
    pub file: String,
    /// Current line number; for a line that no longer exists, the base's.
    pub line: u32,
    /// Function.
    pub function: String,
    /// Source text.
    pub text: Option<String>,
    /// Module whose memory changed most on this line.
    pub module: Option<String>,
    /// Category whose memory changed most on this line.
    pub category: String,
    /// Bytes before.
    pub base: u64,
    /// Bytes now.
    pub head: u64,
    /// The difference.
    pub growth: i64,
}

/// A module at the peak, in the base and now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CiModule {
    /// Qualified name.
    pub name: String,
    /// Bytes before.
    pub base: u64,
    /// Bytes now.
    pub head: u64,
    /// The difference.
    pub growth: i64,
}

/// The answer for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CiVerdict {
    /// Within the permitted growth, in either direction.
    Same,
    /// Above the permitted growth, or no longer fits.
    Grew,
    /// Smaller by more than the permitted growth.
    Shrank,
    /// Nothing to compare with.
    New,
    /// No answer; `problem` has the reason.
    Failed,
}

impl CiVerdict {
    /// The verdict in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Grew => "grew",
            Self::Shrank => "shrank",
            Self::New => "new",
            Self::Failed => "failed",
        }
    }
}
