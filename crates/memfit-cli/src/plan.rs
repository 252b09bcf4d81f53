//! Runs the candidates of a search on the virtual GPU, from a prepared script.

mod compared;
mod failure;
mod patched;
mod ranks_patched;
mod script;

pub(crate) use failure::failure_reason;
pub(crate) use patched::patched;
pub(crate) use ranks_patched::patched_for_ranks;

use memfit_cards::{Judge, smallest_fitting};
use memfit_channel::Planned;
use memfit_devices::{Bytes, Catalogue};
use memfit_plan::{Answer, Busy, Candidate, Expected, Outcome, RankTrial, Room, Trial};
use memfit_report::text::Growth;
use memfit_report::wire::{AtPeak, Coverage, Problem, ProblemKind, RunReport, SmallestCard, Verdict};
use memfit_run::{Card, Changes, Ended, Interrupt, LoneRank, Progress, Rehearsal, Request, report};
use memfit_vocabulary::{Framework, Lever, Loading, Measured, Parallel, Parts, Remark, Training};

use crate::printer::ProgressLine;
use crate::request::{Library, lever_setups, parallel_setup};
use crate::{CliError, Printer};

/// Steps of a trial. The first creates the optimizer state. The second gives the time of a step. If only some
/// micro-batches are run, the third has one more of them, which gives the time of a micro-batch.
const STEPS: u64 = 3;

/// Processes of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The first, on behalf of all.
    First,
    /// One rank of a training run that memfit spreads.
    Rank(u32),
    /// All that the command starts.
    All,
}

/// Facts about a trial that its outcome does not contain.
struct Seen {
    candidate: Candidate,
    on_card: bool,
    at_peak: Option<AtPeak>,
    growth: Option<Growth>,
    /// `true` if its verdict may depend on values that only a GPU can compute.
    depends_on_values: bool,
}

/// Runs candidates.
pub(crate) struct Tries<'a> {
    rehearsal: Rehearsal<'a>,
    request: Request,
    budget: u64,
    own_accumulation: u64,
    infers: bool,
    /// `true` if the script ends before the time of skipped micro-batches can be extrapolated.
    ends_early: bool,
    batch: Option<u64>,
    names: Vec<String>,
    /// The library whose loop trains, and the classes of the model's repeated blocks.
    framework: Option<Framework>,
    block_classes: Vec<String>,
    /// GPUs that a candidate sees which is not spread; `None` for all.
    visible: Option<u32>,
    /// Processes of the unchanged script, and the GPUs that they used.
    ranks_seen: usize,
    /// A run that settled whether sizes that only a GPU can compute have an effect.
    sizes_settled: Option<memfit_run::Outcome>,
    progress: ProgressLine,
    interrupt: Interrupt,
    seen: Vec<Seen>,
    /// Outcomes of earlier searches, so that a further search runs only new candidates.
    known: Vec<(Candidate, Room, Outcome)>,
    count: u64,
    /// `true` once a note says that a trial was inconclusive.
    noted_doubt: bool,
    /// `torch.__version__`.
    pub(crate) torch: Option<String>,
    /// Parts of the training that the last run of the unchanged script included.
    pub(crate) coverage: Option<Coverage>,
    /// Remarks of the runs.
    pub(crate) notes: Vec<String>,
}

impl<'a> Tries<'a> {
    pub(crate) fn new(rehearsal: Rehearsal<'a>, request: Request, budget: u64, printer: &Printer) -> Self {
        Self {
            rehearsal,
            request,
            budget,
            own_accumulation: 1,
            infers: false,
            batch: None,
            names: Vec::new(),
            framework: None,
            block_classes: Vec::new(),
            visible: None,
            ranks_seen: 0,
            sizes_settled: None,
            ends_early: false,
            progress: printer.progress(),
            interrupt: Interrupt::listen(),
            seen: Vec::new(),
            known: Vec::new(),
            count: 0,
            noted_doubt: false,
            torch: None,
            coverage: None,
            notes: Vec::new(),
        }
    }

    /// `true` if a trial forks a prepared process instead of starting the script.
    pub(crate) fn forks(&self) -> bool {
        self.rehearsal.forks()
    }

    /// Number of training processes, if each trial runs only the first of them.
    pub(crate) fn stands_for(&self) -> Option<u32> {
        self.rehearsal.stands_for()
    }

