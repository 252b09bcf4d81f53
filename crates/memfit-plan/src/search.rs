//! The search for the fastest plan that fits: few runs, each of which counts.
//!
//! The script is run as it is; where that does not fit, with memory without end, which tells what it would take. Levers that
//! cost nothing are tried one after the other and stay where they make it smaller without making it slower. Then the batch
//! is divided and blocks are computed again, as far as a model of memory and time from two runs says; its best guess is run
//! on the card, what that teaches goes into the model, and so on until nothing that is expected to be faster than the best
//! plan is left. Last, the plan's micro-batch is raised by one to see that it cannot be.

mod help;
mod variants;

use memfit_levers::{Label, Lever};

use crate::answer::{Answer, Limit, Rejected, Tried, Verdict};
use crate::choose::Fate;
use crate::levers::{Turn, may_be_divided};
use crate::predict::{Model, Prediction, Sample, Ways};
use crate::setting::Value;
use crate::trial::{Candidate, Outcome, Room, Training, Trial};

/// Within what a plan has to stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// How far the training may change.
    pub allow: Label,
    /// Bytes of the card that it may take.
    pub budget: u64,
    /// Samples in one optimizer step; nothing where the script's own number stays.
    pub global_batch: Option<u64>,
    /// Which 16-bit type the card computes fast with: bf16, or else fp16.
    pub has_bf16: bool,
    /// Whether its tensor cores take fp32 in fewer bits.
    pub has_tf32: bool,
    /// Whether `torch.compile` is tried, which takes long.
    pub compiles: bool,
    /// Bytes a second between the host and the card; nothing where nothing is to be sent there.
    pub link: Option<f64>,
    /// Runs, at most.
    pub most_runs: u64,
}

/// Where a step with blocks in the host's memory takes so much longer than expected, its copies do not hide.
const UNHIDDEN: f64 = 1.2;
/// How often a prediction may be wrong before the next variant is looked at.
const PATIENCE: usize = 10;

/// Searches for the fastest plan.
pub fn search<T: Trial>(trial: &mut T, limits: &Limits) -> Result<Option<Answer>, T::Error> {
    let mut search = Search {
        trial,
        limits,
        tried: Vec::new(),
        rejected: Vec::new(),
        considered: Vec::new(),
        runs: 0,
        interrupted: false,
    };
    let as_is = Candidate::as_is();
    let Some(own) = search.run(&as_is, Room::Budget)? else { return Ok(None) };
    let wants_more = |training: &Training| {
        limits.global_batch.is_some_and(|wanted| wanted != training.batch * training.own_accumulation.max(1))
    };
    if own.fits && !own.training.as_ref().is_some_and(wants_more) {
        return search.fits_as_is(own).map(Some);
    }
    let Some(full) = search.run(&as_is, Room::Boundless)? else { return Ok(None) };
    if !full.fits {
        return Ok(Some(search.answer(full, None, None, Vec::new())));
    }
    search.plan(full).map(Some)
}

struct Search<'a, T: Trial> {
    trial: &'a mut T,
    limits: &'a Limits,
    tried: Vec<Tried>,
    rejected: Vec<Rejected>,
    /// Levers that pay for memory, with what they came to: they are told where the plan is without them.
    considered: Vec<(Lever, String)>,
    runs: u64,
    interrupted: bool,
}

