//! Determines the verdicts on many GPUs from few runs.
//!
//! Each architecture's representative runs once with unlimited memory. The recorded allocator calls are then
//! replayed with the memory of each other GPU. The script runs on a GPU itself if a replay is not conclusive:
//!
//! * the verdict would change with a little more or less memory ([`edge`]), or within the difference that the
//!   number of multiprocessors makes ([`Spread`]);
//! * the script fits only because the allocator releases cached memory;
//! * the script catches an out-of-memory error and continues, or queries the GPU's memory size;
//! * no run has shown yet whether the script catches an error in that part of the training.
//!
//! A GPU between two of those needs no run if their allocators made the same calls with the same results, and
//! the script does not query the GPU's memory size ([`Judge::between`]).
//!
//! [`Judge::decide`] returns the verdict or the run that it still needs. Independent runs are made
//! concurrently.

use memfit_channel::message::Training;
use memfit_devices::{Bytes, ComputeCapability, Device};
use memfit_recording::Track;
use memfit_report::wire::{CardEvidence, Peak, Problem, ProblemKind, RunReport, Verdict};
use memfit_run::{
    Card, Changes, Console, Ended, Outcome, Progress, Rehearsal, Replayed, Request, RunError, report,
};

use crate::architecture::{Architecture, largest_first};
use crate::needs::{Need, chosen};
use crate::replay::{Replay, Site, path};

/// A replay is conclusive if its outcome is the same with one `EDGE_DIVISOR`-th of the GPU's memory more or
/// less, and with [`MIN_EDGE`] more or less.
const EDGE_DIVISOR: u64 = 100;
/// Bytes.
const MIN_EDGE: u64 = 128 << 20;
/// Some kernels' workspaces grow with the number of multiprocessors. That growth is measured only if one
/// `UNMEASURED_SPREAD_DIVISOR`-th of the peak more or less would change the outcome.
const UNMEASURED_SPREAD_DIVISOR: u64 = 4;
/// Number of architectures that may fail, while none succeeds, before the script is assumed to fail
/// everywhere.
const MAX_FAILED: usize = 2;

/// The verdict on one GPU.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The GPU.
    pub device: Device,
    /// The report of a run on it, or the equivalent derived from other runs.
    pub report: RunReport,
    /// The peaks with unlimited memory, if such a run was possible.
    pub needed: Option<Peak>,
    /// Evidence for the verdict.
    pub evidence: CardEvidence,
    /// Samples before and after, if the script reduced its batch after memory had run out.
    pub reduced_batch: Option<(u64, u64)>,
}

/// The recorded runs of one architecture with unlimited memory: the representative's and, if it was needed,
/// that of the GPU with the fewest multiprocessors.
#[derive(Debug)]
struct Recorded {
    capability: ComputeCapability,
    samples: Vec<Ran>,
}

/// A run on one GPU.
#[derive(Debug)]
struct Ran {
    device: Device,
    /// The GPUs for which step times were estimated during the run, its own first.
    cards: Vec<Device>,
    outcome: Outcome,
    report: RunReport,
    /// The replayable calls; `None` if every GPU needs its own run.
    replay: Option<Replay>,
    /// Digest of the allocator's calls and their results; `None` if a single digest does not represent the
    /// run.
    path: Option<u64>,
}

/// Effect of the number of multiprocessors on the peaks of an architecture's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    /// At most this many bytes, as measured.
    Known(u64),
    /// Not measured yet.
    Unmeasured,
    /// The runs that should measure it are not comparable.
    Unknown,
}

/// Result of a replay.
enum ReplayOutcome {
    /// The outcome is the same with `allowance` bytes more or less.
    Yes(Replayed),
    /// Memory runs out in a part of the training where no run has shown yet whether the script catches the
    /// error.
    Unseen(Site),
    /// The outcome changes with `allowance` bytes more or less.
    No,
}

/// Judges GPUs for one command. Each method gets the command's [`Rehearsal`].
#[derive(Debug)]
pub struct Judge {
    request: Request,
    /// Sorted by the number of GPUs, largest first.
    architectures: Vec<Architecture>,
    recorded: Vec<Recorded>,
    /// Runs on GPUs with their own memory size.
    ran: Vec<Ran>,
    /// `true` if the script runs on every GPU.
    proves_all: bool,
    /// `true` if the script has been seen to catch an out-of-memory error.
    catches: bool,
    /// The parts of a training run in which an out-of-memory error has been seen to end the script.
    fatal: Vec<Site>,
    /// The first successful run, after further runs showed whether numbers that only a GPU can compute have
    /// an effect.
    settled: Option<Outcome>,
    progress: Box<dyn Progress>,
    runs: u64,
}

