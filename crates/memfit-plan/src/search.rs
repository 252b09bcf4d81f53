//! The search for the fastest plan that fits: few runs, each of which counts.
//!
//! The script is run as it is; where that does not fit, with memory without end, which tells what it would take. Levers that
//! cost nothing are tried one after the other and stay where they make it smaller without making it slower. Then the batch
//! is divided and blocks are computed again, as far as a model of memory and time from two runs says; its best guess is run
//! on the card, what that teaches goes into the model, and so on until nothing that is expected to be faster than the best
//! plan is left. Last, the plan's micro-batch is raised by one to see that it cannot be.

use memfit_levers::{Label, Lever};

use crate::answer::{Answer, Limit, Rejected, Tried, Verdict};
use crate::choose::Fate;
use crate::plan::Expected;
use crate::predict::{Model, Prediction, Sample, Ways, exposed_ns};
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
    /// Bytes a second between the host and the card; nothing where nothing is to be sent there.
    pub link: Option<f64>,
    /// Runs, at most.
    pub most_runs: u64,
}

/// A change of time by less than this share is none.
const NOTICEABLE: f64 = 0.005;
/// From so many classes on, what a loss is computed from is worth cutting.
const MANY_CLASSES: u64 = 4096;
/// From this share of what is reserved on, what lies in no block is worth a setting.
const FRAGMENTED: f64 = 0.03;
/// Where a step with blocks in the host's memory takes so much longer than expected, its copies do not hide.
const UNHIDDEN: f64 = 1.2;
/// How often a prediction may be wrong before the next variant is looked at.
const PATIENCE: usize = 10;

