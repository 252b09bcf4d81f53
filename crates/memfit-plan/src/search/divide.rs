//! How far the batch is divided and which blocks are computed again: branch and bound over the numbers of
//! pieces, with runs where a guess does not do.
//!
//! For each number of pieces the model gives the cheapest choice of blocks that fits, what the step is
//! expected to take, and what it takes at least: more pieces of one batch are no faster than fewer. First
//! what is expected to be fastest is run, and each run makes the model better; then what could be faster than
//! the best known, if its guess is wrong. It ends where nothing could.

use memfit_vocabulary::{Lever, Value};

use super::{Search, milliseconds};
use crate::answer::Tried;
use crate::choose::Fate;
use crate::levers::may_be_divided;
use crate::predict::{Model, Prediction, Sample, Ways};
use crate::trial::{Candidate, Outcome, Room, Trial};

/// Where a step with blocks in the host's memory takes so much longer than expected, its copies do not hide.
const UNHIDDEN: f64 = 1.2;
/// How often a prediction may be wrong before the next variant is looked at.
const PATIENCE: usize = 12;
/// What could be faster by less than this share is not worth a run.
pub(super) const NOTICEABLE: f64 = 0.01;
/// So many runs of one variant are of what is expected to be slower, and could be faster.
pub(super) const LOOKS: u32 = 5;
/// The model is not believed where it says that nothing fits by less than this share.
const DOUBT: f64 = 0.1;

/// A way to divide a batch, with what is known of it.
struct Division {
    model: Model,
    ways: Ways,
    sizes: Vec<(u64, u64)>,
    /// What was run already.
    done: Vec<Candidate>,
    /// How often what is expected to be slower may still be run.
    looks: u32,
}

/// What is known of a variant once it was divided: what another one comes to that differs by so many bytes
/// and milliseconds.
#[derive(Clone, Debug)]
pub(super) struct Divided {
    model: Model,
    ways: Ways,
    sizes: Vec<(u64, u64)>,
}

/// What a variant that was divided comes to with so many bytes fewer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate {
    /// Milliseconds of a step, as far as can be told.
    pub(super) step_ms: f64,
    /// A way to divide it that could be faster than that, where its time is not known.
    pub(super) doubt: Option<Doubt>,
}

/// So many pieces were never run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// A step takes no less than this.
    pub(super) least_ms: f64,
    /// Samples together.
    pub(super) micro_batch: u64,
    /// How often in a step.
    pub(super) pieces: u64,
}

impl Divided {
    /// The least that a step takes with so many bytes fewer, where that fits at all.
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
    /// The fastest that fits with these levers, of fewer samples together and blocks computed again; nothing
    /// if it is not faster than the best one known.
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
        self.learn_of_all_again(&mut division, base, whole);
        let mut best = None;
        for _ in 0..PATIENCE {
            let budget = self.limits.budget;
            let Some(prediction) = division.next(base, whole, budget, bar) else { break };
            let candidate = candidate(base, whole, &prediction, batch);
            division.done.push(candidate.clone());
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { break };
            let offloads = prediction.choice.fates.contains(&Fate::Offload);
            if outcome.fits {
                let exposed = offloads && milliseconds(&outcome) > prediction.step_ms * UNHIDDEN;
                let step_ms = outcome.peak.step_ms.filter(|_| !exposed);
                division.model.learn(&prediction, outcome.peak.device_upper, step_ms);
                if exposed {
                    division.ways.link = None;
                    self.reject(
                        Lever::ActivationOffload.name(),
                        format!(
                            "the copies do not overlap with computing: {:.1} ms per step where {:.1} were expected",
                            milliseconds(&outcome),
                            prediction.step_ms
                        ),
                    );
                }
                if milliseconds(&outcome) < bar || (best.is_none() && known.is_none()) {
                    bar = milliseconds(&outcome);
                    best = Some(Tried { candidate, outcome, on_card: true });
                }
                if bar.is_infinite() {
                    // Without times there is nothing to choose by.
                    break;
                }
                continue;
            }
            // What it would have taken, so that the next guess is a better one.
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

    /// Runs a variant in so many pieces, to know how long that takes, whether it fits or not.
    pub(super) fn look(&mut self, base: &Candidate, doubt: Doubt) -> Result<(), T::Error> {
        let Doubt { micro_batch, pieces, .. } = doubt;
        let whole = pieces == 1;
        let candidate = Candidate { micro_batch: (!whole).then_some(micro_batch), pieces, ..base.clone() };
        let step_ms = self.run(&candidate, Room::Boundless)?.and_then(|outcome| outcome.peak.step_ms);
        let known = self.divided.iter_mut().find(|(known, _)| known == base);
        if let (Some(step_ms), Some((_, divided))) = (step_ms, known) {
            divided.model.timed(pieces, step_ms);
        }
        Ok(())
    }

    /// A variant's whole batch with all blocks computed again, and what is expected of it; nothing where that
    /// may not be, or changes nothing.
    pub(super) fn all_again(&mut self, base: &Candidate, whole: &Outcome) -> Option<(Candidate, Prediction)> {
        let training = whole.training.clone()?;
        let batch = training.batch.max(1);
        let ways = Ways { recompute: self.may_recompute(&training), link: None };
        let large = Sample { micro_batch: batch, pieces: 1, outcome: whole.clone(), training };
        let smallest = Model::new(large, None).smallest(batch, 1, ways);
        let again = candidate(base, whole, &smallest, batch);
        (again != *base).then_some((again, smallest))
    }

    /// Where that was run, it is known how far the peak goes down with the blocks.
    fn learn_of_all_again(&mut self, division: &mut Division, base: &Candidate, whole: &Outcome) {
        let Some((again, expected)) = self.all_again(base, whole) else { return };
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
            // The script's batches are all of one size, and have to add up.
            sizes.retain(|(micro_batch, _)| batch.is_multiple_of(*micro_batch));
        }
        let large = Sample { micro_batch: batch, pieces: 1, outcome: whole.clone(), training };
        Ok(Division { model: Model::new(large, small), ways, sizes, done: Vec::new(), looks: LOOKS })
    }

    /// A run with fewer samples together, from which slopes follow.
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
    /// What is to be run next; nothing where nothing could be faster than `bar`.
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
            // The model says that nothing fits: it may be wrong by a little.
            let (size, pieces) = *self.sizes.last()?;
            let smallest = self.model.smallest(size, pieces, self.ways);
            let near = smallest.choice.peak as f64 <= budget as f64 * (1.0 + DOUBT);
            return Some(smallest).filter(|prediction| near && is_new(prediction));
        }
        let could_be = open.iter().filter(|prediction| prediction.least_ms < bar * (1.0 - NOTICEABLE));
        let most_promising = could_be.min_by(|a, b| a.least_ms.total_cmp(&b.least_ms))?;
        self.looks = self.looks.checked_sub(1)?;
        Some(most_promising.clone())
    }
}

/// The candidate that a prediction is of.
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
            candidate = candidate.with(lever, Value::Names(names));
        }
    }
    if prediction.micro_batch < batch {
        candidate.micro_batch = Some(prediction.micro_batch);
        candidate.pieces = prediction.pieces;
    }
    candidate
}

/// The sizes of micro-batch worth a look, with the number of pieces: for each number of pieces the smallest
/// that needs no more of them.
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
