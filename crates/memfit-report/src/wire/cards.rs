//! `memfit.cards/1`: the GPUs on which a script fits, and the time and price of training on each.

use serde::{Deserialize, Serialize};

use super::plan::PlanRun;
use super::run::{Peak, Problem};

/// The report of a comparison of GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardsReport {
    /// [`schema::CARDS`](super::schema::CARDS).
    pub schema: String,
    /// One row for each GPU, count and batch size: rows that fit come first, and each group is in the order
    /// of `sort`.
    pub rows: Vec<CardRow>,
    /// The order of the rows.
    pub sort: CardSort,
    /// The work that `price` pays for; `None` without prices.
    pub priced: Option<PricedWork>,
    /// Runs of the script.
    pub runs: u64,
    /// Duration of the first run in seconds, including the script's imports.
    pub first_run_s: Option<f64>,
    /// Seconds from the start to the answer.
    pub wall_s: f64,
    /// Optimizer steps that ran; for a script without an optimizer, forward passes.
    pub steps: u64,
    /// `torch.__version__`.
    pub torch: Option<String>,
    /// The command.
    pub command: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
    /// Reason why there is no answer.
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
    /// Number of GPUs that train together.
    pub count: u32,
    /// Samples in one process's batch; `None` if neither the script's data nor its arguments show it.
    pub batch: Option<u64>,
    /// The answer.
    pub verdict: CardVerdict,
    /// Peaks of the GPU with the highest device peak. If the script does not fit, peaks with unlimited
    /// memory.
    pub peak: Option<Peak>,
    /// Bytes that stay free at the upper bound of the peak; negative if memory is missing.
    pub headroom: Option<i64>,
    /// The plan with which it fits.
    pub chosen: Option<PlanRun>,
    /// Estimated milliseconds of an optimizer step.
    pub step_ms_estimate: Option<f64>,
    /// Lower bound of the estimate, within the accuracy of the model.
    pub step_ms_low: Option<f64>,
    /// Upper bound of the estimate, within the accuracy of the model.
    pub step_ms_high: Option<f64>,
    /// Samples per second, over all GPUs.
    pub samples_per_s: Option<f64>,
    /// The cheapest offer for this number of these GPUs; `None` without an offer or without a speed.
    pub price: Option<CardPrice>,
    /// `true` if no other row that fits is both cheaper (without prices: has less memory) and faster.
    pub pareto: bool,
    /// Evidence for the verdict.
    pub evidence: CardEvidence,
    /// The command that runs this row alone.
    pub command: Vec<String>,
    /// Assumptions behind this row, or the reason why it has no verdict.
    pub note: Option<String>,
}

impl CardRow {
    /// The command that searches for a plan for this row. A search has its own number of steps.
    pub fn plan_command(&self) -> Vec<String> {
        let own = self.command.iter().take_while(|word| *word != "--").count();
        let mut command = self.command.clone();
        if let Some(verb) = command.get_mut(1) {
            "plan".clone_into(verb);
        }
        let mut place = 0;
        command.retain(|word| {
            place += 1;
            place > own || !word.starts_with("--steps=")
        });
        command
    }
}

/// The answer for a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardVerdict {
    /// Without any change.
    FitsAsIs,
    /// Fits with the plan in `chosen`.
    FitsWithPlan,
    /// Memory runs out.
    DoesNotFit,
    /// Unknown; `note` has the reason.
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

/// Evidence for a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardEvidence {
    /// The script ran on this GPU.
    Run,
    /// The allocator calls of a run on a GPU of the same architecture were replayed with this GPU's memory.
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
    /// Fastest first, by samples per second.
    Time,
    /// The least memory first.
    Memory,
}

/// The work that a price pays for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PricedWork {
    /// Samples in all.
    pub samples: u64,
    /// Epochs, if requested.
    pub epochs: Option<u64>,
    /// The currency of all prices.
    pub currency: String,
}

/// Price of training on one offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardPrice {
    /// Price of the work.
    pub amount: f64,
    /// Price for the lower bound of the step time.
    pub low: f64,
    /// Price for the upper bound of the step time.
    pub high: f64,
    /// Price per hour.
    pub per_hour: f64,
    /// Hours that the work takes.
    pub hours: f64,
    /// Vendor, as named in the price file.
    pub vendor: String,
    /// Vendor's name for the instance, as in the price file.
    pub instance: String,
    /// Number of GPUs in the offer, all of which are paid for.
    pub cards: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_for_a_plan_has_its_own_number_of_steps() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        let command = "memfit run --gpu t4 --steps=5 --synthetic-data -- python train.py --steps=9";
        let row = CardRow {
            gpu: String::new(),
            name: String::new(),
            architecture: String::new(),
            capacity: 0,
            count: 1,
            batch: None,
            verdict: CardVerdict::DoesNotFit,
            peak: None,
            headroom: None,
            chosen: None,
            step_ms_estimate: None,
            step_ms_low: None,
            step_ms_high: None,
            samples_per_s: None,
            price: None,
            pareto: false,
            evidence: CardEvidence::Run,
            command: words(command),
            note: None,
        };
        let expected: Vec<String> =
            words("memfit plan --gpu t4 --synthetic-data -- python train.py --steps=9");
        assert_eq!(row.plan_command(), expected);
    }
}
