//! The work of one optimizer step of the training.

use memfit_channel::Planned;
use memfit_channel::message::Training;
use memfit_devices::{Bytes, Device};
use memfit_run::{Card, Ended, Rehearsal, Request, RunError};

/// The size of a training run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Samples in one process's batch.
    pub batch: Option<u64>,
    /// Batches per optimizer step.
    pub accumulation: u64,
    /// Samples in the training's data set.
    pub epoch: Option<u64>,
    /// Bytes of one process's gradients; DDP replicas hold a second copy in buckets.
    pub gradients: u64,
}

impl From<&Training> for Workload {
    fn from(training: &Training) -> Self {
        Self {
            batch: (training.batch > 0).then_some(training.batch),
            accumulation: training.batches.checked_div(training.steps).unwrap_or(1).max(1),
            epoch: training.epoch.filter(|samples| *samples > 0),
            gradients: training.trained,
        }
    }
}

impl Workload {
    /// Determines the training's workload by a run on this GPU with unlimited memory. Needed only for a
    /// script that cannot be forked; runs of other scripts report it themselves.
    pub fn survey(rehearsal: &Rehearsal<'_>, request: &Request, device: &Device) -> Result<Self, RunError> {
        let unlimited = Box::new(device.clone().with_memory(Bytes::UNLIMITED));
        let request = Request {
            card: Card::Virtual(unlimited, 1),
            planned: Some(Planned { measure: true, ..Planned::default() }),
            ..request.clone()
        };
        let outcome = rehearsal.run(&request)?;
        if outcome.facts.ended == Ended::Interrupted {
            return Err(RunError::Interrupted);
        }
        let training = outcome.facts.fullest().and_then(|rank| rank.training.as_ref());
        Ok(training.map_or(Self { accumulation: 1, ..Self::default() }, Self::from))
    }

    /// Samples in an optimizer step of one process.
    pub fn samples_per_step(&self) -> Option<u64> {
        Some(self.batch? * self.accumulation.max(1))
    }
}