impl Judge {
    /// Creates a judge for these GPUs. The request's own GPU is ignored. `proves_all` runs the script on each
    /// GPU.
    pub fn new(request: &Request, devices: &[Device], proves_all: bool, console: &dyn Console) -> Self {
        Self {
            request: request.clone(),
            architectures: largest_first(devices),
            recorded: Vec::new(),
            ran: Vec::new(),
            proves_all,
            catches: false,
            fatal: Vec::new(),
            settled: None,
            progress: console.progress(),
            runs: 0,
        }
    }

    /// Number of runs so far.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Runs one architecture after another until the script succeeds on one. Returns the problem of a script
    /// that fails on several for reasons other than the GPU.
    pub fn start(&mut self, rehearsal: &Rehearsal<'_>) -> Result<Option<Problem>, RunError> {
        let mut failures = 0;
        for place in 0..self.architectures.len() {
            let capability = self.architectures[place].capability;
            self.make_runs(rehearsal, vec![Need::Representative(capability)])?;
            let Some(report) = self.recorded(capability).map(|recorded| &recorded.samples[0].report) else {
                continue;
            };
            if report.verdict != Verdict::Error {
                return Ok(None);
            }
            let problem = report.problem.clone();
            failures += usize::from(
                problem.as_ref().is_some_and(|problem| problem.kind != ProblemKind::NoKernelsForCard),
            );
            if failures >= MAX_FAILED {
                return Ok(problem);
            }
        }
        Ok(None)
    }

    /// The facts about the training from the first run that reported any, and the GPU of the first successful
    /// run.
    pub(crate) fn training(&self) -> Option<(&Device, Option<&Training>)> {
        let mut through = self
            .recorded
            .iter()
            .map(|recorded| &recorded.samples[0])
            .filter(|sample| sample.report.verdict != Verdict::Error);
        let first = through.next()?;
        let has_facts =
            |sample: &'_ Ran| sample.outcome.facts.fullest().is_some_and(|rank| rank.training.is_some());
        let reporting =
            std::iter::once(first).chain(through).find(|sample| has_facts(sample)).unwrap_or(first);
        Some((&first.device, reporting.outcome.facts.fullest().and_then(|rank| rank.training.as_ref())))
    }

    /// The verdict on a GPU.
    pub fn judge(&mut self, rehearsal: &Rehearsal<'_>, device: &Device) -> Result<Judged, RunError> {
        loop {
            match self.decide(device) {
                Ok(judged) => return Ok(*judged),
                Err(need) => self.make_runs(rehearsal, vec![need])?,
            }
        }
    }

    /// The verdicts on GPUs, in the given order.
    pub fn judge_all(
        &mut self,
        rehearsal: &Rehearsal<'_>,
        devices: &[Device],
    ) -> Result<Vec<Judged>, RunError> {
        let mut judged: Vec<Option<Judged>> = devices.iter().map(|_| None).collect();
        loop {
            let mut needs = Vec::new();
            for (device, place) in devices.iter().zip(&mut judged) {
                if place.is_none() {
                    match self.decide(device) {
                        Ok(found) => *place = Some(*found),
                        Err(need) => needs.push(need),
                    }
                }
            }
            if needs.is_empty() {
                return Ok(judged.into_iter().flatten().collect());
            }
            let tried: Vec<(ComputeCapability, u64)> = self
                .ran
                .iter()
                .map(|ran| (ran.device.compute_capability, self.limit(&ran.device).unwrap_or(0)))
                .collect();
            self.make_runs(rehearsal, chosen(needs, &tried))?;
        }
    }

    /// Returns `true` if the script fits in a run on this GPU.
    pub fn proves(&mut self, rehearsal: &Rehearsal<'_>, device: &Device) -> Result<bool, RunError> {
        if self.ran_on(device).is_none() {
            self.make_runs(rehearsal, vec![Need::Run(Box::new(device.clone()))])?;
        }
        Ok(self.ran_on(device).is_some_and(|ran| ran.report.verdict == Verdict::Fits))
    }

