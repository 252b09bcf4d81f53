//! How a plan's peak rises with the samples that go through together: in proportion, from what is there
//! whatever goes through. One run tells as much, and each further one corrects it.

use memfit_vocabulary::{Lever, Training};

use crate::trial::{Candidate, Outcome};

/// Shares of activations are hundredths in such steps: a compiler that is told to keep so much keeps a little
/// more or less.
const STEP: u64 = 5;
/// Less than this is computing nearly everything again, which checkpointing does.
pub(super) const LEAST: u64 = 10;

/// The peak as a line over the samples.
pub(super) struct Rise {
    /// Samples, and the peak with them.
    from: (u64, f64),
    /// Bytes more for each sample more.
    each: f64,
    /// Gradients that lie beside the activations once there are several pieces, and were not there in the
    /// run that this is from.
    gradients: f64,
}

impl Rise {
    pub(super) fn of(candidate: &Candidate, outcome: &Outcome, training: &Training) -> Self {
        let told = outcome.training.as_ref().unwrap_or(training);
        let samples = candidate.micro_batch.unwrap_or(training.batch).max(1);
        let peak = outcome.peak.device_upper;
        let outside = peak.saturating_sub(outcome.peak.reserved);
        let held = if keeps_gradients(candidate) { told.trained } else { 0 };
        let several = candidate.pieces > 1 || candidate.accumulate > 1;
        let there = if several { held } else { 0 };
        let fixed = told.parameters.saturating_add(told.state).saturating_add(outside).saturating_add(there);
        let rising = peak.saturating_sub(fixed) as f64;
        Self {
            from: (samples, peak as f64),
            each: rising / samples as f64,
            gradients: held.saturating_sub(there) as f64,
        }
    }

    /// So many samples took so much, in several pieces.
    pub(super) fn learn(&mut self, samples: u64, bytes: u64) {
        let (before, at) = self.from;
        let at = at + std::mem::take(&mut self.gradients);
        let (more, higher) = (samples as f64 - before as f64, bytes as f64 - at);
        if more != 0.0 && higher / more > 0.0 {
            self.each = higher / more;
        }
        self.from = (samples, bytes as f64);
    }

    /// The samples that so many bytes are enough for, the batch being in several pieces.
    pub(super) fn reaches(&self, budget: u64) -> u64 {
        let (samples, bytes) = self.from;
        if self.each <= 0.0 {
            return samples;
        }
        (samples as f64 + (budget as f64 - bytes - self.gradients) / self.each).max(0.0) as u64
    }

    /// The hundredths of what so many samples keep that there is room for; nothing where so few are that the
    /// compiler has no choice.
    pub(super) fn share(&self, samples: u64, pieces: u64, budget: u64) -> Option<u64> {
        let (from, bytes) = self.from;
        let gradients = if pieces > 1 { self.gradients } else { 0.0 };
        let room = budget as f64 - (bytes - self.each * from as f64) - gradients;
        let all = self.each * samples as f64;
        if all <= 0.0 || room <= 0.0 {
            return None;
        }
        let hundredths = ((room / all * 100.0) as u64).min(100 - STEP);
        Some(hundredths / STEP * STEP).filter(|share| *share >= LEAST)
    }
}

/// Whether the gradients of all parameters are there together.
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
        let rise = Rise::of(candidate, &outcome, &training);
        assert_eq!(rise.reaches(800), samples, "{}", candidate.told());
        assert_eq!(rise.share(10, 1, 800), share, "{}", candidate.told());
    }

    #[test]
    fn gradients_lie_beside_what_is_kept_where_there_are_several_pieces() {
        let whole = Candidate::as_is();
        // 300 bytes that are always there, and 100 a sample; a second piece finds 100 of gradients.
        check(&whole, 1300, 4, Some(50));
        let pieces = Candidate { micro_batch: Some(5), pieces: 2, ..Candidate::as_is() };
        check(&pieces, 900, 4, Some(40));
        // Where each is let go at once, there are none.
        let at_once = whole.with(Lever::OptimizerInBackward, Value::default());
        check(&at_once, 1300, 5, Some(50));
    }

    #[test]
    fn what_was_learnt_counts_upward_and_downward() {
        let training = Training { batch: 10, parameters: 100, ..Training::default() };
        let peak = Expected { device_upper: 1100, reserved: 1100, ..Expected::default() };
        let mut rise = Rise::of(&Candidate::as_is(), &Outcome { peak, ..Outcome::default() }, &training);
        assert_eq!(rise.reaches(600), 5);
        rise.learn(5, 700);
        assert_eq!(rise.reaches(600), 3);
        rise.learn(3, 540);
        assert_eq!(rise.reaches(600), 3);
        assert_eq!(rise.reaches(700), 5);
    }
}