    /// Makes later trials run all processes.
    pub(crate) fn run_all(&mut self) {
        self.rehearsal.run_all();
        // The outcomes with one process do not apply to all of them.
        self.known.clear();
        self.sizes_settled = None;
    }

    /// Outcome of a candidate on the GPU with all processes.
    pub(crate) fn with_all(&mut self, candidate: &Candidate) -> Result<Option<Outcome>, CliError> {
        self.tried(candidate, Room::Budget, Who::All)
    }

    /// Hides all GPUs but one from candidates that are not spread. With several, the Trainer of Transformers
    /// would divide its batch among them (`DataParallel`), which is neither the script's training on one GPU
    /// nor that of several processes.
    pub(crate) fn hide_other_gpus(&mut self) {
        if self.framework == Some(Framework::Transformers) {
            self.visible = Some(1);
            self.run_all();
        }
    }

    /// `true` if the unchanged script is one process that uses one GPU.
    pub(crate) const fn is_plain(&self) -> bool {
        self.ranks_seen == 1
    }

    /// Clears the progress line after the last trial.
    pub(crate) fn done(&mut self) {
        self.progress.clear();
    }

    /// Memory at the peak of a trial, by category.
    pub(crate) fn at_peak(&self, candidate: &Candidate, on_card: bool) -> Option<AtPeak> {
        self.last(candidate, on_card)?.at_peak.clone()
    }

    /// Growth of memory from step to step in a trial on the GPU.
    pub(crate) fn growth(&self, candidate: &Candidate) -> Option<Growth> {
        self.last(candidate, true)?.growth
    }

    fn last(&self, candidate: &Candidate, on_card: bool) -> Option<&Seen> {
        self.seen.iter().rev().find(|seen| seen.candidate == *candidate && seen.on_card == on_card)
    }

    /// Reason why it is unknown whether a candidate fits although it ran on the GPU: its allocations depend
    /// on values that only a GPU can compute. Runs it again only if it read such values.
    pub(crate) fn unsettled(&mut self, candidate: &Candidate) -> Result<Option<Problem>, CliError> {
        if !self.last(candidate, true).is_some_and(|seen| seen.depends_on_values) {
            return Ok(None);
        }
        self.progress.draw("running again with other assumed values, to see whether memory depends on them");
        let request = self.request_of(candidate, self.card(Room::Budget), 0)?;
        let settled = self.run_settled(&request);
        self.progress.clear();
        let report = settled?;
        Ok(report.problem.filter(|_| report.verdict != Verdict::Fits))
    }

    /// The report on a run, with further runs if it depends on values that only a GPU can compute.
    fn run_settled(&mut self, request: &Request) -> Result<RunReport, CliError> {
        let mut outcome = self.rehearsal.run(request)?;
        self.rehearsal.test_values(request, &Changes::default(), false, &mut outcome)?;
        Ok(report(request, &outcome))
    }

    /// Settles whether sizes that only a GPU can compute have an effect, once for all candidates: a script
    /// that only reports them does so with each. Returns `true` if another candidate settled it: then the
    /// chosen plan is tested by itself.
    fn settle_sizes(
        &mut self,
        request: &Request,
        who: Who,
        outcome: &mut memfit_run::Outcome,
    ) -> Result<bool, CliError> {
        if !outcome.depends_on_sizes(request) {
            return Ok(false);
        }
        if let Some(settled) = &self.sizes_settled {
            outcome.copy_size_findings(settled);
            return Ok(true);
        }
        self.progress.draw("running again, with other computed sizes");
        let tested = self.rehearsal.test_sizes(request, &Changes::default(), who == Who::All, outcome);
        self.progress.clear();
        tested?;
        self.sizes_settled = Some(outcome.clone());
        Ok(false)
    }