    /// The verdict on a GPU from the runs so far, or else the run that it still needs.
    fn decide(&self, device: &Device) -> Result<Box<Judged>, Need> {
        let capability = device.compute_capability;
        let Some(recorded) = self.recorded(capability) else {
            return Err(Need::Representative(capability));
        };
        let first = &recorded.samples[0];
        if first.report.verdict == Verdict::Error {
            return Ok(Box::new(self.failed(device, &first.outcome)));
        }
        let (reduced_batch, report, evidence) = if let Some(ran) = self.ran_on(device) {
            (ran.reduced_batch(), ran.report.clone(), CardEvidence::Run)
        } else if self.proves_all {
            return Err(Need::Run(Box::new(device.clone())));
        } else {
            let (reduced_batch, report) = match self.replayed(recorded, device) {
                Err(Need::Run(_)) => self.between(recorded, device)?,
                Err(Need::Unseen(..)) if self.catches => self.between(recorded, device)?,
                replayed => (None, replayed?),
            };
            (reduced_batch, report, CardEvidence::Replayed)
        };
        let needed = Some(needed(recorded.sample(device), device));
        Ok(Box::new(Judged { device: device.clone(), report, needed, evidence, reduced_batch }))
    }

    /// The verdict on a GPU whose architecture's representative run failed.
    fn failed(&self, device: &Device, outcome: &Outcome) -> Judged {
        let request = self.request_on(device.clone());
        let stands_for_itself =
            self.architectures.iter().any(|architecture| architecture.representative().id == device.id);
        let evidence = if stands_for_itself { CardEvidence::Run } else { CardEvidence::Replayed };
        Judged {
            device: device.clone(),
            report: report(&request, outcome),
            needed: None,
            evidence,
            reduced_batch: None,
        }
    }

    /// The report on a GPU derived by a replay, or else the run that is needed.
    fn replayed(&self, recorded: &Recorded, device: &Device) -> Result<RunReport, Need> {
        let run = || Need::Run(Box::new(device.clone()));
        let sample = recorded.sample(device);
        let own_edge = edge(device.memory.get()) + 2 * sample.outcome.pending();
        let spread = self.spread(recorded, device);
        let allowance = match spread {
            Spread::Known(spread) => own_edge + 2 * spread,
            Spread::Unmeasured => own_edge + sample.report.peak.reserved / UNMEASURED_SPREAD_DIVISOR,
            Spread::Unknown => return Err(run()),
        };
        let replayed = match self.replay_outcome(sample, device, allowance).ok_or_else(run)? {
            ReplayOutcome::Yes(replayed) => replayed,
            ReplayOutcome::Unseen(site) => return Err(Need::Unseen(site, Box::new(device.clone()))),
            ReplayOutcome::No if spread == Spread::Unmeasured => {
                let path = sample.path;
                return Err(self.fewest(recorded.capability).map_or_else(run, |fewest| Need::Fewest {
                    capability: recorded.capability,
                    sm_count: fewest.sm_count,
                    path,
                }));
            }
            ReplayOutcome::No => return Err(run()),
        };
        let request = self.request_on(device.clone());
        let mut outcome = sample.outcome.on_other_gpu(&request, replayed, sample.place(device));
        if let Some(settled) = &self.settled {
            outcome.copy_value_findings(settled);
        }
        // Only runs show whether sizes that the script reads matter.
        if outcome.depends_on_sizes(&request) {
            return Err(run());
        }
        let report = report(&request, &outcome);
        // Doubts about the whole run (sizes and numbers that it read) do not apply to a run that ends
        // earlier.
        let is_sound = replayed.ran_out.is_none() || report.verdict == Verdict::Oom;
        if is_sound { Ok(report) } else { Err(run()) }
    }

