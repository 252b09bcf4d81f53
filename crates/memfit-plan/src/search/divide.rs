//! Search for the number of micro-batches and the blocks to recompute: branch and bound, with runs where the
//! prediction does not suffice.
//!
//! For each number of micro-batches, the model predicts the cheapest treatment of blocks that fits, its step
//! time, and a lower bound, since more micro-batches of one batch are no faster than fewer. The candidate
//! with the best prediction is run first, and each run corrects the model; then candidates whose lower bound
//! beats the best known plan. The search ends when there are none.

use memfit_vocabulary::{Lever, Value, format_milliseconds};

use super::{Search, milliseconds};
use crate::answer::Tried;
use crate::choose::Fate;
use crate::levers::may_be_divided;
use crate::predict::{Model, Prediction, Sample, Ways};
use crate::trial::{Candidate, Outcome, Room, Trial};

/// Ratio of measured to predicted step time from which offloading counts as not overlapping.
const UNHIDDEN_RATIO: f64 = 1.2;
/// Maximum number of candidates that are run for a variant, in the order of their predicted times.
const MAX_CANDIDATES: usize = 12;
/// Relative gain in time that is worth a run.
pub(super) const MIN_REL_GAIN: f64 = 0.01;
/// Maximum runs of a variant for candidates that are predicted to be slower but could be faster.
pub(super) const MAX_SLOWER_RUNS: u32 = 5;
/// Relative error of the model within which "nothing fits" is not believed.
const MODEL_REL_ERROR: f64 = 0.1;

/// Search state for one variant.
struct Division {
    model: Model,
    ways: Ways,
    sizes: Vec<(u64, u64)>,
    /// Candidates that were run.
    done: Vec<Candidate>,
    /// Remaining runs for candidates that are predicted to be slower.
    looks: u32,
}

/// Model of a variant that was searched, for estimates of variants that differ by some bytes and
/// milliseconds.
#[derive(Clone, Debug)]
pub(super) struct Divided {
    model: Model,
    ways: Ways,
    sizes: Vec<(u64, u64)>,
}

/// Estimate for a variant with fewer bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate {
    /// Estimated milliseconds of a step.
    pub(super) step_ms: f64,
    /// Division with unknown time that could be faster.
    pub(super) doubt: Option<Doubt>,
}

/// Number of micro-batches that was never run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// Lower bound in milliseconds.
    pub(super) least_ms: f64,
    /// Micro-batch size.
    pub(super) micro_batch: u64,
    /// Micro-batches in a step.
    pub(super) pieces: u64,
}

impl Divided {
    /// Minimum step time with `saved` bytes less, if that fits.
    pub(super) fn estimate(&self, budget: u64, saved: u64, whole: bool) -> Option<Estimate> {
        let sizes = if whole { &self.sizes[..1] } else { &self.sizes };
        let room = budget.saturating_add(saved);
        let each = |(size, pieces): &(u64, u64)| self.model.predict(*size, *pieces, self.ways, room);
        let fitting: Vec<Prediction> = sizes.iter().filter_map(each).collect();
        let step_ms = fitting.iter().map(|prediction| prediction.step_ms).min_by(f64::total_cmp)?;
        let doubt = fitting
            .iter()
            .filter(|prediction| !self.model.was_timed(prediction.pieces) && prediction.least_ms < step_ms)
            .min_by(|a, b| a.least_ms.total_cmp(&b.least_ms))
            .map(|prediction| Doubt {
                least_ms: prediction.least_ms,
                micro_batch: prediction.micro_batch,
                pieces: prediction.pieces,
            });
        Some(Estimate { step_ms, doubt })
    }
}