    /// The request for one rank of a candidate.
    fn request_of(&self, candidate: &Candidate, card: Card, rank: u32) -> Result<Request, CliError> {
        let parallel = candidate.parallel.filter(Parallel::is_spread);
        let per_machine = match &card {
            Card::Virtual(_, count) | Card::Local(count) => *count,
        };
        let framework = self.framework.filter(|_| parallel.is_some());
        let library = framework.map(|framework| Library { framework, blocks: &self.block_classes });
        // A launcher gives each process one GPU; a library takes that of its local rank.
        let card = match card {
            Card::Virtual(device, _) if library.is_none() && parallel.is_some() => Card::Virtual(device, 1),
            Card::Virtual(device, count) if library.is_none() => {
                Card::Virtual(device, self.visible.unwrap_or(count))
            }
            card => card,
        };
        let world = parallel.as_ref().filter(|_| library.is_some()).map(Parallel::world);
        let lone_rank = LoneRank::new(world.map(|_| rank), world, &card)?.or(self.request.lone_rank);
        let share = parallel.zip(self.batch).map(|(parallel, batch)| parallel.share(batch));
        // A script that creates its batches itself gets its share as the batch size.
        let own_share = share.filter(|_| !self.names.is_empty());
        let planned = Planned {
            parallel: parallel.map(|parallel| parallel_setup(&parallel, rank, per_machine, library)),
            micro_batch: candidate.micro_batch.or(own_share),
            batch: self.batch,
            by_name: !self.names.is_empty(),
            accumulate: candidate.accumulate,
            own_accumulation: self.own_accumulation,
            pieces: candidate.pieces,
            infers: self.infers,
            levers: lever_setups(&candidate.settings, parallel.as_ref().filter(|_| library.is_none())),
            measure: true,
            ..Planned::default()
        };
        // Without optimizer steps, every micro-batch is a separate pass.
        let planned = if self.infers || self.ends_early { planned } else { planned.limited() };
        Ok(Request { card, lone_rank, planned: Some(planned), steps: STEPS, ..self.request.clone() })
    }

    /// The request for a run of a changed script, with the memory that a plan may use.
    fn request_for_change(&self) -> Request {
        Request { card: self.card(Room::Budget), planned: None, ..self.request.clone() }
    }

    fn card(&self, room: Room) -> Card {
        let memory = match room {
            Room::Budget => Bytes::new(self.budget),
            Room::Boundless => Bytes::UNLIMITED,
        };
        self.request.card.with_memory(memory)
    }
}

impl Trial for Tries<'_> {
    type Error = CliError;

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, CliError> {
        if let Some((_, _, outcome)) =
            self.known.iter().find(|(known, in_room, _)| known == candidate && *in_room == room)
        {
            return Ok(Some(outcome.clone()));
        }
        let outcome = self.tried(candidate, room, Who::First)?;
        if let Some(outcome) = &outcome {
            self.known.push((candidate.clone(), room, outcome.clone()));
        }
        Ok(outcome)
    }
}

impl RankTrial for Tries<'_> {
    fn run_rank(
        &mut self,
        candidate: &Candidate,
        room: Room,
        rank: u32,
    ) -> Result<Option<Outcome>, CliError> {
        self.tried(candidate, room, Who::Rank(rank))
    }
}