    /// Replays a run on a GPU, and tests whether `allowance` bytes more or less change the outcome; `None` if
    /// the run cannot be replayed.
    fn replay_outcome(&self, sample: &Ran, device: &Device, allowance: u64) -> Option<ReplayOutcome> {
        let replay = sample.replay.as_ref()?;
        let limit = sample.limit(device);
        if sample.report.peak.reserved.saturating_add(allowance) <= limit {
            return Some(ReplayOutcome::Yes(replay.within(limit).0));
        }
        let (with_less, site) = replay.within(limit.saturating_sub(allowance));
        let (Some(_), Some(site)) = (with_less.ran_out, site) else { return Some(ReplayOutcome::No) };
        if replay.within(limit.saturating_add(allowance)).0.ran_out.is_none() {
            return Some(ReplayOutcome::No);
        }
        // The script's reaction to the error is known only for parts of the training where one has
        // occurred.
        Some(if !self.catches && self.fatal.contains(&site) {
            ReplayOutcome::Yes(replay.within(limit).0)
        } else {
            ReplayOutcome::Unseen(site)
        })
    }

    /// Derives the report on a GPU from runs of its architecture whose allocators made the same calls with
    /// the same results, if their memory sizes and numbers of multiprocessors enclose those of the GPU. A
    /// request that succeeds with less memory succeeds with more, and one that fails with more fails with
    /// less, so the calls in between are the same. The number is [`Judged::reduced_batch`].
    fn between(&self, recorded: &Recorded, device: &Device) -> Result<(Option<(u64, u64)>, RunReport), Need> {
        let is_plain =
            |ran: &Ran| ran.path.is_some() && !ran.outcome.asks_size() && ran.outcome.pending() == 0;
        let sample = recorded.sample(device);
        if !is_plain(sample) {
            return Err(Need::Run(Box::new(device.clone())));
        }
        let place = |device: &Device| (sample.limit(device), device.sm_count);
        let (limit, sm_count) = place(device);
        let runs = self
            .ran
            .iter()
            .filter(|ran| ran.device.compute_capability == recorded.capability && is_plain(ran));
        let is_enclosed = |ran: &&Ran| {
            let alike = || runs.clone().filter(|other| other.path == ran.path).map(|ran| place(&ran.device));
            alike().any(|(there, _)| there <= limit)
                && alike().any(|(there, _)| there >= limit)
                && alike().any(|(_, count)| count <= sm_count)
                && alike().any(|(_, count)| count >= sm_count)
        };
        let Some(ran) = runs.clone().find(is_enclosed) else {
            return Err(Need::Between(limit, Box::new(device.clone())));
        };
        let request = self.request_on(device.clone());
        let moved = ran.outcome.on_other_gpu_as_recorded(&request, ran.place(device));
        Ok((ran.reduced_batch(), report(&request, &moved)))
    }

    /// Effect of the number of multiprocessors on the peak, between a GPU and the run that represents it. If
    /// two architectures made the same requests, they used the same kernels; workspaces measured on one then
    /// hold for the other.
    fn spread(&self, recorded: &Recorded, device: &Device) -> Spread {
        let sample = recorded.sample(device);
        if sample.device.sm_count == device.sm_count {
            return Spread::Known(0);
        }
        if let [most, fewest, ..] = recorded.samples.as_slice() {
            let is_comparable = fewest.report.verdict == most.report.verdict && fewest.replay.is_some();
            let (a, b) = (most.report.peak, fewest.report.peak);
            let spread = a.reserved.abs_diff(b.reserved).max(a.allocated.abs_diff(b.allocated));
            return if is_comparable { Spread::Known(spread) } else { Spread::Unknown };
        }
        let Some(path) = sample.path else { return Spread::Unmeasured };
        let alike = || {
            let samples = self.recorded.iter().flat_map(|recorded| &recorded.samples);
            samples.filter(move |sample| sample.path == Some(path)).map(|sample| sample.device.sm_count)
        };
        let is_covered =
            alike().any(|count| count <= device.sm_count) && alike().any(|count| count >= device.sm_count);
        if is_covered { Spread::Known(0) } else { Spread::Unmeasured }
    }

