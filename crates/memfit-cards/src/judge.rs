//! Verdicts on many GPUs from few runs.
//!
//! Each architecture's representative runs once, with unlimited memory. What its allocator was asked for is
//! then replayed with the memory of every other GPU. A GPU is run itself where a replay could be wrong:
//!
//! * the verdict would turn with a little more or less memory ([`edge`]), or within the difference that the
//!   number of multiprocessors makes, which a second run of the architecture measures where it matters;
//! * it fits only because the allocator gives cached memory back;
//! * the script asks how large its GPU is, or has caught an out-of-memory error;
//! * nobody has seen yet whether it catches one in that part of the training.

use memfit_devices::{ComputeCapability, Device};
use memfit_recording::Track;
use memfit_report::wire::{CardEvidence, Peak, RunReport, Verdict};
use memfit_run::{
    Card, Changes, Console, Ended, Outcome, Progress, Rehearsal, Replayed, Request, RunError, report,
};

use crate::architecture::{Architecture, UNLIMITED, architectures};
use crate::replay::{Replay, Site};

/// A replay is believed where this share of the GPU more or less changes nothing, and no fewer bytes.
const EDGE_SHARE: u64 = 100;
const MIN_EDGE: u64 = 128 << 20;
/// Some kernels' workspaces grow with the number of multiprocessors. Where even a part of the peak (one in so
/// many) more or less changes nothing, it is not measured how much that is.
const UNMEASURED_SPREAD: u64 = 4;

/// The verdict on one GPU.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The GPU.
    pub device: Device,
    /// The report of a run on it, or as a run on it would have had it.
    pub report: RunReport,
    /// The peaks with unlimited memory, where the run there could be made.
    pub needed: Option<Peak>,
    /// How the verdict is known.
    pub evidence: CardEvidence,
}

/// The recorded runs of one architecture: the representative's, and where it was needed, the run of the GPU
/// with the fewest multiprocessors.
#[derive(Debug)]
struct Recorded {
    capability: ComputeCapability,
    samples: Vec<Sample>,
}

/// A run with unlimited memory.
#[derive(Debug)]
struct Sample {
    sm_count: u32,
    /// The GPUs that were timed beside it, its own first.
    cards: Vec<Device>,
    outcome: Outcome,
    report: RunReport,
    /// The repeatable calls; `None` where every GPU has to be run.
    replay: Option<Replay>,
}

/// Judges GPUs for one command, whose [`Rehearsal`] each question is handed.
#[derive(Debug)]
pub struct Judge {
    request: Request,
    architectures: Vec<Architecture>,
    recorded: Vec<Recorded>,
    /// Whether every GPU is run.
    proves_all: bool,
    /// Whether the script was seen to catch an out-of-memory error.
    catches: bool,
    /// The parts of a training in which one was seen to end it.
    fatal: Vec<Site>,
    /// The first run that went through, after further runs showed whether numbers that only a GPU computes
    /// decide anything.
    settled: Option<Outcome>,
    progress: Box<dyn Progress>,
    runs: u64,
}

impl Judge {
    /// Judges these GPUs; the request's own GPU is not read. `proves_all` runs the script on each of them.
    pub fn new(request: &Request, devices: &[Device], proves_all: bool, console: &dyn Console) -> Self {
        Self {
            request: request.clone(),
            architectures: architectures(devices),
            recorded: Vec::new(),
            proves_all,
            catches: false,
            fatal: Vec::new(),
            settled: None,
            progress: console.progress(),
            runs: 0,
        }
    }

    /// Runs of the script so far.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// The verdict on a GPU.
    pub fn judge(&mut self, rehearsal: &mut Rehearsal<'_>, device: &Device) -> Result<Judged, RunError> {
        let index = self.recorded(rehearsal, device)?;
        let first = &self.recorded[index].samples[0];
        if first.report.verdict == Verdict::Error {
            return Ok(self.failed(device, &first.outcome));
        }
        let replayed = if self.proves_all { None } else { self.replayed(rehearsal, index, device)? };
        let (report, evidence) = match replayed {
            Some(report) => (report, CardEvidence::Replayed),
            None => (self.run(rehearsal, device)?, CardEvidence::Run),
        };
        let needed = Some(needed(self.sample(index, device), device));
        Ok(Judged { device: device.clone(), report, needed, evidence })
    }

    /// Whether a run on a GPU is seen to fit.
    pub fn proves(&mut self, rehearsal: &mut Rehearsal<'_>, device: &Device) -> Result<bool, RunError> {
        Ok(self.run(rehearsal, device)?.verdict == Verdict::Fits)
    }

    /// The verdict on a GPU where the representative's run had none.
    fn failed(&self, device: &Device, outcome: &Outcome) -> Judged {
        let request = self.request_on(device.clone());
        let stands_for_itself =
            self.architectures.iter().any(|architecture| architecture.representative().id == device.id);
        let evidence = if stands_for_itself { CardEvidence::Run } else { CardEvidence::Replayed };
        Judged { device: device.clone(), report: report(&request, outcome), needed: None, evidence }
    }

