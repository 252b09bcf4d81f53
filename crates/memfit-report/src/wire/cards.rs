//! `memfit.cards/1`: the GPUs on which a script fits, and what training on each would take and cost.

use serde::{Deserialize, Serialize};

use super::plan::PlanRun;
use super::run::{Peak, Problem};

/// The report of a comparison of GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardsReport {
    /// [`schema::CARDS`](super::schema::CARDS).
    pub schema: String,
    /// One row for each GPU, count and batch: those that fit first, each group in the order of `sort`.
    pub rows: Vec<CardRow>,
    /// The order of the rows.
    pub sort: CardSort,
    /// The work that `price` pays for; `None` without prices.
    pub priced: Option<PricedWork>,
    /// Runs of the script.
    pub runs: u64,
    /// Seconds that the first run took, with the script's imports.
    pub first_run_s: Option<f64>,
    /// Seconds from the start to the answer.
    pub wall_s: f64,
    /// Optimizer steps that ran; of a script without an optimizer, forward passes.
    pub steps: u64,
    /// `torch.__version__`.
    pub torch: Option<String>,
    /// The command.
    pub command: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Why there is no answer.
    pub problem: Option<Problem>,
}

/// A number of GPUs of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardRow {
    /// The GPU's name in the catalogue.
    pub gpu: String,
    /// The driver's name for it.
    pub name: String,
    /// The generation's name.
    pub architecture: String,
    /// Memory of one GPU in bytes.
    pub capacity: u64,
    /// How many of them train together.
    pub count: u32,
    /// Samples in a batch of one process; `None` where neither the script's data nor its arguments tell.
    pub batch: Option<u64>,
    /// The answer.
    pub verdict: CardVerdict,
    /// The peaks of the fullest GPU. Where the script does not fit, those of a GPU with unlimited memory.
    pub peak: Option<Peak>,
    /// Bytes that the peak leaves free, at its upper bound; negative where they are missing.
    pub headroom: Option<i64>,
    /// The plan with which it fits.
    pub chosen: Option<PlanRun>,
    /// Milliseconds that an optimizer step takes, as an estimate.
    pub step_ms_estimate: Option<f64>,
    /// No less than this, as far as the model goes.
    pub step_ms_low: Option<f64>,
    /// No more than this.
    pub step_ms_high: Option<f64>,
    /// Samples a second of all GPUs together.
    pub samples_per_s: Option<f64>,
    /// The cheapest offer for this many of these GPUs; `None` without an offer, or without a speed.
    pub price: Option<CardPrice>,
    /// `true` if no other row that fits is both cheaper (without prices: on less memory) and faster.
    pub pareto: bool,
    /// How the verdict is known.
    pub evidence: CardEvidence,
    /// The command that tries this row by itself.
    pub command: Vec<String>,
    /// Assumptions of this row, or why it has no verdict.
    pub note: Option<String>,
}

/// The answer for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardVerdict {
    /// Without any change.
    FitsAsIs,
    /// With the plan in `chosen`.
    FitsWithPlan,
    /// Memory runs out.
    DoesNotFit,
    /// It cannot be told; `note` says why.
    Unknown,
}

impl CardVerdict {
    /// Returns `true` if the script trains there.
    pub const fn fits(self) -> bool {
        matches!(self, Self::FitsAsIs | Self::FitsWithPlan)
    }

    /// The verdict in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::FitsAsIs => "fits",
            Self::FitsWithPlan => "fits with a plan",
            Self::DoesNotFit => "does not fit",
            Self::Unknown => "unknown",
        }
    }
}

/// How a verdict is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardEvidence {
    /// The script ran on this GPU.
    Run,
    /// The allocator's calls of a run on a GPU of the same architecture were repeated with this GPU's
    /// memory.
    Replayed,
}

impl CardEvidence {
    /// The word in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Replayed => "replayed",
        }
    }
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardSort {
    /// The cheapest first.
    Price,
    /// The fastest first, by samples a second.
    Time,
    /// The least memory first.
    Memory,
}

/// The work that a price pays for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PricedWork {
    /// Samples in all.
    pub samples: u64,
    /// Epochs, where they were asked for.
    pub epochs: Option<u64>,
    /// The currency of all prices.
    pub currency: String,
}

/// Price of training on one offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardPrice {
    /// For the priced work.
    pub amount: f64,
    /// With the step at its shortest.
    pub low: f64,
    /// With the step at its longest.
    pub high: f64,
    /// For an hour.
    pub per_hour: f64,
    /// Hours that the work takes.
    pub hours: f64,
    /// Vendor, as the price file names it.
    pub vendor: String,
    /// Vendor's name for it, as in the price file.
    pub instance: String,
    /// Cards that the offer has, all of which are paid for.
    pub cards: u32,
}