    /// Makes independent runs, and records their results.
    fn make_runs(&mut self, rehearsal: &Rehearsal<'_>, needs: Vec<Need>) -> Result<(), RunError> {
        let runs: Vec<(Need, Vec<Device>)> = needs
            .into_iter()
            .filter_map(|need| {
                let cards = self.cards(&need)?;
                Some((need, cards))
            })
            .collect();
        let requests: Vec<Request> = runs
            .iter()
            .map(|(need, cards)| {
                let own = cards[0].clone();
                let own = if need.is_unlimited() { own.with_memory(Bytes::UNLIMITED) } else { own };
                Request { estimated: cards.clone(), ..self.request_on(own) }
            })
            .collect();
        let performed = self.perform(rehearsal, &requests, &runs)?;
        for (((need, cards), request), (mut outcome, replay, path)) in
            runs.into_iter().zip(&requests).zip(performed)
        {
            if outcome.facts.ended == Ended::Interrupted {
                return Err(RunError::Interrupted);
            }
            self.test_values(rehearsal, request, &mut outcome)?;
            let report = report(request, &outcome);
            let depends = report.verdict == Verdict::Error || outcome.asks_size() || outcome.catches();
            let replay = replay.filter(|_| !depends);
            let ran = Ran { device: cards[0].clone(), cards, outcome, report, replay, path };
            self.learn(&need, ran);
        }
        Ok(())
    }

    fn learn(&mut self, need: &Need, ran: Ran) {
        match need {
            Need::Representative(capability) => {
                self.recorded.push(Recorded { capability: *capability, samples: vec![ran] });
            }
            Need::Fewest { capability, .. } => {
                let recorded = self.recorded.iter_mut().find(|known| known.capability == *capability);
                if let Some(recorded) = recorded {
                    recorded.samples.push(ran);
                }
            }
            Need::Run(_) | Need::Unseen(..) | Need::Between(..) => {
                self.catches |= ran.outcome.catches();
                let is_fatal = ran.report.verdict == Verdict::Oom && !ran.outcome.catches();
                let site = Some(&ran).filter(|ran| is_fatal && ran.path.is_some()).and_then(|ran| {
                    let sample = self.recorded(ran.device.compute_capability)?.sample(&ran.device);
                    sample.replay.as_ref()?.within(sample.limit(&ran.device)).1
                });
                self.fatal.extend(site.filter(|site| !self.fatal.contains(site)));
                self.ran.push(ran);
            }
        }
    }

    /// The GPUs for which a run estimates step times; the GPU of the run comes first.
    fn cards(&self, need: &Need) -> Option<Vec<Device>> {
        let (own, is_timed): (&Device, fn(&Device, &Device) -> bool) = match need {
            Need::Representative(capability) => {
                (self.architecture(*capability)?.representative(), |_, _| true)
            }
            Need::Fewest { capability, .. } => {
                (self.fewest(*capability)?, |card, own| card.sm_count == own.sm_count)
            }
            Need::Run(device) | Need::Unseen(_, device) | Need::Between(_, device) => {
                (device.as_ref(), |_, _| true)
            }
        };
        let others = self.architecture(own.compute_capability)?.cards.iter();
        let others = others.filter(|card| card.id != own.id && is_timed(card, own));
        Some(std::iter::once(own).chain(others).cloned().collect())
    }

    #[expect(clippy::type_complexity, reason = "the parts of a run's result")]
    fn perform(
        &mut self,
        rehearsal: &Rehearsal<'_>,
        requests: &[Request],
        runs: &[(Need, Vec<Device>)],
    ) -> Result<Vec<(Outcome, Option<Replay>, Option<u64>)>, RunError> {
        let before = self.runs;
        self.runs += requests.len() as u64;
        if let ([request], [(_, cards)]) = (requests, runs) {
            self.progress.draw(&format!("run {}: {}", self.runs, cards[0].name));
            let performed = rehearsal.run_recorded(request);
            self.progress.clear();
            return performed.map(|(outcome, tracks)| vec![repeatable(request, outcome, tracks)]);
        }
        let at_once = self.recorded.first().map_or(1, |known| rehearsal.at_once(&known.samples[0].outcome));
        let (progress, all) = (&mut self.progress, self.runs);
        progress.draw(&format!("runs {} to {all}, {at_once} at a time", before + 1));
        let performed = rehearsal.run_several(requests, at_once, repeatable, |count| {
            progress.draw(&format!("run {} of {all}", before + count as u64));
        });
        self.progress.clear();
        performed
    }