    /// The report on a GPU by a replay; `None` where the GPU has to be run.
    fn replayed(
        &mut self,
        rehearsal: &mut Rehearsal<'_>,
        index: usize,
        device: &Device,
    ) -> Result<Option<RunReport>, RunError> {
        if self.catches {
            return Ok(None);
        }
        let sample = self.sample(index, device);
        let own_edge = edge(device.memory.get()) + 2 * sample.outcome.pending();
        let mut allowance = own_edge;
        if sample.sm_count != device.sm_count {
            let unmeasured = own_edge + sample.report.peak.reserved / UNMEASURED_SPREAD;
            if self.clear(index, device, unmeasured).is_some() {
                allowance = unmeasured;
            } else {
                match self.spread(rehearsal, index)? {
                    Some(spread) => allowance += 2 * spread,
                    None => return Ok(None),
                }
            }
        }
        let Some(replayed) = self.clear(index, device, allowance) else { return Ok(None) };
        let report = self.report_of(index, device, replayed);
        // What the whole run did (sizes that it read, numbers) raises no doubt about a run that ends before.
        let is_sound = replayed.ran_out.is_none() || report.verdict == Verdict::Oom;
        Ok(is_sound.then_some(report))
    }

    /// The outcome of a replay, where so many bytes more or less change nothing about the verdict.
    fn clear(&self, index: usize, device: &Device, allowance: u64) -> Option<Replayed> {
        let sample = self.sample(index, device);
        let replay = sample.replay.as_ref()?;
        let limit = device.memory.get().saturating_sub(sample.outcome.outside_on(device).upper);
        let (with_more, _) = replay.within(limit.saturating_add(allowance));
        let (with_less, site) = replay.within(limit.saturating_sub(allowance));
        let unpressed = sample.report.peak.reserved.saturating_add(allowance) <= limit;
        let is_clear = match (with_less.ran_out, with_more.ran_out) {
            (None, None) => unpressed,
            // Whether it would be caught is only known where that was seen.
            (Some(_), Some(_)) => site.is_some_and(|site| self.fatal.contains(&site)),
            _ => false,
        };
        is_clear.then(|| replay.within(limit).0)
    }

    fn report_of(&self, index: usize, device: &Device, replayed: Replayed) -> RunReport {
        let sample = self.sample(index, device);
        let request = self.request_on(device.clone());
        let place = sample.cards.iter().position(|card| card.id == device.id).unwrap_or(usize::MAX);
        report(&request, &sample.outcome.moved(&request, replayed, place))
    }

    /// The run that stands for a GPU: one with as many multiprocessors, else the representative's.
    fn sample(&self, index: usize, device: &Device) -> &Sample {
        let samples = &self.recorded[index].samples;
        samples.iter().find(|sample| sample.sm_count == device.sm_count).unwrap_or(&samples[0])
    }

    /// Bytes by which the peaks of the GPU with the fewest multiprocessors differ from the representative's,
    /// as a run shows; `None` where they cannot be compared.
    fn spread(&mut self, rehearsal: &mut Rehearsal<'_>, index: usize) -> Result<Option<u64>, RunError> {
        if self.recorded[index].samples.len() < 2 {
            let capability = self.recorded[index].capability;
            let fewest = self
                .architectures
                .iter()
                .find(|found| found.capability == capability)
                .and_then(|found| found.cards.iter().min_by_key(|card| card.sm_count))
                .cloned();
            let Some(fewest) = fewest else { return Ok(None) };
            let sample = self.sampled(rehearsal, fewest, |card, own| card.sm_count == own.sm_count)?;
            self.recorded[index].samples.push(sample);
        }
        let [most, fewest, ..] = self.recorded[index].samples.as_slice() else { return Ok(None) };
        let comparable = fewest.report.verdict == most.report.verdict && fewest.replay.is_some();
        let (a, b) = (most.report.peak, fewest.report.peak);
        let spread = a.reserved.abs_diff(b.reserved).max(a.allocated.abs_diff(b.allocated));
        Ok(comparable.then_some(spread))
    }

    /// Runs the script on a GPU.
    fn run(&mut self, rehearsal: &mut Rehearsal<'_>, device: &Device) -> Result<RunReport, RunError> {
        let request = self.request_on(device.clone());
        let (mut outcome, tracks) = self.perform(rehearsal, &request, &device.name)?;
        self.settle(rehearsal, &request, &mut outcome)?;
        self.catches |= outcome.catches();
        let report = report(&request, &outcome);
        if report.verdict == Verdict::Oom
            && !outcome.catches()
            && let Some(site) = self.site_of(device, &outcome, &tracks)
            && !self.fatal.contains(&site)
        {
            self.fatal.push(site);
        }
        Ok(report)
    }

