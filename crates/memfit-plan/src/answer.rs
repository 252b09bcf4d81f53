//! Result of a search.

use memfit_vocabulary::{Label, Training};

use crate::front::{Point, front};
use crate::plan::Expected;
use crate::trial::{Candidate, Outcome};

/// Verdict of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Fits without any change.
    FitsAsIs,
    /// Fits with the plan.
    FitsWithPlan,
    /// Does not fit with any allowed change.
    DoesNotFit,
}

/// Candidate with its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// Candidate.
    pub candidate: Candidate,
    /// Outcome.
    pub outcome: Outcome,
    /// `true` if it was run within the GPU's memory, `false` if only without a limit.
    pub on_card: bool,
}

impl Tried {
    /// Returns `true` if it ran within the GPU's memory and fitted.
    pub fn fits(&self) -> bool {
        self.on_card && self.outcome.fits
    }
}

/// Lever that is not in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Name.
    pub lever: String,
    /// Reason, with figures if there are any.
    pub why: String,
}

/// Limit of the plan's micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Largest micro-batch that fitted in a run.
    pub largest: u64,
    /// Smallest micro-batch that did not fit in a run; `None` if the whole batch fits.
    pub refuted: Option<u64>,
}

/// Result of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Verdict.
    pub verdict: Verdict,
    /// The unchanged script: on the GPU if it fits there, otherwise without a memory limit.
    pub baseline: Tried,
    /// Fastest plan that fits.
    pub chosen: Option<Tried>,
    /// All candidates tried, in order.
    pub tried: Vec<Tried>,
    /// Levers that were not used.
    pub rejected: Vec<Rejected>,
    /// Limit of the micro-batch.
    pub limit: Option<Limit>,
    /// Advice.
    pub advice: Vec<String>,
    /// Facts about the training.
    pub training: Training,
    /// Ranks as which the chosen plan was run, with their peaks.
    pub ranks: Vec<(u32, Expected)>,
    /// The fewest GPUs on which a run of the chosen plan fitted, if it is for several.
    pub fewest: Option<u32>,
    /// Number of runs.
    pub evaluations: u64,
    /// `true` if the search was ended early.
    pub interrupted: bool,
    /// The limit of runs, if that ended it.
    pub run_limit: Option<u64>,
}

impl Answer {
    /// Effect of micro-batches on the training results.
    pub fn label_of_micro_batches(&self) -> Label {
        self.training.label_of_dividing()
    }

    /// Pareto front of the candidates in memory and time, the fastest first.
    pub fn front(&self) -> Vec<&Tried> {
        // A run within the GPU's memory and one without a limit count as the same.
        let mut known: Vec<&Tried> = Vec::new();
        for tried in &self.tried {
            let completed = tried.outcome.fits && tried.outcome.peak.step_ms.is_some();
            match known.iter_mut().find(|before| before.candidate == tried.candidate) {
                Some(before) if completed && tried.on_card => *before = tried,
                None if completed => known.push(tried),
                Some(_) | None => {}
            }
        }
        let point =
            |peak: &Expected| Point { bytes: peak.device_upper, time: peak.step_ms.unwrap_or(f64::INFINITY) };
        let points: Vec<Point> = known.iter().map(|tried| point(&tried.outcome.peak)).collect();
        front(&points).into_iter().map(|index| known[index]).collect()
    }
}
