//! What a search found.

use memfit_vocabulary::{Label, Training};

use crate::front::{Point, front};
use crate::plan::Expected;
use crate::trial::{Candidate, Outcome};

/// Whether it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Without any change.
    FitsAsIs,
    /// With the plan.
    FitsWithPlan,
    /// With nothing that is allowed.
    DoesNotFit,
}

/// A candidate and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// What was tried.
    pub candidate: Candidate,
    /// What came of it.
    pub outcome: Outcome,
    /// Whether it was run on the card itself, and not only on one with memory without end.
    pub on_card: bool,
}

impl Tried {
    /// Whether it was seen to fit.
    pub fn fits(&self) -> bool {
        self.on_card && self.outcome.fits
    }
}

/// A lever that is not in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Its name.
    pub lever: String,
    /// Why, in figures where there are some.
    pub why: String,
}

/// How far the plan's micro-batch could go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// The most samples together that were seen to fit.
    pub largest: u64,
    /// So many were seen not to fit; nothing where the whole batch fits.
    pub refuted: Option<u64>,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Whether it fits.
    pub verdict: Verdict,
    /// The script as it is: on the card where it fits there, else with memory without end.
    pub baseline: Tried,
    /// The fastest that fits.
    pub chosen: Option<Tried>,
    /// Everything that was tried, in order.
    pub tried: Vec<Tried>,
    /// What was not taken.
    pub rejected: Vec<Rejected>,
    /// How far the micro-batch could go.
    pub limit: Option<Limit>,
    /// What to do or to allow.
    pub advice: Vec<String>,
    /// What the training is.
    pub training: Training,
    /// Runs.
    pub evaluations: u64,
    /// Whether it was ended before it was complete.
    pub interrupted: bool,
}

impl Answer {
    /// What dividing a batch does to this training.
    pub fn label_of_micro_batches(&self) -> Label {
        self.training.label_of_dividing()
    }

    /// The tried ones that no other one beats in both memory and time, the fastest first.
    pub fn front(&self) -> Vec<&Tried> {
        // On the card and without end, the same is one.
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
