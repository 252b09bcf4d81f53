//! Compilation of the whole model instead of its blocks: operations between blocks are fused too, and with an
//! activation budget the compiler decides what to recompute.
//!
//! A block of such a model cannot be measured, and each run takes as long as compiling the model. It is
//! therefore tried on the best plan, and then with twice the micro-batch size and an activation budget that
//! should make it fit, as long as that is faster.

use memfit_vocabulary::{Lever, Sense, Training, Value, format_milliseconds};

use super::divide::sizes;
use super::rise::{MIN_BUDGET, Rise};
use super::{Search, milliseconds};
use crate::answer::Tried;
use crate::levers::{entry, may_be_divided};
use crate::trial::{Candidate, Outcome, Room, Trial};

/// Name in the list of rejected levers, since compiled blocks may be in the plan.
const WHOLE_MODEL: &str = "compile (the model as a whole)";
/// Maximum number of activation budgets tried.
const MAX_BUDGETS: u32 = 4;
/// Maximum number of other divisions tried if the memory prediction was wrong.
const MAX_GUESSES: u32 = 3;
/// Decrease of the activation budget in hundredths after one did not fit.
const BUDGET_DECREASE: u64 = 20;
/// Maximum ratio of step times for which fewer micro-batches may still be faster.
const MAX_TIME_RATIO: f64 = 1.02;