impl<T: Trial> Search<'_, T> {
    /// Finds the fastest plan that fits with these levers, micro-batches and recomputation; `None` if it is
    /// not faster than the best known one.
    pub(super) fn divide(
        &mut self,
        base: &Candidate,
        whole: &Outcome,
        known: Option<&Tried>,
    ) -> Result<Option<Tried>, T::Error> {
        let mut bar = known.map_or(f64::INFINITY, |known| milliseconds(&known.outcome));
        if milliseconds(whole) >= bar && known.is_some() {
            return Ok(None);
        }
        let batch = whole.training.as_ref().map_or(1, |training| training.batch.max(1));
        let mut division = self.division(base, whole)?;
        self.learn_from_all_recomputed(&mut division, base, whole);
        let mut best = None;
        for _ in 0..MAX_CANDIDATES {
            let budget = self.limits.budget;
            let Some(prediction) = division.next(base, whole, budget, bar) else { break };
            let candidate = candidate(base, whole, &prediction, batch);
            division.done.push(candidate.clone());
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { break };
            let offloads = prediction.choice.fates.contains(&Fate::Offload);
            if outcome.fits {
                let exposed = offloads && milliseconds(&outcome) > prediction.step_ms * UNHIDDEN_RATIO;
                let step_ms = outcome.peak.step_ms.filter(|_| !exposed);
                division.model.learn(&prediction, outcome.peak.device_upper, step_ms);
                if exposed {
                    division.ways.link = None;
                    self.reject(
                        Lever::ActivationOffload.name(),
                        format!(
                            "the copies do not overlap with computing: {} per step where {} were expected",
                            format_milliseconds(milliseconds(&outcome)),
                            format_milliseconds(prediction.step_ms)
                        ),
                    );
                }
                if milliseconds(&outcome) < bar || (best.is_none() && known.is_none()) {
                    bar = milliseconds(&outcome);
                    best = Some(Tried { candidate, outcome, on_card: true });
                }
                if bar.is_infinite() {
                    // Without times there is no criterion.
                    break;
                }
                continue;
            }
            // Measured without a limit, to correct the next prediction.
            let Some(taken) = self.run(&candidate, Room::Boundless)? else { break };
            if taken.fits {
                let bytes = taken.peak.device_upper.max(budget + 1);
                division.model.learn(&prediction, bytes, taken.peak.step_ms);
            } else if offloads {
                division.ways.link = None;
                self.reject(Lever::ActivationOffload.name(), taken.failure());
            } else {
                self.reject(Lever::Checkpointing.name(), taken.failure());
                break;
            }
        }
        let Division { model, ways, sizes, .. } = division;
        self.divided.push((base.clone(), Divided { model, ways, sizes }));
        Ok(best)
    }

    /// Measures the step time of a variant with a number of micro-batches, in a run without a memory limit.
    pub(super) fn measure_step_time(&mut self, base: &Candidate, doubt: Doubt) -> Result<(), T::Error> {
        let Doubt { micro_batch, pieces, .. } = doubt;
        let whole = pieces == 1;
        let candidate = Candidate { micro_batch: (!whole).then_some(micro_batch), pieces, ..base.clone() };
        let step_ms = self.run(&candidate, Room::Boundless)?.and_then(|outcome| outcome.peak.step_ms);
        let known = self.divided.iter_mut().find(|(known, _)| known == base);
        if let (Some(step_ms), Some((_, divided))) = (step_ms, known) {
            divided.model.record_time(pieces, step_ms);
        }
        Ok(())
    }

    /// Candidate with the whole batch and all blocks recomputed, with its prediction; `None` if that is not
    /// allowed or changes nothing.
    pub(super) fn all_recomputed(
        &mut self,
        base: &Candidate,
        whole: &Outcome,
    ) -> Option<(Candidate, Prediction)> {
        let training = whole.training.clone()?;
        let batch = training.batch.max(1);
        let ways = Ways { recompute: self.may_recompute(&training), link: None };
        let large = Sample { micro_batch: batch, pieces: 1, outcome: whole.clone(), training };
        let smallest = Model::new(large, None).smallest(batch, 1, ways);
        let again = candidate(base, whole, &smallest, batch);
        (again != *base).then_some((again, smallest))
    }

    /// Corrects the model by the run with all blocks recomputed, if there was one.
    fn learn_from_all_recomputed(&mut self, division: &mut Division, base: &Candidate, whole: &Outcome) {
        let Some((again, expected)) = self.all_recomputed(base, whole) else { return };
        let known = self.tried.iter().find(|tried| !tried.on_card && tried.candidate == again);
        if let Some(known) = known.filter(|known| known.outcome.fits) {
            let peak = known.outcome.peak;
            division.model.learn(&expected, peak.device_upper, peak.step_ms);
        }
    }

    fn division(&mut self, base: &Candidate, whole: &Outcome) -> Result<Division, T::Error> {
        let training = whole.training.clone().unwrap_or_default();
        let batch = training.batch.max(1);
        let ways = Ways { recompute: self.may_recompute(&training), link: self.limits.way_to_host() };
        let mut divisible = may_be_divided(base).is_ok() && self.may_divide(&training);
        let small = if divisible { self.smaller(base, batch)? } else { None };
        divisible &= !self.is_rejected(Lever::MicroBatch);
        let mut sizes = if divisible { sizes(batch) } else { vec![(batch, 1)] };
        if !training.names.is_empty() {
            // The script's own batches are all of one size, and must add up.
            sizes.retain(|(micro_batch, _)| batch.is_multiple_of(*micro_batch));
        }
        let large = Sample { micro_batch: batch, pieces: 1, outcome: whole.clone(), training };
        Ok(Division {
            model: Model::new(large, small),
            ways,
            sizes,
            done: Vec::new(),
            looks: MAX_SLOWER_RUNS,
        })
    }

    /// Runs a smaller micro-batch, which determines the slopes of the model.
    fn smaller(&mut self, base: &Candidate, batch: u64) -> Result<Option<Sample>, T::Error> {
        let micro_batch = batch.div_ceil(4);
        if micro_batch >= batch {
            return Ok(None);
        }
        let pieces = batch.div_ceil(micro_batch);
        let candidate = Candidate { micro_batch: Some(micro_batch), pieces, ..base.clone() };
        let Some(outcome) = self.run(&candidate, Room::Boundless)? else { return Ok(None) };
        if let Some((lever, why)) =
            outcome.refused.iter().find(|(lever, _)| lever == Lever::MicroBatch.name())
        {
            self.reject(lever.clone(), why.clone());
            return Ok(None);
        }
        let training = outcome.training.clone().filter(|_| outcome.fits);
        Ok(training.map(|training| Sample { micro_batch, pieces, outcome, training }))
    }
}

