//! Searches over the ways to spread a single-process training over several GPUs.
//!
//! Each kind of parallelism (replicas, shards, tensor parallelism) is run once without a memory limit. If
//! some fit without further levers, the fastest of them is the plan. Otherwise levers are searched for the
//! one that needs least memory, and then for each one that is faster than the best plan when both have the
//! same levers that cost no time; no further lever could make any other one win. Each new best plan is run as
//! the first and as the last rank, since their shards differ. If it does not fit on the last rank, levers are
//! searched for with that rank, and the resulting plan is run as the first.

use memfit_vocabulary::{
    Bound, Framework, Label, Lever, Parallel, Training, Turn, format_milliseconds, format_size,
};

use super::{forbidden, milliseconds, search};
use crate::answer::{Answer, Rejected, Tried, Verdict};
use crate::levers::entry;
use crate::limits::Limits;
use crate::plan::Expected;
use crate::trial::{Candidate, Outcome, RankTrial, Room, Trial};

/// Name of the parallelism among rejected levers.
const PARALLEL: &str = "parallel";

/// Machines with GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machines {
    /// GPUs of each machine.
    pub gpus: u32,
    /// Number of machines.
    pub count: u32,
}

impl Machines {
    const fn world(self) -> u32 {
        self.gpus.saturating_mul(self.count)
    }
}

/// Searches for the fastest plan for all GPUs of some machines, for a single-process script.
pub fn search_spread<T: RankTrial>(
    trial: &mut T,
    limits: &Limits,
    machines: Machines,
) -> Result<Option<Answer>, T::Error> {
    let as_is = Candidate::as_is();
    let Some(own) = trial.run(&as_is, Room::Budget)? else { return Ok(None) };
    let full = if own.fits { Some(own.clone()) } else { trial.run(&as_is, Room::Boundless)? };
    let Some(full) = full else { return Ok(None) };
    let training = full.training.clone().unwrap_or_default();
    let alone = Limits { cards: 1, ..limits.clone() };
    if !full.fits {
        return search(trial, &alone);
    }
    let mut spread = Spread {
        trial,
        limits: &alone,
        machines,
        training,
        label: Label::Rounding,
        tried: vec![Tried { candidate: as_is, on_card: own.fits, outcome: full }],
        rejected: Vec::new(),
        runs: 1 + u64::from(!own.fits),
        interrupted: false,
    };
    spread.label = spread.training.label_of_dividing().max(Label::Rounding);
    if let Some(why) = spread.why_not() {
        return spread.plan_for_one_gpu(why);
    }
    let found = spread.search()?;
    match found {
        Some(found) => spread.answer(found).map(Some),
        None if spread.interrupted || spread.shared_the_batch() => Ok(Some(spread.finish(None))),
        None => {
            let known = spread.rejected.iter().find(|rejected| rejected.lever == PARALLEL);
            let why = known.map_or("no way to spread it could be run", |rejected| &rejected.why).to_owned();
            spread.plan_for_one_gpu(why)
        }
    }
}

struct Spread<'a, T: RankTrial> {
    trial: &'a mut T,
    limits: &'a Limits,
    machines: Machines,
    training: Training,
    /// Effect of splitting each batch over ranks.
    label: Label,
    tried: Vec<Tried>,
    rejected: Vec<Rejected>,
    runs: u64,
    interrupted: bool,
}

/// A way to spread the training, measured without a memory limit.
struct Way {
    parallel: Parallel,
    outcome: Outcome,
}

impl Way {
    /// Returns `true` if communication takes most of a step.
    fn waits_for_others(&self) -> bool {
        let step_ms = self.outcome.peak.step_ms;
        step_ms.and_then(|step_ms| self.outcome.busy.bound(step_ms)) == Some(Bound::Communication)
    }
}

/// A plan that was run as each of the ranks that differ.
struct Proven {
    /// Result of its run as the first rank.
    tried: Tried,
    ranks: Vec<(u32, Expected)>,
}