/// Searches for the fastest plan.
pub fn search<T: Trial>(trial: &mut T, limits: &Limits) -> Result<Option<Answer>, T::Error> {
    let mut search =
        Search { trial, limits, tried: Vec::new(), rejected: Vec::new(), runs: 0, interrupted: false };
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
        for lever in self.free_levers(&training, &own.peak) {
            let with = candidate.with(lever, Value::default());
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

    /// Levers that are on or off, cost nothing in themselves, and are allowed here.
    fn free_levers(&mut self, training: &Training, peak: &Expected) -> Vec<Lever> {
        let idle = peak.reserved.saturating_sub(peak.allocated) as f64;
        let fragmented = idle > FRAGMENTED * peak.reserved as f64;
        let half = if self.limits.has_bf16 { Lever::AutocastBf16 } else { Lever::AutocastFp16 };
        let mut levers = Vec::new();
        for (lever, makes_sense) in [
            (Lever::FusedOptimizer, training.fusible),
            (Lever::ForeachOff, training.foreach && !training.fusible),
            (Lever::Sdpa, training.explicit_attention),
            (half, !training.reduced),
            (Lever::ChannelsLast, training.convolves),
            (Lever::ChunkedLoss, training.classes >= MANY_CLASSES),
            (Lever::ExpandableSegments, fragmented),
        ] {
            if !makes_sense {
                continue;
            }
            if lever.label() > self.limits.allow {
                self.reject(
                    lever.name(),
                    format!(
                        "not allowed: it is `{}`, and `--allow {}` was asked for",
                        lever.label(),
                        self.limits.allow
                    ),
                );
                continue;
            }
            levers.push(lever);
        }
        levers
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
        let limit = match &best {
            Some(best) => self.limit(&best.clone(), &training)?,
            None => None,
        };
        if best.is_none() && !self.interrupted {
            self.what_would_help(&training, &mut advice)?;
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

    /// The script with the free levers that serve it; more than one where memory and time want different ones.
    fn variants(
        &mut self,
        start: Candidate,
        first: Outcome,
        training: &Training,
    ) -> Result<Vec<(Candidate, Outcome)>, T::Error> {
        let levers = self.free_levers(training, &first.peak);
        let mut variants = vec![(start, first)];
        for lever in levers {
            let mut grown = Vec::new();
            for (candidate, without) in variants {
                let with = candidate.with(lever, Value::default());
                let Some(outcome) = self.run(&with, Room::Boundless)? else {
                    grown.push((candidate, without));
                    continue;
                };
                if let Some((_, why)) = outcome.refused.first() {
                    self.reject(lever.name(), why.clone());
                    grown.push((candidate, without));
                    continue;
                }
                if !outcome.fits {
                    self.reject(lever.name(), "the script fails with it");
                    grown.push((candidate, without));
                    continue;
                }
                let smaller = outcome.peak.device_upper <= without.peak.device_upper;
                let faster = milliseconds(&outcome) <= milliseconds(&without) * (1.0 + NOTICEABLE);
                match (smaller, faster) {
                    (true, true) => grown.push((with, outcome)),
                    (false, false) => {
                        self.reject(lever.name(), told(&without, &outcome));
                        grown.push((candidate, without));
                    }
                    (true, false) | (false, true) => {
                        grown.push((candidate, without));
                        grown.push((with, outcome));
                    }
                }
            }
            variants = few(grown);
        }
        Ok(variants)
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
        let mut divisible = self.may_divide(&training);
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

    fn may_divide(&mut self, training: &Training) -> bool {
        let name = Lever::MicroBatch.name();
        if training.batch == 0 {
            self.reject(name, "the script takes its batches from no DataLoader of torch's, and no variable or argument of its own was found that holds their size");
            return false;
        }
        if training.batch == 1 {
            self.reject(name, "a batch is one sample already");
            return false;
        }
        let label = label_of_dividing(training);
        if label > self.limits.allow {
            let why = if training.couples_samples {
                "batch normalisation would see fewer samples: it is `changes-training` here, which `--allow changes-training` permits".to_owned()
            } else {
                format!("not allowed: it is `{label}`, and `--allow {}` was asked for", self.limits.allow)
            };
            self.reject(name, why);
            return false;
        }
        true
    }

    fn may_recompute(&mut self, training: &Training) -> bool {
        if training.blocks.is_empty() {
            self.reject(
                Lever::Checkpointing.name(),
                "the model has no repeated blocks that could be told from its structure",
            );
        }
        !training.blocks.is_empty()
    }

    /// Why nothing is sent to the host, where a plan computes blocks again.
    fn tell_of_offload(&mut self, best: &Tried, training: &Training) {
        let name = Lever::ActivationOffload.name();
        let settings = &best.candidate.settings;
        let moves = |lever: Lever| settings.iter().any(|setting| setting.lever == lever);
        let (Some(link), Some(block)) =
            (self.limits.link, training.blocks.iter().max_by_key(|block| block.kept))
        else {
            return;
        };
        if moves(Lever::ActivationOffload) || !moves(Lever::Checkpointing) {
            return;
        }
        let way = block.kept as f64 / link * 1e3;
        let exposed = exposed_ns(block.kept, link, block.busy_ns) as f64 / 1e6;
        self.reject(
            name,
            format!(
                "the {:.2} GiB of `{}` take {way:.1} ms each way beside {:.1} ms of computing: {exposed:.1} ms would show, and computing it again takes {:.1} ms",
                gib(block.kept),
                block.name,
                block.busy_ns as f64 / 1e6,
                block.busy_ns as f64 / 1e6
            ),
        );
    }

    /// How many samples together the plan bears: one more than it has, and where that fits, on from there.
    fn limit(&mut self, best: &Tried, training: &Training) -> Result<Option<Limit>, T::Error> {
        let Some(mut largest) = best.candidate.micro_batch else { return Ok(None) };
        let batch = training.batch;
        let mut step = 1;
        let mut refuted = None;
        while largest < batch && refuted.is_none_or(|refuted| refuted > largest + 1) {
            let ceiling = refuted.unwrap_or(batch + 1);
            let next =
                if refuted.is_some() { largest.midpoint(ceiling) } else { (largest + step).min(batch) };
            let candidate = Candidate {
                micro_batch: (next < batch).then_some(next),
                pieces: batch.div_ceil(next),
                ..best.candidate.clone()
            };
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { break };
            if outcome.fits {
                largest = next;
                step *= 2;
            } else {
                refuted = Some(next);
            }
        }
        Ok(Some(Limit { largest, refuted }))
    }

    /// Nothing that is allowed fits: what would.
    fn what_would_help(&mut self, training: &Training, advice: &mut Vec<String>) -> Result<(), T::Error> {
        let mut candidate = Candidate::as_is();
        let half = if self.limits.has_bf16 { Lever::AutocastBf16 } else { Lever::AutocastFp16 };
        let mut levers: Vec<(Lever, Value)> = Vec::new();
        if training.fusible {
            levers.push((Lever::FusedOptimizer, Value::default()));
        }
        if !training.reduced {
            levers.push((half, Value::default()));
        }
        if !training.blocks.is_empty() {
            let names = training.blocks.iter().map(|block| block.name.clone()).collect();
            levers.push((Lever::Checkpointing, Value::Names(names)));
        }
        if training.batch > 1 {
            candidate.micro_batch = Some(1);
            candidate.pieces = training.batch;
        }
        for (lever, value) in levers {
            candidate = candidate.with(lever, value);
        }
        let small = candidate.clone();
        candidate.settings.retain(|setting| setting.lever != Lever::FusedOptimizer);
        let rows = [small, candidate.with(Lever::EightBitOptimizer, Value::default())];
        for candidate in rows {
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { return Ok(()) };
            if outcome.fits && outcome.refused.is_empty() {
                let mut label =
                    candidate.settings.iter().map(|setting| setting.label).max().unwrap_or(Label::Exact);
                if candidate.micro_batch.is_some() {
                    label = label.max(label_of_dividing(training));
                }
                advice.push(format!(
                    "with {} (`--allow {label}`) it fits, at {:.2} GiB",
                    candidate.told(),
                    gib(outcome.peak.device_upper)
                ));
                return Ok(());
            }
        }
        Ok(())
    }

    fn answer(
        self,
        full: Outcome,
        chosen: Option<Tried>,
        limit: Option<Limit>,
        advice: Vec<String>,
    ) -> Answer {
        let training = full.training.clone().unwrap_or_default();
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
    if training.couples_samples { Label::ChangesTraining } else { Lever::MicroBatch.label() }
}

/// The fastest of them and the smallest: more are not worth their runs.
fn few(mut variants: Vec<(Candidate, Outcome)>) -> Vec<(Candidate, Outcome)> {
    if variants.len() > 2 {
        variants.sort_by(|a, b| milliseconds(&a.1).total_cmp(&milliseconds(&b.1)));
        let smallest = variants.iter().skip(1).min_by_key(|(_, outcome)| outcome.peak.device_upper).cloned();
        variants.truncate(1);
        variants.extend(smallest);
    }
    variants
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