impl Division {
    /// Next candidate to run; `None` if none could be faster than `bar`.
    fn next(&mut self, base: &Candidate, whole: &Outcome, budget: u64, bar: f64) -> Option<Prediction> {
        let batch = self.sizes.first().map_or(1, |(size, _)| *size);
        let is_new =
            |prediction: &Prediction| !self.done.contains(&candidate(base, whole, prediction, batch));
        let open: Vec<Prediction> = self
            .sizes
            .iter()
            .filter_map(|(size, pieces)| self.model.predict(*size, *pieces, self.ways, budget))
            .filter(is_new)
            .collect();
        let expected = open.iter().filter(|prediction| prediction.step_ms < bar);
        if let Some(fastest) = expected.min_by(|a, b| a.step_ms.total_cmp(&b.step_ms)) {
            return Some(fastest.clone());
        }
        if open.is_empty() && bar.is_infinite() {
            // The model predicts that nothing fits, but may be slightly wrong.
            let (size, pieces) = *self.sizes.last()?;
            let smallest = self.model.smallest(size, pieces, self.ways);
            let near = smallest.choice.peak as f64 <= budget as f64 * (1.0 + MODEL_REL_ERROR);
            return Some(smallest).filter(|prediction| near && is_new(prediction));
        }
        let could_be = open.iter().filter(|prediction| prediction.least_ms < bar * (1.0 - MIN_REL_GAIN));
        let most_promising = could_be.min_by(|a, b| a.least_ms.total_cmp(&b.least_ms))?;
        self.looks = self.looks.checked_sub(1)?;
        Some(most_promising.clone())
    }
}

/// Candidate of a prediction.
fn candidate(base: &Candidate, whole: &Outcome, prediction: &Prediction, batch: u64) -> Candidate {
    let training = whole.training.as_ref();
    let names = |wanted: Fate| -> Vec<String> {
        let blocks = training.map(|training| training.blocks.iter()).into_iter().flatten();
        blocks
            .zip(&prediction.choice.fates)
            .filter(|(_, fate)| **fate == wanted)
            .map(|(block, _)| block.name.clone())
            .collect()
    };
    let mut candidate = base.clone();
    for (fate, lever) in [(Fate::Recompute, Lever::Checkpointing), (Fate::Offload, Lever::ActivationOffload)]
    {
        let names = names(fate);
        if !names.is_empty() {
            candidate = candidate.with_lever(lever, Value::Names(names));
        }
    }
    if prediction.micro_batch < batch {
        candidate.micro_batch = Some(prediction.micro_batch);
        candidate.pieces = prediction.pieces;
    }
    candidate
}

/// Micro-batch sizes with their number of micro-batches: for each number, the smallest size.
pub(super) fn sizes(batch: u64) -> Vec<(u64, u64)> {
    let mut sizes = Vec::new();
    for pieces in 1..=batch {
        let micro_batch = batch.div_ceil(pieces);
        if sizes.last().is_none_or(|(last, _)| *last != micro_batch) {
            sizes.push((micro_batch, batch.div_ceil(micro_batch)));
        }
    }
    sizes
}