impl Tries<'_> {
    fn tried(&mut self, candidate: &Candidate, room: Room, who: Who) -> Result<Option<Outcome>, CliError> {
        if self.interrupt.happened() {
            return Ok(None);
        }
        self.count += 1;
        self.progress.draw(&format!("run {}: {}", self.count, candidate.describe()));
        let rank = if let Who::Rank(rank) = who { rank } else { 0 };
        let request = self.request_of(candidate, self.card(room), rank)?;
        let mut outcome = if who == Who::All {
            self.rehearsal.run_with(&request, &Changes::default())?
        } else {
            self.rehearsal.run(&request)?
        };
        self.progress.clear();
        if outcome.facts.ended == Ended::Interrupted {
            return Ok(None);
        }
        let settled_by_another = self.settle_sizes(&request, who, &mut outcome)?;
        let report = report(&request, &outcome);
        self.torch = self.torch.take().or_else(|| report.torch.clone());
        let as_is = *candidate == Candidate::as_is();
        // Memory may run out in a library that raises its own error, such as NCCL. With unlimited memory it
        // does not.
        if as_is && room == Room::Boundless && report.verdict == Verdict::Error {
            return Err(unplannable(&report));
        }
        let fullest = outcome.facts.fullest();
        let mut training = fullest.and_then(|rank| rank.training.as_ref()).map(training);
        if let Some(sampled) =
            fullest.and_then(|rank| rank.training.as_ref()).filter(|sampled| !sampled.sampled.is_empty())
        {
            let note = format!(
                "the data set's items differ in size: each candidate ran with batches of the largest items, so memory and time are those of the worst case ({})",
                sampled.sampled
            );
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        if as_is {
            self.ranks_seen = report.ranks.len();
            self.coverage = Some(report.coverage.clone());
            self.ends_early = outcome.facts.ended == Ended::Exited(0) && report.steps < STEPS;
        }
        if let Some(training) = training.as_ref().filter(|_| as_is) {
            self.own_accumulation = training.own_accumulation.max(1);
            self.infers = !training.optimizes
                && fullest.and_then(|rank| rank.done.as_ref()).is_some_and(|done| done.forward_only);
            self.batch = (training.batch > 0).then_some(training.batch);
            self.names.clone_from(&training.names);
            self.framework = training.framework;
            self.block_classes.clone_from(&training.block_classes);
        }
        if let (Some(training), Some(batch)) = (&mut training, self.batch) {
            // If the script creates its batches itself, it determines the size of smaller ones.
            training.batch = batch;
            training.names.clone_from(&self.names);
        }
        self.seen.push(Seen {
            candidate: candidate.clone(),
            on_card: room == Room::Budget,
            at_peak: report.at_peak.clone(),
            growth: Growth::of_run(&report),
            depends_on_values: settled_by_another || outcome.depends_on_values(&request),
        });
        let completed =
            outcome.facts.oom.is_none() && matches!(outcome.facts.ended, Ended::Complete | Ended::Exited(0));
        let doubt = doubt(room, &report);
        let fits = report.verdict == Verdict::Fits
            || completed && report.verdict == Verdict::Unknown && doubt.is_none();
        // If memory ran out, or may have, no other problem is reported.
        let short = doubt.is_some() || outcome.facts.oom.is_some() || report.verdict == Verdict::Oom;
        if let Some(doubt) = doubt.filter(|_| completed && !self.noted_doubt) {
            self.noted_doubt = true;
            self.notes
                .push(format!("{} is not counted as fitting although it ran: {doubt}", candidate.describe()));
        }
        for failure in report.fidelity.effects.iter().filter(|each| each.id == Remark::ProbeFailed.id()) {
            if !self.notes.contains(&failure.what) {
                self.notes.push(failure.what.clone());
            }
        }
        let mut refused = fullest.map(|rank| rank.refused.clone()).unwrap_or_default();
        let seen = fullest.and_then(|rank| rank.training.as_ref()).map_or(0, |training| training.seen);
        if !self.names.is_empty() && candidate.micro_batch.is_some_and(|micro_batch| seen > micro_batch) {
            let why = format!(
                "the script had read its batch size from {} before it first used the GPU",
                self.names.join(", ")
            );
            refused.push((Lever::MicroBatch.name().to_owned(), why));
        }
        let share = candidate.parallel.zip(self.batch);
        if share.is_some_and(|(parallel, batch)| seen > batch.div_ceil(u64::from(parallel.batches()).max(1)))
        {
            let why = "the script's batches were not divided over the ranks: they do not come from a PyTorch DataLoader";
            refused.push((Lever::Shard.name().to_owned(), why.to_owned()));
        }
        let peak = report.peak;
        // The time of a batch is that of all its passes.
        let passes = if self.infers { candidate.pieces as f64 } else { 1.0 };
        let of_batch = |milliseconds: Option<f64>| milliseconds.map(|milliseconds| milliseconds * passes);
        let recovered = fits && outcome.facts.oom.is_some();
        if recovered && as_is && room == Room::Budget {
            self.notes.push(
                "the script fits as is only because it catches an out-of-memory error and recovers"
                    .to_owned(),
            );
        }
        Ok(Some(Outcome {
            fits,
            recovered,
            peak: Expected {
                allocated: peak.allocated,
                reserved: peak.reserved,
                device: peak.device,
                device_upper: peak.device_upper,
                step_ms: of_batch(report.time.step_ms_estimate),
            },
            step_ms_low: of_batch(report.time.step_ms_low),
            step_ms_high: of_batch(report.time.step_ms_high),
            busy: busy(&report),
            gpus_used: report.gpus.iter().map(|gpu| u32::from(gpu.was_used())).sum(),
            refused,
            problem: (!fits && !short)
                .then(|| failure::failure_reason(&outcome.facts, report.problem.as_ref()))
                .flatten(),
            training,
        }))
    }
}

