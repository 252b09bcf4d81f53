//! Simplification: of the candidates that are almost as fast as the best, the one with the fewest changes.

use memfit_vocabulary::{Harm, Label, Lever, Training};

use super::divide::MIN_REL_GAIN;
use super::{Search, milliseconds};
use crate::answer::Tried;
use crate::trial::{Candidate, Room, Trial};

/// Maximum number of candidates that are run on the GPU.
const MAX_RUNS: usize = 2;

/// Extent of a candidate's changes: effect on the training results, then number of levers.
fn changes(candidate: &Candidate, training: &Training) -> (Harm, Label, usize) {
    let divided = candidate.micro_batch.is_some();
    let of_dividing = if divided { training.label_of_dividing() } else { Label::Exact };
    let levers = candidate.settings.len() + usize::from(divided);
    (candidate.harm(), candidate.label().max(of_dividing), levers)
}

impl<T: Trial> Search<'_, T> {
    /// Returns the candidate with the fewest changes among those that fit and are almost as fast as the best.
    pub(super) fn simplest(&mut self, best: Tried, training: &Training) -> Result<Tried, T::Error> {
        let enough = milliseconds(&best.outcome) * (1.0 + MIN_REL_GAIN);
        let of_best = changes(&best.candidate, training);
        let may_be = |tried: &&Tried| {
            let outcome = &tried.outcome;
            outcome.fits
                && outcome.refused.is_empty()
                && outcome.peak.device_upper <= self.limits.budget
                && tried.candidate.accumulate == best.candidate.accumulate
                && milliseconds(outcome) <= enough
                && changes(&tried.candidate, training) < of_best
        };
        let mut simpler: Vec<Tried> = self.tried.iter().filter(may_be).cloned().collect();
        simpler.sort_by(|a, b| {
            changes(&a.candidate, training)
                .cmp(&changes(&b.candidate, training))
                .then(milliseconds(&a.outcome).total_cmp(&milliseconds(&b.outcome)))
        });
        simpler.dedup_by(|later, earlier| later.candidate == earlier.candidate);
        for tried in simpler.into_iter().take(MAX_RUNS) {
            let Some(outcome) = self.run(&tried.candidate, Room::Budget)? else { break };
            if outcome.fits && outcome.refused.is_empty() && milliseconds(&outcome) <= enough {
                let simple = Tried { candidate: tried.candidate, outcome, on_card: true };
                self.report_dropped(&best, &simple);
                return Ok(simple);
            }
        }
        Ok(best)
    }

    /// Reports the levers of the fastest candidate that the simplest one omits.
    fn report_dropped(&mut self, fastest: &Tried, simple: &Tried) {
        let mut dropped: Vec<Lever> =
            fastest.candidate.settings.iter().map(|setting| setting.lever).collect();
        dropped.retain(|lever| simple.candidate.value(*lever).is_none());
        if fastest.candidate.micro_batch.is_some() && simple.candidate.micro_batch.is_none() {
            dropped.push(Lever::MicroBatch);
        }
        let share = 1.0 - milliseconds(&fastest.outcome) / milliseconds(&simple.outcome);
        for lever in dropped {
            let why = if share > 0.0 {
                format!(
                    "the plan fits without it, and it would make a step only {:.1} % faster",
                    share * 100.0
                )
            } else {
                "the plan fits without it and is as fast".to_owned()
            };
            self.reject(lever.name(), why);
        }
    }
}