impl<T: RankTrial> Spread<'_, T> {
    /// Reason why memfit cannot spread the script; `None` if it can.
    fn why_not(&self) -> Option<String> {
        let training = &self.training;
        if !training.optimizes {
            return Some(
                "the script does not train: start one process per GPU, each with its share of the data"
                    .to_owned(),
            );
        }
        if !training.models.is_empty() {
            return Some("several models train together, and memfit spreads one".to_owned());
        }
        if training.batch < 2 {
            return Some("memfit found no batch whose samples the GPUs could share".to_owned());
        }
        None
    }

    /// Ways to spread the training that memfit can apply and the limits allow. Reasons against the others are
    /// recorded.
    fn allowed_ways(&mut self) -> Vec<Parallel> {
        let (world, batch) = (self.machines.world(), self.training.batch);
        let global = batch * self.training.own_accumulation.max(1);
        if let Some(why) = forbidden(self.label, self.limits.allow) {
            let because = if self.training.couples_samples {
                "batch normalisation would compute its statistics on each GPU's samples".to_owned()
            } else {
                self.training.unverified().unwrap_or_default()
            };
            self.reject(format!("data parallelism is {why}: {because}"));
        }
        let mut ways = Vec::new();
        // A training library replicates or shards over all ranks.
        let by_library = self.training.framework.is_some();
        for tensor in divisors(self.machines.gpus).into_iter().filter(|tensor| *tensor == 1 || !by_library) {
            let batches = world / tensor;
            if batches > 1 && self.label > self.limits.allow {
                continue;
            }
            if !batch.is_multiple_of(u64::from(batches)) {
                if tensor == 1 {
                    self.reject(format!(
                        "{batches} GPUs cannot share the {batch} samples of a batch equally: a batch size that is a multiple of {batches} uses all of them (a step has {global})"
                    ));
                }
                continue;
            }
            let whole = |shard: &u32| !by_library || *shard == 1 || *shard == batches;
            let shards = divisors(batches).into_iter().filter(whole);
            for shard in shards.filter(|shard| self.suits(*shard, tensor)) {
                let way = Parallel { replicate: batches / shard, shard, tensor, ..Parallel::default() };
                ways.push(way);
                if shard > 1 {
                    ways.push(Parallel { reshard_after_forward: false, ..way });
                }
            }
        }
        ways
    }

    /// Returns `true` if a run had its share of the batch: with all levers, it needs less memory than one GPU
    /// alone, so that one is not searched.
    fn shared_the_batch(&self) -> bool {
        let parallel = |tried: &Tried| tried.candidate.parallel;
        self.tried.iter().filter_map(parallel).any(|parallel| parallel.batches() > 1)
    }

    /// Returns `true` if groups of this size divide a machine evenly, or consist of whole machines.
    const fn suits(&self, shard: u32, tensor: u32) -> bool {
        let (size, gpus) = (shard * tensor, self.machines.gpus);
        size <= gpus && gpus.is_multiple_of(size) || size.is_multiple_of(gpus)
    }

    /// Minimum bytes on each rank: its share of the parameters and gradients in 16 bits.
    fn floor(&self, way: &Parallel) -> u64 {
        let (parameters, gradients) =
            (self.training.parameters.max(self.training.trained), self.training.trained);
        (parameters / 2 + gradients / 2) / u64::from(way.shard * way.tensor).max(1)
    }

    fn search(&mut self) -> Result<Option<Proven>, T::Error> {
        let mut ways = Vec::new();
        let mut tensor_refused = false;
        let (data, tensor): (Vec<Parallel>, Vec<Parallel>) =
            self.allowed_ways().into_iter().partition(|way| way.tensor == 1);
        for parallel in data {
            ways.extend(self.measure(parallel)?);
        }
        // Tensor parallelism exchanges activations in each layer. It pays off if nothing else fits, or if the
        // exchange of gradients limits the speed.
        let fitting = ways.iter().filter(|way| self.within_budget(&way.outcome));
        let fastest = fitting.min_by(|a, b| milliseconds(&a.outcome).total_cmp(&milliseconds(&b.outcome)));
        if fastest.is_none_or(Way::waits_for_others) {
            for parallel in tensor {
                if tensor_refused {
                    break;
                }
                let way = self.measure(parallel)?;
                tensor_refused = way.is_none();
                ways.extend(way);
            }
        }
        ways.sort_by(|a, b| milliseconds(&a.outcome).total_cmp(&milliseconds(&b.outcome)));
        if let Some(found) = self.plain(&ways)? {
            return Ok(Some(found));
        }
        self.with_levers(ways)
    }

    /// Runs a way without a memory limit; `None` if it cannot fit or cannot be applied.
    fn measure(&mut self, parallel: Parallel) -> Result<Option<Way>, T::Error> {
        let floor = self.floor(&parallel);
        if floor > self.limits.budget {
            self.reject(format!(
                "{parallel}: parameters and gradients alone take {} on each GPU",
                format_size(floor)
            ));
            return Ok(None);
        }
        let candidate = Candidate { parallel: Some(parallel), ..Candidate::as_is() };
        let Some(outcome) = self.run(&candidate, Room::Boundless)? else { return Ok(None) };
        let refusal = outcome.refused.first().map(|(_, why)| why.clone());
        if let Some(why) = refusal.or_else(|| (!outcome.fits).then(|| outcome.failure())) {
            self.reject(format!("{parallel}: {why}"));
            return Ok(None);
        }
        Ok(Some(Way { parallel, outcome }))
    }

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, T::Error> {
        if self.interrupted || self.limits.reached(self.runs).is_some() {
            self.interrupted = true;
            return Ok(None);
        }
        let Some(outcome) = self.trial.run(candidate, room)? else {
            self.interrupted = true;
            return Ok(None);
        };
        self.runs += 1;
        self.tried.push(Tried {
            candidate: candidate.clone(),
            outcome: outcome.clone(),
            on_card: room == Room::Budget,
        });
        Ok(Some(outcome))
    }

    const fn within_budget(&self, outcome: &Outcome) -> bool {
        outcome.peak.device_upper <= self.limits.budget
    }

    /// The fastest way that fits without any lever.
    fn plain(&mut self, ways: &[Way]) -> Result<Option<Proven>, T::Error> {
        let accumulates = self.wants_accumulation();
        for way in ways {
            if accumulates || !self.within_budget(&way.outcome) {
                continue;
            }
            let candidate = Candidate { parallel: Some(way.parallel), ..Candidate::as_is() };
            let Some(outcome) = self.run(&candidate, Room::Budget)? else { return Ok(None) };
            if !outcome.fits || !outcome.refused.is_empty() {
                continue;
            }
            let proven = self.prove(Tried { candidate, outcome, on_card: true })?;
            if proven.is_some() || self.interrupted {
                return Ok(proven);
            }
        }
        Ok(None)
    }

    /// Runs a plan that fits on the first rank as the last rank.
    fn prove(&mut self, tried: Tried) -> Result<Option<Proven>, T::Error> {
        let mut ranks = vec![(0, tried.outcome.peak)];
        let last = tried.candidate.parallel.unwrap_or_default().world() - 1;
        if last > 0 {
            let Some(outcome) = self.run_rank(&tried.candidate, last)? else { return Ok(None) };
            if !outcome.fits {
                self.reject(format!(
                    "{}: it fits on the first rank, but not on the last",
                    tried.candidate.describe()
                ));
                return Ok(None);
            }
            ranks.push((last, outcome.peak));
        }
        Ok(Some(Proven { tried, ranks }))
    }

    fn run_rank(&mut self, candidate: &Candidate, rank: u32) -> Result<Option<Outcome>, T::Error> {
        let outcome =
            if self.interrupted { None } else { self.trial.run_rank(candidate, Room::Budget, rank)? };
        self.runs += u64::from(outcome.is_some());
        self.interrupted |= outcome.is_none();
        Ok(outcome)
    }

    /// Returns `true` if the requested global batch differs from the script's own.
    fn wants_accumulation(&self) -> bool {
        let own = self.training.batch * self.training.own_accumulation.max(1);
        self.limits.global_batch.is_some_and(|wanted| wanted != own)
    }

    /// The fastest plan with levers.
    fn with_levers(&mut self, ways: Vec<Way>) -> Result<Option<Proven>, T::Error> {
        let mut best: Option<Proven> = None;
        let mut left = ways;
        while !left.is_empty() && !self.interrupted {
            // The smallest first, until something fits; then the fastest.
            let next = match best {
                None => index_of_least(&left, |way| way.outcome.peak.device_upper as f64),
                Some(_) => index_of_least(&left, |way| milliseconds(&way.outcome)),
            };
            let way = left.remove(next);
            if let Some(best) = &best
                && !self.may_beat(&best.tried, &way)?
            {
                continue;
            }
            let bound = best.as_ref().map_or(f64::INFINITY, |best| milliseconds(&best.tried.outcome));
            best = self.proven_levers_of(&way, bound)?.or(best);
        }
        Ok(best)
    }

    /// Returns `true` if a way, with those of the best plan's levers that cost no time and with unlimited
    /// memory, is faster than the best plan. All further levers would make it slower.
    fn may_beat(&mut self, best: &Tried, way: &Way) -> Result<bool, T::Error> {
        let free = |lever: Lever| entry(lever).is_some_and(|entry| entry.search.turn == Turn::Always);
        let mut candidate = Candidate { parallel: Some(way.parallel), ..Candidate::as_is() };
        candidate.accumulate = best.candidate.accumulate;
        candidate.settings =
            best.candidate.settings.iter().filter(|setting| free(setting.lever)).cloned().collect();
        let outcome = if candidate.settings.is_empty() && candidate.accumulate == 1 {
            Some(way.outcome.clone())
        } else {
            self.run(&candidate, Room::Boundless)?
        };
        let bound = milliseconds(&best.outcome);
        Ok(outcome.is_some_and(|outcome| milliseconds(&outcome) < bound))
    }

    /// The fastest plan with levers for a way, if it takes less than `bound` milliseconds and fits on the
    /// first and on the last rank.
    fn proven_levers_of(&mut self, way: &Way, bound: f64) -> Result<Option<Proven>, T::Error> {
        let Some(found) = self.levers_of(way, 0)?.filter(|found| milliseconds(&found.outcome) < bound) else {
            return Ok(None);
        };
        let last = way.parallel.world() - 1;
        let refused = self.rejected.clone();
        let proven = self.prove(found)?;
        if proven.is_some() || self.interrupted {
            return Ok(proven);
        }
        // The last rank needs more memory: a plan that fits there is then run as the first.
        let Some(there) = self.levers_of(way, last)? else { return Ok(None) };
        let Some(outcome) = self.run(&there.candidate, Room::Budget)? else { return Ok(None) };
        if !outcome.fits || !outcome.refused.is_empty() || milliseconds(&outcome) >= bound {
            return Ok(None);
        }
        self.rejected = refused;
        let ranks = vec![(0, outcome.peak), (last, there.outcome.peak)];
        Ok(Some(Proven { tried: Tried { outcome, ..there }, ranks }))
    }

    /// Searches for levers with which a way fits on one of its ranks.
    fn levers_of(&mut self, way: &Way, rank: u32) -> Result<Option<Tried>, T::Error> {
        let batches = u64::from(way.parallel.batches());
        let limits = Limits {
            global_batch: self.limits.global_batch.map(|wanted| wanted / batches),
            unsuited: unsuited(&way.parallel, self.training.framework),
            most_runs: self.limits.most_runs.saturating_sub(self.runs),
            ..self.limits.clone()
        };
        let parallel = way.parallel;
        let mut each = Each { trial: &mut *self.trial, parallel, rank, parts: self.training.parts.clone() };
        let Some(answer) = search(&mut each, &limits)? else {
            self.interrupted = true;
            return Ok(None);
        };
        self.runs += answer.evaluations;
        self.interrupted |= answer.interrupted;
        let of_way = |mut tried: Tried| {
            tried.candidate.parallel = Some(parallel);
            tried
        };
        self.tried.extend(answer.tried.into_iter().map(of_way));
        for rejected in answer.rejected {
            if !self.rejected.iter().any(|known| known.lever == rejected.lever) {
                self.rejected.push(rejected);
            }
        }
        Ok(answer.chosen.filter(|_| answer.verdict != Verdict::DoesNotFit).map(of_way))
    }

    /// Finds the fewest GPUs, and builds the answer.
    fn answer(mut self, proven: Proven) -> Result<Answer, T::Error> {
        let Proven { tried: chosen, ranks } = proven;
        let mut advice: Vec<String> = self.slower_than_one(&chosen).into_iter().collect();
        let fewest = self.fewest(&chosen, &mut advice)?;
        let taken: Vec<&str> = chosen.candidate.settings.iter().map(|setting| setting.lever.name()).collect();
        self.rejected.retain(|rejected| !taken.contains(&rejected.lever.as_str()));
        if chosen.candidate.micro_batch.is_some() {
            self.rejected.retain(|rejected| rejected.lever != Lever::MicroBatch.name());
        }
        advice.push(match self.training.framework {
            None => "pipelines are not searched: `memfit.Step` runs one that you write into the plan; context parallelism cannot be applied".to_owned(),
            Some(framework) => format!(
                "{} can only replicate or shard with its settings here: tensor parallelism and pipelines are not searched",
                framework.title()
            ),
        });
        Ok(Answer { advice, ranks, fewest, ..self.finish(Some(chosen)) })
    }

    /// Describes a plan for all GPUs that is slower than the unchanged script on one.
    fn slower_than_one(&self, chosen: &Tried) -> Option<String> {
        let one = self.tried.first().filter(|tried| tried.fits())?;
        let (one_ms, all_ms) = (milliseconds(&one.outcome), milliseconds(&chosen.outcome));
        (one_ms <= all_ms).then(|| {
            format!(
                "one of these GPUs is faster: the unchanged script fits there and takes {} a step, and {} with {} GPUs, which exchange more than they compute; a larger batch uses them better",
                format_milliseconds(one_ms),
                format_milliseconds(all_ms),
                self.machines.world()
            )
        })
    }

    /// The fewest GPUs on which the plan fits, found by halving their number; the state is fully sharded, and
    /// the micro-batch size stays the same.
    fn fewest(&mut self, chosen: &Tried, advice: &mut Vec<String>) -> Result<Option<u32>, T::Error> {
        let world = self.machines.world();
        let parallel = chosen.candidate.parallel.unwrap_or_default();
        let batch = self.training.batch;
        let samples = chosen.candidate.micro_batch.unwrap_or_else(|| parallel.share(batch)).max(1);
        let mut fewest = world;
        let mut next = world / 2;
        while next >= 1 && fewest.is_multiple_of(2) && parallel.tensor == 1 {
            let part = batch / u64::from(next);
            let micro_batch = (samples < part).then_some(samples);
            if micro_batch.is_some() && self.training.label_of_dividing() > self.limits.allow {
                break;
            }
            let candidate = Candidate {
                micro_batch,
                pieces: part.div_ceil(samples.min(part).max(1)),
                parallel: (next > 1).then(|| Parallel { shard: next, ..Parallel::default() }),
                ..chosen.candidate.clone()
            };
            match self.run(&candidate, Room::Budget)? {
                Some(outcome) if outcome.fits && outcome.refused.is_empty() => fewest = next,
                _ => break,
            }
            next /= 2;
        }
        if fewest < world {
            let are = if fewest == 1 { "is" } else { "are" };
            advice.push(format!(
                "{fewest} of these GPUs {are} enough for the same batch, with {samples} samples at once on each"
            ));
        }
        Ok(Some(fewest))
    }

    /// The plan for one GPU, with the reason why there is none for all.
    fn plan_for_one_gpu(self, why: String) -> Result<Option<Answer>, T::Error> {
        let Some(mut answer) = search(self.trial, self.limits)? else { return Ok(None) };
        answer.rejected.insert(0, Rejected { lever: PARALLEL.to_owned(), why });
        Ok(Some(answer))
    }

    fn finish(self, chosen: Option<Tried>) -> Answer {
        let verdict = if chosen.is_some() { Verdict::FitsWithPlan } else { Verdict::DoesNotFit };
        let baseline = self.tried.first().cloned();
        Answer {
            verdict,
            baseline: baseline.unwrap_or_else(|| Tried {
                candidate: Candidate::as_is(),
                outcome: Outcome::default(),
                on_card: false,
            }),
            chosen,
            tried: self.tried,
            rejected: self.rejected,
            limit: None,
            advice: Vec::new(),
            training: self.training,
            ranks: Vec::new(),
            fewest: None,
            evaluations: self.runs,
            interrupted: self.interrupted,
            run_limit: self.limits.reached(self.runs).filter(|_| self.interrupted),
        }
    }

    fn reject(&mut self, why: String) {
        match self.rejected.iter_mut().find(|rejected| rejected.lever == PARALLEL) {
            Some(rejected) => rejected.why = format!("{}; {why}", rejected.why),
            None => self.rejected.push(Rejected { lever: PARALLEL.to_owned(), why }),
        }
    }
}