    /// The part of the training in which a replay runs out of memory on a GPU where a run did.
    fn site_of(&self, device: &Device, outcome: &Outcome, tracks: &[Track]) -> Option<Site> {
        outcome.lone_track(tracks)?;
        let index = self.recorded.iter().position(|known| known.capability == device.compute_capability)?;
        let sample = self.sample(index, device);
        let limit = device.memory.get().saturating_sub(sample.outcome.outside_on(device).upper);
        sample.replay.as_ref()?.within(limit).1
    }

    /// The place of the runs that stand for a GPU; the representative's is made where it was not yet.
    fn recorded(&mut self, rehearsal: &mut Rehearsal<'_>, device: &Device) -> Result<usize, RunError> {
        let capability = device.compute_capability;
        if let Some(found) = self.recorded.iter().position(|known| known.capability == capability) {
            return Ok(found);
        }
        let representative = self
            .architectures
            .iter()
            .find(|found| found.capability == capability)
            .map_or(device, Architecture::representative)
            .clone();
        let sample = self.sampled(rehearsal, representative, |_, _| true)?;
        self.recorded.push(Recorded { capability, samples: vec![sample] });
        Ok(self.recorded.len() - 1)
    }

    /// Runs the script on a GPU with unlimited memory; those of its architecture that are `timed` have their
    /// clocks beside it.
    fn sampled(
        &mut self,
        rehearsal: &mut Rehearsal<'_>,
        own: Device,
        timed: impl Fn(&Device, &Device) -> bool,
    ) -> Result<Sample, RunError> {
        let others = self
            .architectures
            .iter()
            .filter(|found| found.capability == own.compute_capability)
            .flat_map(|found| &found.cards)
            .filter(|card| card.id != own.id && timed(card, &own));
        let cards: Vec<Device> = std::iter::once(&own).chain(others).cloned().collect();
        let (name, sm_count) = (own.name.clone(), own.sm_count);
        let request = Request { beside: cards.clone(), ..self.request_on(own.with_memory(UNLIMITED)) };
        let (mut outcome, tracks) = self.perform(rehearsal, &request, &name)?;
        self.settle(rehearsal, &request, &mut outcome)?;
        let report = report(&request, &outcome);
        let depends = report.verdict == Verdict::Error || outcome.asks_size() || outcome.catches();
        let replay = if depends || outcome.lone_track(&tracks).is_none() {
            None
        } else {
            let recording = outcome.recording(&request, tracks);
            let peak = (report.peak.allocated, report.peak.reserved);
            outcome
                .lone_track(&recording.tracks)
                .map(|(track, device)| Replay::new(&recording, track, device, peak))
        };
        Ok(Sample { sm_count, cards, outcome, report, replay })
    }

    fn perform(
        &mut self,
        rehearsal: &mut Rehearsal<'_>,
        request: &Request,
        name: &str,
    ) -> Result<(Outcome, Vec<Track>), RunError> {
        self.runs += 1;
        self.progress.draw(&format!("run {}: {name}", self.runs));
        let performed = rehearsal.run_recorded(request);
        self.progress.clear();
        let (outcome, tracks) = performed?;
        if outcome.facts.ended == Ended::Interrupted {
            return Err(RunError::Interrupted);
        }
        Ok((outcome, tracks))
    }

    /// Finds out once for all GPUs whether numbers that only a GPU computes decide anything.
    fn settle(
        &mut self,
        rehearsal: &mut Rehearsal<'_>,
        request: &Request,
        outcome: &mut Outcome,
    ) -> Result<(), RunError> {
        match &self.settled {
            Some(settled) => outcome.settle_as(settled),
            None if outcome.hangs_on_numbers(request) => {
                self.runs += 1;
                self.progress.draw("once more, with other numbers for those that only a GPU computes");
                let settled = rehearsal.test_numbers(request, &Changes::default(), false, outcome);
                self.progress.clear();
                settled?;
                self.settled = Some(outcome.clone());
            }
            None => {}
        }
        Ok(())
    }

    fn request_on(&self, device: Device) -> Request {
        let count = match &self.request.card {
            Card::Virtual(_, count) | Card::Local(count) => *count,
        };
        Request { card: Card::Virtual(Box::new(device), count), ..self.request.clone() }
    }
}

/// The peaks that a sampled run's script would have on another GPU with unlimited memory.
fn needed(sample: &Sample, device: &Device) -> Peak {
    let outside = sample.outcome.outside_on(device);
    let Peak { allocated, reserved, .. } = sample.report.peak;
    Peak { allocated, reserved, device: reserved + outside.typical, device_upper: reserved + outside.upper }
}

/// Bytes by which a GPU's memory may be off without the verdict of a replay being believed less.
fn edge(capacity: u64) -> u64 {
    (capacity / EDGE_SHARE).max(MIN_EDGE)
}