/// GPU work in a step, by the resource that limits it.
fn busy(report: &RunReport) -> Busy {
    let mut busy = Busy::default();
    for (kind, milliseconds) in &report.time.busy_ms {
        let part = match kind.as_str() {
            "communication" => &mut busy.communication,
            "memory" | "transfer" => &mut busy.memory,
            _ => &mut busy.compute,
        };
        *part += milliseconds;
    }
    busy
}

/// Reason why a run that succeeded on the GPU is inconclusive: with so little free memory, its verdict would
/// be `unknown`.
fn doubt(room: Room, report: &RunReport) -> Option<String> {
    let problem =
        report.problem.as_ref().filter(|_| room == Room::Budget && report.verdict == Verdict::Unknown)?;
    let tight = matches!(problem.kind, ProblemKind::SizeReadBack | ProblemKind::UnmodelledCall);
    tight.then(|| {
        let hint = problem.hint.as_deref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        format!("{}{hint}", lower(problem.message.trim_end_matches('.')))
    })
}

/// Formats a sentence for use within another one.
fn lower(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// The facts about a training run from the message that contains them.
pub(crate) fn training(message: &memfit_channel::message::Training) -> Training {
    Training {
        batch: message.batch,
        names: message.names.clone(),
        models: message.models.clone(),
        own_accumulation: message.batches.checked_div(message.steps).unwrap_or(1).max(1),
        couples_samples: message.couples_samples,
        parts: match message.undivided.as_deref() {
            Some("") => Parts::TrainAsWhole,
            Some(why) => Parts::Unverified(why.to_owned()),
            None => Parts::Unseen,
        },
        convolves: message.convolves,
        classes: message.classes,
        explicit_attention: message.explicit_attention,
        alternates: message.alternates,
        backwards: message.backwards,
        ignores: message.ignores,
        compiled: message.compiled,
        draws: message.draws,
        reduced: message.autocast || message.half,
        half: message.half,
        replicated: message.replicated,
        state: message.state,
        trained: message.trained,
        optimizes: !message.optimizers.is_empty(),
        fusible: message.fusible && !message.fused,
        foreach: !message.optimizers.is_empty() && !message.fused && !message.foreach_off,
        clips: message.clips,
        framework: Framework::from_name(&message.framework),
        lengths: message.lengths.clone(),
        parameters: message.parameters,
        linears: message.linears,
        pretrained: message.pretrained,
        cached: message.cached,
        tokens: message.tokens,
        pictures: message.pictures,
        sequence: message.sequence,
        processes: message.processes.max(1),
        loading: message.loading.map(|loading| Loading {
            workers: loading.workers,
            pinned: loading.pinned,
            item_ns: loading.item_ns,
            item_bytes: loading.item_bytes,
            items: loading.items,
        }),
        blocks: message
            .blocks
            .iter()
            .map(|block| Measured {
                name: block.name.clone(),
                kept: block.kept,
                busy_ns: block.busy_ns,
                output: block.output,
            })
            .collect(),
        block_classes: message.block_classes.clone(),
    }
}

fn unplannable(report: &RunReport) -> CliError {
    let problem = report.problem.as_ref();
    CliError::NothingToPlan {
        why: problem.map_or("its run has no verdict".to_owned(), |problem| {
            problem.message.trim_end_matches('.').to_owned()
        }),
        hint: problem
            .and_then(|problem| problem.hint.clone())
            .unwrap_or_else(|| "`memfit run` shows how it fails".to_owned()),
    }
}

/// The smallest GPU of the catalogue on which a run of the unchanged script fits.
pub(crate) fn smallest_card(
    tries: &mut Tries<'_>,
    found: &Answer,
    catalogue: &Catalogue,
    margin: f64,
    printer: &Printer,
) -> Result<Option<SmallestCard>, CliError> {
    let request = tries.request_of(&Candidate::as_is(), tries.request.card.clone(), 0)?;
    let mut judge = Judge::new(&request, catalogue.devices(), false, printer);
    let reserved = found.baseline.outcome.peak.reserved;
    Ok(smallest_fitting(&mut judge, &tries.rehearsal, catalogue.devices(), reserved, margin)?)
}