impl<T: Trial> Search<'_, T> {
    /// Runs a candidate, once in each room; nothing once whoever waits has had enough.
    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, T::Error> {
        let on_card = room == Room::Budget;
        let known = self.tried.iter().find(|tried| tried.on_card == on_card && tried.candidate == *candidate);
        if let Some(known) = known {
            return Ok(Some(known.outcome.clone()));
        }
        if self.interrupted || self.runs >= self.limits.most_runs {
            self.interrupted = true;
            return Ok(None);
        }
        let Some(outcome) = self.trial.run(candidate, room)? else {
            self.interrupted = true;
            return Ok(None);
        };
        self.runs += 1;
        self.tried.push(Tried { candidate: candidate.clone(), outcome: outcome.clone(), on_card });
        Ok(Some(outcome))
    }

    fn reject(&mut self, lever: impl Into<String>, why: impl Into<String>) {
        let rejected = Rejected { lever: lever.into(), why: why.into() };
        if !self.rejected.contains(&rejected) {
            self.rejected.push(rejected);
        }
    }

    fn fits_as_is(mut self, own: Outcome) -> Result<Answer, T::Error> {
        let training = own.training.clone().unwrap_or_default();
        // What would be faster or smaller still is shown, and not done: nobody asked for a change.
        let mut candidate = Candidate::as_is();
        for (entry, value) in self.levers(Turn::First, &training, &own.peak) {
            let Ok(with) = entry.on(&candidate, value) else { continue };
            if let Some(outcome) = self.run(&with, Room::Budget)?
                && outcome.fits
                && outcome.refused.is_empty()
            {
                candidate = with;
            }
        }
        let tried = self.tried.first().cloned();
        Ok(self.answer(own, tried, None, Vec::new()))
    }

    /// The whole of it, for a script that does not fit as it is.
    fn plan(mut self, full: Outcome) -> Result<Answer, T::Error> {
        let training = full.training.clone().unwrap_or_default();
        let mut advice = Vec::new();
        let accumulate = self.accumulation(&training, &mut advice);
        let start = Candidate { accumulate, ..Candidate::as_is() };
        let first = if accumulate > 1 {
            let Some(outcome) = self.run(&start, Room::Boundless)? else {
                return Ok(self.answer(full, None, None, advice));
            };
            outcome
        } else {
            full.clone()
        };
        let mut variants = self.variants(start, first, &training)?;
        let smallest = variants.iter().min_by_key(|(_, outcome)| outcome.peak.device_upper).cloned();
        // The variant that is fastest in itself first: what it finds bounds the others.
        variants.sort_by(|a, b| milliseconds(&a.1).total_cmp(&milliseconds(&b.1)));
        let mut best: Option<Tried> = None;
        for (candidate, outcome) in variants {
            if let Some(found) = self.divide(&candidate, &outcome, best.as_ref())? {
                best = Some(found);
            }
        }
        if let Some(best) = &best {
            self.tell_of_offload(&best.clone(), &training);
        }
        self.tell_of_considered(best.as_ref());
        let limit = match &best {
            Some(best) => self.limit(&best.clone(), &training)?,
            None => None,
        };
        if best.is_none() && !self.interrupted {
            self.what_would_help(&training, &mut advice)?;
            if let Some((candidate, _)) = smallest {
                self.largest_batch(&candidate, &training, &mut advice)?;
            }
        }
        Ok(self.answer(full, best, limit, advice))
    }

    /// The loader's batches in one step, for the samples that are wanted in it.
    fn accumulation(&mut self, training: &Training, advice: &mut Vec<String>) -> u64 {
        let own = training.batch * training.own_accumulation.max(1);
        let Some(wanted) = self.limits.global_batch.filter(|wanted| *wanted != own) else { return 1 };
        if own > 0 && wanted.is_multiple_of(own) {
            return wanted / own;
        }
        advice.push(format!(
            "a global batch of {wanted} is no multiple of the script's own {own}: its loader's batch has to be set in the script"
        ));
        1
    }

    /// The fastest that fits with these levers, of fewer samples together and blocks computed again; nothing if it is not
    /// faster than the best one known.
    fn divide(
        &mut self,
        base: &Candidate,
        whole: &Outcome,
        known: Option<&Tried>,
    ) -> Result<Option<Tried>, T::Error> {
        let training = whole.training.clone().unwrap_or_default();
        let mut bar = known.map_or(f64::INFINITY, |known| milliseconds(&known.outcome));
        if milliseconds(whole) >= bar {
            return Ok(None);
        }
        let batch = training.batch.max(1);
        let by_name = !training.names.is_empty();
        let mut ways = Ways { recompute: self.may_recompute(&training), link: self.limits.link };
        let mut divisible = may_be_divided(base).is_ok() && self.may_divide(&training);
        let small = if divisible { self.smaller(base, batch)? } else { None };
        divisible &= !self.rejected.iter().any(|rejected| rejected.lever == Lever::MicroBatch.name());
        let large = Sample { micro_batch: batch, pieces: 1, outcome: whole.clone(), training };
        let mut model = Model::new(large, small);
        let mut best = None;
        let mut refuted: Vec<Candidate> = Vec::new();
        for _ in 0..PATIENCE {
            let mut sizes = if divisible { sizes(batch) } else { vec![(batch, 1)] };
            if by_name {
                // The script's batches are all of one size, and have to add up.
                sizes.retain(|(micro_batch, _)| batch.is_multiple_of(*micro_batch));
            }
            let fastest = sizes
                .into_iter()
                .filter_map(|(micro_batch, pieces)| {
                    model.predict(micro_batch, pieces, ways, self.limits.budget)
                })
                .map(|prediction| (candidate(base, whole, &prediction, batch), prediction))
                .filter(|(candidate, _)| !refuted.contains(candidate))
                .min_by(|(_, a), (_, b)| a.step_ms.total_cmp(&b.step_ms));
            let Some((candidate, prediction)) = fastest.filter(|(_, prediction)| prediction.step_ms < bar)
            else {
                break;
            };
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { break };
            let offloads = prediction.choice.fates.contains(&Fate::Offload);
            if outcome.fits {
                model.learn(&prediction, outcome.peak.device_upper);
                if offloads && milliseconds(&outcome) > prediction.step_ms * UNHIDDEN {
                    ways.link = None;
                    self.reject(
                        Lever::ActivationOffload.name(),
                        format!(
                            "it does not hide: {:.1} ms a step where {:.1} were expected",
                            milliseconds(&outcome),
                            prediction.step_ms
                        ),
                    );
                }
                if milliseconds(&outcome) < bar {
                    bar = milliseconds(&outcome);
                    best = Some(Tried { candidate: candidate.clone(), outcome, on_card: true });
                }
            } else {
                // What it would have taken, so that the next guess is a better one.
                let Some(taken) = self.run(&candidate, Room::Boundless)? else { break };
                if !taken.fits && offloads {
                    ways.link = None;
                    self.reject(Lever::ActivationOffload.name(), "the script fails with it");
                    refuted.push(candidate);
                    continue;
                }
                if !taken.fits {
                    self.reject(Lever::Checkpointing.name(), "the script fails with it");
                    break;
                }
                model.learn(&prediction, taken.peak.device_upper.max(self.limits.budget + 1));
            }
            refuted.push(candidate);
        }
        Ok(best)
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

    /// Whoever waits has had enough: the fastest of what was seen to take no more than the card has.
    fn best_so_far(&self, training: &Training) -> Option<Tried> {
        let allowed = |tried: &&Tried| {
            let divided = tried.candidate.micro_batch.map_or(Label::Exact, |_| label_of_dividing(training));
            tried.candidate.label().max(divided) <= self.limits.allow
        };
        self.tried
            .iter()
            .filter(|tried| tried.outcome.fits && tried.outcome.refused.is_empty())
            .filter(|tried| tried.outcome.peak.device_upper <= self.limits.budget)
            .filter(allowed)
            .min_by(|a, b| milliseconds(&a.outcome).total_cmp(&milliseconds(&b.outcome)))
            .cloned()
    }

    fn answer(
        self,
        full: Outcome,
        chosen: Option<Tried>,
        limit: Option<Limit>,
        mut advice: Vec<String>,
    ) -> Answer {
        let training = full.training.clone().unwrap_or_default();
        let best_so_far = self.best_so_far(&training).filter(|_| chosen.is_none() && self.interrupted);
        if let Some(best) = &best_so_far {
            advice.push(format!(
                "this was only run with memory without end, of which it took {:.2} GiB: run it once more on the card",
                gib(best.outcome.peak.device_upper)
            ));
        }
        let chosen = chosen.or(best_so_far);
        let verdict = match &chosen {
            Some(chosen) if chosen.candidate == Candidate::as_is() => Verdict::FitsAsIs,
            Some(_) => Verdict::FitsWithPlan,
            None => Verdict::DoesNotFit,
        };
        let on_card = verdict == Verdict::FitsAsIs;
        Answer {
            verdict,
            baseline: Tried { candidate: Candidate::as_is(), outcome: full, on_card },
            chosen,
            tried: self.tried,
            rejected: self.rejected,
            limit,
            advice,
            training,
            evaluations: self.runs,
            interrupted: self.interrupted,
        }
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

/// What dividing a batch does to this training.
pub(crate) fn label_of_dividing(training: &Training) -> Label {
    match training {
        // Nothing is added up where there is no training.
        _ if !training.optimizes => Label::Exact,
        _ if training.couples_samples => Label::ChangesTraining,
        _ => Lever::MicroBatch.label(),
    }
}

fn milliseconds(outcome: &Outcome) -> f64 {
    outcome.peak.step_ms.unwrap_or(f64::INFINITY)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64
}

fn told(without: &Outcome, with: &Outcome) -> String {
    format!(
        "{:.2} GiB and {:.1} ms with it, {:.2} GiB and {:.1} ms without",
        gib(with.peak.device_upper),
        milliseconds(with),
        gib(without.peak.device_upper),
        milliseconds(without)
    )
}

/// The sizes of micro-batch worth a look, with the number of pieces: for each number of pieces the smallest that needs no
/// more of them.
fn sizes(batch: u64) -> Vec<(u64, u64)> {
    let mut sizes = Vec::new();
    for pieces in 1..=batch {
        let micro_batch = batch.div_ceil(pieces);
        if sizes.last().is_none_or(|(last, _)| *last != micro_batch) {
            sizes.push((micro_batch, batch.div_ceil(micro_batch)));
        }
    }
    sizes
}

#[cfg(test)]
mod tests;
