//! Growth of a plan's peak with the micro-batch size: linear, with a constant part. One run determines it,
//! and further ones correct it.

use memfit_vocabulary::{Lever, Training};

use crate::trial::{Candidate, Outcome};

/// Step of activation budgets in hundredths, since a compiler keeps slightly more or less than its budget.
const BUDGET_STEP: u64 = 5;
/// Minimum activation budget in hundredths; less recomputes nearly everything, as checkpointing does.
pub(super) const MIN_BUDGET: u64 = 10;

/// Peak as a line over the micro-batch size.
pub(super) struct Rise {
    /// A micro-batch size with its peak.
    from: (u64, f64),
    /// Bytes for each further sample.
    each: f64,
    /// Bytes of gradients that exist with several micro-batches, and did not in the run that this is from.
    gradients: f64,
}

impl Rise {
    pub(super) fn from_outcome(candidate: &Candidate, outcome: &Outcome, training: &Training) -> Self {
        let facts = outcome.training.as_ref().unwrap_or(training);
        let samples = candidate.micro_batch.unwrap_or(training.batch).max(1);
        let peak = outcome.peak.device_upper;
        let outside = peak.saturating_sub(outcome.peak.reserved);
        let held = if keeps_gradients(candidate) { facts.trained } else { 0 };
        let several = candidate.pieces > 1 || candidate.accumulate > 1;
        let there = if several { held } else { 0 };
        let fixed =
            facts.parameters.saturating_add(facts.state).saturating_add(outside).saturating_add(there);
        let rising = peak.saturating_sub(fixed) as f64;
        Self {
            from: (samples, peak as f64),
            each: rising / samples as f64,
            gradients: held.saturating_sub(there) as f64,
        }
    }

    /// Corrects the line by a measurement with several micro-batches.
    pub(super) fn learn(&mut self, samples: u64, bytes: u64) {
        let (before, at) = self.from;
        let at = at + std::mem::take(&mut self.gradients);
        let (more, higher) = (samples as f64 - before as f64, bytes as f64 - at);
        if more != 0.0 && higher / more > 0.0 {
            self.each = higher / more;
        }
        self.from = (samples, bytes as f64);
    }

    /// Largest micro-batch within a budget, with several micro-batches.
    pub(super) fn reaches(&self, budget: u64) -> u64 {
        let (samples, bytes) = self.from;
        if self.each <= 0.0 {
            return samples;
        }
        (samples as f64 + (budget as f64 - bytes - self.gradients) / self.each).max(0.0) as u64
    }

    /// Activation budget in hundredths for a micro-batch size; `None` if it is too small for the compiler to
    /// have a choice.
    pub(super) fn share(&self, samples: u64, pieces: u64, budget: u64) -> Option<u64> {
        let (from, bytes) = self.from;
        let gradients = if pieces > 1 { self.gradients } else { 0.0 };
        let room = budget as f64 - (bytes - self.each * from as f64) - gradients;
        let all = self.each * samples as f64;
        if all <= 0.0 || room <= 0.0 {
            return None;
        }
        let hundredths = ((room / all * 100.0) as u64).min(100 - BUDGET_STEP);
        Some(hundredths / BUDGET_STEP * BUDGET_STEP).filter(|share| *share >= MIN_BUDGET)
    }
}

/// Returns `true` if the gradients of all parameters exist together.
fn keeps_gradients(candidate: &Candidate) -> bool {
    candidate.value(Lever::OptimizerInBackward).is_none()
}

#[cfg(test)]
mod tests {
    use memfit_vocabulary::Value;

    use super::*;
    use crate::plan::Expected;

    fn check(candidate: &Candidate, peak: u64, samples: u64, share: Option<u64>) {
        let training =
            Training { batch: 10, parameters: 100, trained: 100, state: 200, ..Training::default() };
        let peak = Expected { device_upper: peak, reserved: peak, ..Expected::default() };
        let outcome = Outcome { peak, ..Outcome::default() };
        let rise = Rise::from_outcome(candidate, &outcome, &training);
        assert_eq!(rise.reaches(800), samples, "{}", candidate.describe());
        assert_eq!(rise.share(10, 1, 800), share, "{}", candidate.describe());
    }

    #[test]
    fn gradients_lie_beside_what_is_kept_where_there_are_several_pieces() {
        let whole = Candidate::as_is();
        // 300 constant bytes, and 100 a sample; from the second micro-batch on, 100 of gradients.
        check(&whole, 1300, 4, Some(50));
        let pieces = Candidate { micro_batch: Some(5), pieces: 2, ..Candidate::as_is() };
        check(&pieces, 900, 4, Some(40));
        // With gradients freed at once, there are none.
        let at_once = whole.with_lever(Lever::OptimizerInBackward, Value::default());
        check(&at_once, 1300, 5, Some(50));
    }

    #[test]
    fn measurements_correct_predictions_upward_and_downward() {
        let training = Training { batch: 10, parameters: 100, ..Training::default() };
        let peak = Expected { device_upper: 1100, reserved: 1100, ..Expected::default() };
        let mut rise =
            Rise::from_outcome(&Candidate::as_is(), &Outcome { peak, ..Outcome::default() }, &training);
        assert_eq!(rise.reaches(600), 5);
        rise.learn(5, 700);
        assert_eq!(rise.reaches(600), 3);
        rise.learn(3, 540);
        assert_eq!(rise.reaches(600), 3);
        assert_eq!(rise.reaches(700), 5);
        // Another size with the same peak, and a smaller one with a higher: the slope stays 80.
        rise.learn(4, 540);
        assert_eq!(rise.reaches(700), 6);
        rise.learn(2, 620);
        assert_eq!(rise.reaches(700), 3);
    }
}