    /// Tests the effect of assumed values: once for all GPUs with enough memory, and for each of the others.
    fn test_values(
        &mut self,
        rehearsal: &Rehearsal<'_>,
        request: &Request,
        outcome: &mut Outcome,
    ) -> Result<(), RunError> {
        // That memory does not suffice with other values either says nothing of a GPU on which it does.
        let lacks = outcome.lacks_by_values(request);
        if let Some(settled) = self.settled.as_ref().filter(|_| !lacks) {
            outcome.copy_value_findings(settled);
        }
        if outcome.depends_on_values(request) {
            self.runs += 1;
            self.progress.draw("another run, with other values for those that only a GPU can compute");
            let tested = rehearsal.test_values(request, &Changes::default(), false, outcome);
            self.progress.clear();
            tested?;
            self.settled = if lacks { self.settled.take() } else { Some(outcome.clone()) };
        }
        Ok(())
    }

    fn recorded(&self, capability: ComputeCapability) -> Option<&Recorded> {
        self.recorded.iter().find(|known| known.capability == capability)
    }

    fn ran_on(&self, device: &Device) -> Option<&Ran> {
        self.ran.iter().find(|ran| ran.device.id == device.id)
    }

    fn architecture(&self, capability: ComputeCapability) -> Option<&Architecture> {
        self.architectures.iter().find(|architecture| architecture.capability == capability)
    }

    /// The GPU of an architecture with the fewest multiprocessors.
    fn fewest(&self, capability: ComputeCapability) -> Option<&Device> {
        self.architecture(capability)?.cards.iter().min_by_key(|card| card.sm_count)
    }

    /// The bytes that PyTorch's allocator can get on a GPU.
    fn limit(&self, device: &Device) -> Option<u64> {
        Some(self.recorded(device.compute_capability)?.sample(device).limit(device))
    }

    fn request_on(&self, device: Device) -> Request {
        let count = match &self.request.card {
            Card::Virtual(_, count) | Card::Local(count) => *count,
        };
        Request { card: Card::Virtual(Box::new(device), count), ..self.request.clone() }
    }
}

impl Recorded {
    /// The run that represents a GPU: one with as many multiprocessors, otherwise the representative's.
    fn sample(&self, device: &Device) -> &Ran {
        let of_its_size = self.samples.iter().find(|sample| sample.device.sm_count == device.sm_count);
        of_its_size.unwrap_or(&self.samples[0])
    }
}

impl Ran {
    /// Samples before and after, if the script reduced its batch after memory had run out, and then fit.
    fn reduced_batch(&self) -> Option<(u64, u64)> {
        let reduced = self.outcome.facts.fullest()?.done.as_ref()?.reduced;
        reduced.filter(|_| self.outcome.catches() && self.report.verdict == Verdict::Fits)
    }

    /// The bytes that PyTorch's allocator could get on another GPU.
    fn limit(&self, device: &Device) -> u64 {
        device.memory.get().saturating_sub(self.outcome.outside_on(device).upper)
    }

    /// Index of a GPU among those for which step times were estimated; `usize::MAX` if it is not among them.
    fn place(&self, device: &Device) -> usize {
        self.cards.iter().position(|card| card.id == device.id).unwrap_or(usize::MAX)
    }
}

/// Builds the replay of a run, and the digest of its allocator calls.
fn repeatable(
    request: &Request,
    outcome: Outcome,
    tracks: Vec<Track>,
) -> (Outcome, Option<Replay>, Option<u64>) {
    if outcome.lone_track(&tracks).is_none() {
        return (outcome, None, None);
    }
    let Peak { allocated, reserved, .. } = report(request, &outcome).peak;
    let recording = outcome.recording(request, tracks);
    let lone = outcome.lone_track(&recording.tracks);
    let path = lone.map(|(track, device)| path(track, device));
    let replay = lone.map(|(track, device)| Replay::new(&recording, track, device, (allocated, reserved)));
    (outcome, replay, path)
}

/// Estimated peaks of the sampled script on another GPU with unlimited memory.
fn needed(sample: &Ran, device: &Device) -> Peak {
    let outside = sample.outcome.outside_on(device);
    let Peak { allocated, reserved, .. } = sample.report.peak;
    Peak { allocated, reserved, device: reserved + outside.typical, device_upper: reserved + outside.upper }
}

/// Bytes by which the memory of a GPU may vary without invalidating a replay's verdict.
fn edge(capacity: u64) -> u64 {
    (capacity / EDGE_DIVISOR).max(MIN_EDGE)
}