impl<T: Trial> Search<'_, T> {
    /// Returns the faster of the best plan so far and the model compiled as a whole.
    pub(super) fn as_a_whole(&mut self, best: Tried, training: &Training) -> Result<Tried, T::Error> {
        if self.interrupted
            || !(training.compiled || self.is_applicable(Lever::Compile, training, &best.outcome))
        {
            return Ok(best);
        }
        let base = compiled(&best.candidate, training);
        // Without blocks, this has failed already.
        if self.is_rejected(Lever::Compile) && base.value(Lever::Compile) == Some(&whole_model()) {
            return Ok(best);
        }
        let Some(on_card) = self.run(&base, Room::Budget)? else { return Ok(best) };
        if let Some(why) = failed(&on_card) {
            self.reject(WHOLE_MODEL, why);
            return Ok(best);
        }
        let known = if on_card.fits { Some(on_card.clone()) } else { self.run(&base, Room::Boundless)? };
        let Some(known) = known else { return Ok(best) };
        if !known.fits {
            self.reject(WHOLE_MODEL, known.failure());
            return Ok(best);
        }
        let mut rise = Rise::from_outcome(&base, &known, training);
        let mut fastest = faster(best.clone(), &base, &on_card);
        // If it is not faster with all activations kept, it will not be with more micro-batches or
        // recomputation; with fewer micro-batches it may be.
        let (ms, bar) = (milliseconds(&known), milliseconds(&best.outcome));
        if ms <= bar || (on_card.fits && base.pieces > 1 && ms <= bar * MAX_TIME_RATIO) {
            let pieces;
            (fastest, pieces) = self.in_other_pieces(fastest, &base, &on_card, &mut rise, training)?;
            fastest = self.with_shares(fastest, &base, &on_card, pieces, &rise, training)?;
        }
        if best.candidate.value(Lever::Compile) != Some(&whole_model()) && fastest.candidate == best.candidate
        {
            self.report_whole_model_compile(&best);
        }
        Ok(fastest)
    }

    /// Keeps all activations and searches the smallest number of micro-batches that fits. Returns that
    /// number, if known.
    fn in_other_pieces(
        &mut self,
        mut best: Tried,
        base: &Candidate,
        on_card: &Outcome,
        rise: &mut Rise,
        training: &Training,
    ) -> Result<(Tried, u64), T::Error> {
        // Smallest number that was seen to fit, and largest that was seen not to.
        let mut fits = on_card.fits.then_some(base.pieces);
        let mut refuted = if on_card.fits { 0 } else { base.pieces };
        let is_refused = self.is_rejected(Lever::MicroBatch);
        if fits != Some(1) && !is_refused && may_be_divided(base).is_ok() && self.may_divide(training) {
            for _ in 0..MAX_GUESSES {
                let samples = rise.reaches(self.limits.budget).clamp(1, training.batch.max(1));
                let wanted = training.batch.div_ceil(samples).max(refuted + 1);
                let Some(next) = divisions(training).find(|(_, pieces)| *pieces >= wanted) else { break };
                let candidate = divided(base, training, next);
                if fits.is_some_and(|fits| candidate.pieces >= fits) {
                    break;
                }
                let Some(outcome) = self.run(&candidate, Room::Budget)? else { break };
                if let Some(why) = failed(&outcome) {
                    self.reject(WHOLE_MODEL, why);
                    break;
                }
                best = faster(best, &candidate, &outcome);
                if outcome.fits {
                    fits = Some(candidate.pieces);
                    rise.learn(candidate.micro_batch.unwrap_or(training.batch), outcome.peak.device_upper);
                } else {
                    refuted = candidate.pieces;
                }
            }
        }
        Ok((best, fits.unwrap_or(base.pieces)))
    }

    /// Returns `true` if a lever makes sense for the training and the limits allow it.
    fn is_applicable(&self, lever: Lever, training: &Training, outcome: &Outcome) -> bool {
        let situation = self.limits.situation(training, &outcome.peak);
        entry(lever).is_some_and(|entry| {
            matches!(entry.sense(&situation), Sense::Try(_)) && self.limits.forbid_entry(entry).is_none()
        })
    }

    /// Doubles the micro-batch size, or keeps it if that does not fit, with the largest activation budget
    /// that fits, as long as that is faster.
    fn with_shares(
        &mut self,
        mut best: Tried,
        base: &Candidate,
        on_card: &Outcome,
        fits: u64,
        rise: &Rise,
        training: &Training,
    ) -> Result<Tried, T::Error> {
        if (on_card.fits && fits == 1) || !self.is_applicable(Lever::ActivationBudget, training, on_card) {
            return Ok(best);
        }
        let mut pieces = if on_card.fits { fits.div_ceil(2) } else { base.pieces };
        let mut left = MAX_BUDGETS;
        while let Some(next) = divisions(training).rfind(|(_, of)| *of <= pieces) {
            let divided = divided(base, training, next);
            let Some(found) = self.share_that_fits(&divided, rise, training, &mut left)? else { break };
            if milliseconds(&found.outcome) >= milliseconds(&best.outcome) {
                break;
            }
            best = found;
            if divided.pieces == 1 {
                break;
            }
            pieces = divided.pieces.div_ceil(2);
        }
        Ok(best)
    }

    /// Largest activation budget that fits, of those that are tried.
    fn share_that_fits(
        &mut self,
        divided: &Candidate,
        rise: &Rise,
        training: &Training,
        left: &mut u32,
    ) -> Result<Option<Tried>, T::Error> {
        let samples = divided.micro_batch.unwrap_or(training.batch);
        let Some(mut share) = rise.share(samples, divided.pieces, self.limits.budget) else {
            return Ok(None);
        };
        while share >= MIN_BUDGET && *left > 0 {
            *left -= 1;
            let candidate = divided.with_lever(Lever::ActivationBudget, Value::Count(share));
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { break };
            if let Some(why) = failed(&outcome) {
                self.reject(Lever::ActivationBudget.name(), why);
                break;
            }
            if outcome.fits {
                return Ok(Some(Tried { candidate, outcome, on_card: true }));
            }
            share = share.saturating_sub(BUDGET_DECREASE);
        }
        Ok(None)
    }

    /// Reports the result of compiling the whole model, if the plan does not contain it.
    fn report_whole_model_compile(&mut self, best: &Tried) {
        let is_whole = |tried: &&Tried| {
            tried.outcome.fits && tried.candidate.value(Lever::Compile) == Some(&whole_model())
        };
        let on_the_card = |tried: &Tried| (!tried.fits(), milliseconds(&tried.outcome));
        let nearest = self.tried.iter().filter(is_whole).min_by(|a, b| {
            let (a, b) = (on_the_card(a), on_the_card(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        let Some(nearest) = nearest else { return };
        let too_big = if nearest.fits() { "" } else { "it does not fit where the plan does, and " };
        let why = format!(
            "{too_big}a step takes {} with {}, {} with the plan",
            format_milliseconds(milliseconds(&nearest.outcome)),
            nearest.candidate.describe(),
            format_milliseconds(milliseconds(&best.outcome))
        );
        self.reject(WHOLE_MODEL, why);
    }
}

/// Value of `compile` for the whole model.
fn whole_model() -> Value {
    Value::default()
}

/// Candidate with the model compiled as a whole, by the script if it does so itself, and without other
/// treatment of activations.
fn compiled(plan: &Candidate, training: &Training) -> Candidate {
    let mut base = plan.clone();
    let of_activations = [Lever::Checkpointing, Lever::ActivationOffload, Lever::ActivationBudget];
    base.settings.retain(|setting| !of_activations.contains(&setting.lever));
    // In its old position, so that the result cache recognises it.
    match base.settings.iter_mut().find(|setting| setting.lever == Lever::Compile) {
        Some(setting) => {
            setting.value = whole_model();
            base
        }
        None if training.compiled => base,
        None => base.with_lever(Lever::Compile, whole_model()),
    }
}

fn faster(best: Tried, candidate: &Candidate, outcome: &Outcome) -> Tried {
    if outcome.fits && milliseconds(outcome) < milliseconds(&best.outcome) {
        Tried { candidate: candidate.clone(), outcome: outcome.clone(), on_card: true }
    } else {
        best
    }
}

/// Reason of a failure other than lack of memory.
fn failed(outcome: &Outcome) -> Option<String> {
    let refused = outcome.refused.first().map(|(_, why)| why.clone());
    refused.or_else(|| outcome.problem.as_ref().map(|_| outcome.failure()))
}

/// Divisions of a batch, the fewest micro-batches first.
fn divisions(training: &Training) -> impl DoubleEndedIterator<Item = (u64, u64)> {
    let batch = training.batch.max(1);
    // A script's own batches are all of one size.
    let own = !training.names.is_empty();
    sizes(batch).into_iter().filter(move |(samples, _)| !own || batch.is_multiple_of(*samples))
}

/// Candidate with a division of its batch.
fn divided(base: &Candidate, training: &Training, (samples, pieces): (u64, u64)) -> Candidate {
    let micro_batch = (samples < training.batch.max(1)).then_some(samples);
    Candidate { micro_batch, pieces, ..base.clone() }
}