/// Trial of one way: candidates of the inner search are spread in that way, and see the samples of one rank.
struct Each<'a, T: RankTrial> {
    trial: &'a mut T,
    parallel: Parallel,
    /// The rank that runs.
    rank: u32,
    /// Evidence from the unchanged script about dividing its batch.
    parts: memfit_vocabulary::Parts,
}

impl<T: RankTrial> Trial for Each<'_, T> {
    type Error = T::Error;

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, T::Error> {
        let spread = Candidate { parallel: Some(self.parallel), ..candidate.clone() };
        let mut outcome = match self.rank {
            0 => self.trial.run(&spread, room)?,
            rank => self.trial.run_rank(&spread, room, rank)?,
        };
        if let Some(training) = outcome.as_mut().and_then(|outcome| outcome.training.as_mut()) {
            training.batch = self.parallel.share(training.batch);
            training.parts.clone_from(&self.parts);
        }
        Ok(outcome)
    }
}

/// Levers that do not work with a kind of parallelism, with reasons.
fn unsuited(parallel: &Parallel, framework: Option<Framework>) -> Vec<(Lever, String)> {
    let in_backward =
        (Lever::OptimizerInBackward, "gradients are not reduced yet when autograd produces them".to_owned());
    let sharding = parallel.shard > 1 || parallel.tensor > 1;
    let excluded = Lever::ALL.iter().filter(|_| sharding).filter_map(|lever| {
        let why = lever.excludes(Lever::Shard).or_else(|| Lever::Shard.excludes(*lever))?;
        Some((*lever, why.to_owned()))
    });
    // `memfit.Step` and the libraries' integrations apply plans on one GPU only.
    let unset = Lever::ALL.iter().filter_map(|lever| {
        let framework = framework?;
        let has_setting = lever.declaration().keywords.iter().any(|known| known.framework == framework);
        let is_set = has_setting || lever.environment().is_some() || *lever == Lever::MicroBatch;
        (!is_set).then(|| (*lever, format!("{} has no setting for it", framework.title())))
    });
    excluded.chain([in_backward]).chain(unset).collect()
}

fn divisors(number: u32) -> Vec<u32> {
    (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).collect()
}

fn index_of_least(ways: &[Way], value: impl Fn(&Way) -> f64) -> usize {
    let indices = ways.iter().enumerate().min_by(|(_, a), (_, b)| value(a).total_cmp(&value(b)));
    indices.map_or(0, |(index, _)| index)
}
