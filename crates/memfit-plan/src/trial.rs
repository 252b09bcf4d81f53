//! Interface between the search and the code that runs candidates.

use memfit_vocabulary::{Bound, Harm, Label, Lever, Parallel, Training, Value};

use crate::plan::{Expected, describe};
use crate::setting::Setting;

/// Candidate to try.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Micro-batch size; `None` keeps the loader's batch.
    pub micro_batch: Option<u64>,
    /// Micro-batches in one optimizer step.
    pub pieces: u64,
    /// Loader batches in one optimizer step (gradient accumulation).
    pub accumulate: u64,
    /// How the training is spread over several GPUs; `None` for one.
    pub parallel: Option<Parallel>,
    /// Levers.
    pub settings: Vec<Setting>,
}

impl Candidate {
    /// The unchanged script.
    pub fn as_is() -> Self {
        Self { pieces: 1, accumulate: 1, ..Self::default() }
    }

    /// Adds a lever.
    #[must_use]
    pub fn with_lever(&self, lever: Lever, value: Value) -> Self {
        let mut settings = self.settings.clone();
        settings.retain(|setting| setting.lever != lever);
        settings.push(Setting { lever, value, label: lever.label() });
        Self { settings, ..self.clone() }
    }

    /// Value of a lever, if the candidate contains it.
    pub fn value(&self, lever: Lever) -> Option<&Value> {
        self.settings.iter().find(|setting| setting.lever == lever).map(|setting| &setting.value)
    }

    /// Effect on training results, without the micro-batch.
    pub fn label(&self) -> Label {
        self.settings.iter().map(|setting| setting.label).max().unwrap_or(Label::Exact)
    }

    /// Degree of harm to the training results.
    pub fn harm(&self) -> Harm {
        self.settings.iter().map(|setting| setting.lever.harm()).max().unwrap_or_default()
    }

    /// Describes the candidate in a few words.
    pub fn describe(&self) -> String {
        describe(self.parallel, self.micro_batch, self.accumulate, &self.settings)
    }
}

/// Memory limit of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The memory that a plan may use.
    Budget,
    /// The same GPU without a memory limit, to measure the need.
    Boundless,
}

/// Outcome of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// `true` if the steps completed.
    pub fits: bool,
    /// `true` if memory ran out and the script recovered by itself.
    pub recovered: bool,
    /// Peaks, and the time of a step with all its micro-batches, even if only some were run.
    pub peak: Expected,
    /// Lower bound of the step time in milliseconds, as far as is known.
    pub step_ms_low: Option<f64>,
    /// Upper bound of the step time.
    pub step_ms_high: Option<f64>,
    /// Work of the GPU in a step.
    pub busy: Busy,
    /// Number of GPUs that the run used.
    pub gpus_used: u32,
    /// Levers that could not be applied, with reasons.
    pub refused: Vec<(String, String)>,
    /// Error type, message and line, if the steps failed for another reason than memory.
    pub problem: Option<String>,
    /// Facts about the training, if the run got far enough.
    pub training: Option<Training>,
}

impl Outcome {
    /// Reason why a run without a memory limit failed.
    pub fn failure(&self) -> String {
        match &self.problem {
            Some(problem) => format!("the script fails with it: {problem}"),
            None => "the script fails with it".to_owned(),
        }
    }
}

/// Milliseconds of a GPU's work in a step; concurrent work counts for each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// Matrix products, convolutions, attention.
    pub compute: f64,
    /// Everything that moves memory.
    pub memory: f64,
    /// Collectives.
    pub communication: f64,
}

impl Busy {
    /// Communication that does not overlap with other work, in a step of this length.
    pub fn exposed(&self, step_ms: f64) -> f64 {
        (step_ms - self.compute - self.memory).clamp(0.0, self.communication)
    }

    /// Part that takes most of a step; `None` if no work is known.
    pub fn bound(&self, step_ms: f64) -> Option<Bound> {
        let parts = [
            (self.compute, Bound::Compute),
            (self.memory, Bound::Memory),
            (self.exposed(step_ms), Bound::Communication),
        ];
        let most = parts.into_iter().max_by(|(a, _), (b, _)| a.total_cmp(b))?;
        (most.0 > 0.0).then_some(most.1)
    }
}

/// Runner of candidates.
pub trait Trial {
    /// Error that prevented a run.
    type Error;

    /// Runs a candidate. Returns `None` after an interrupt.
    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, Self::Error>;
}

/// Runner of candidates that are spread over several GPUs; [`Trial::run`] runs their first rank.
pub trait RankTrial: Trial {
    /// Runs one of the ranks.
    fn run_rank(
        &mut self,
        candidate: &Candidate,
        room: Room,
        rank: u32,
    ) -> Result<Option<Outcome>, Self::Error>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_part_bounds_a_step() {
        let bound =
            |compute, memory, communication, step| Busy { compute, memory, communication }.bound(step);
        assert_eq!(bound(8.0, 3.0, 5.0, 11.0), Some(Bound::Compute), "all of it overlaps");
        assert_eq!(bound(2.0, 3.0, 9.0, 12.0), Some(Bound::Communication));
        assert_eq!(bound(2.0, 3.0, 9.0, 7.0), Some(Bound::Memory), "2 ms are exposed");
        assert_eq!(bound(0.0, 0.0, 0.0, 5.0), None);
        // Waiting for the host is not communication.
        assert!((Busy { compute: 1.0, memory: 1.0, communication: 0.5 }.exposed(50.0) - 0.5).abs() < 1e-9);
    }
}
