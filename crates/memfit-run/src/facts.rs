//! Facts of a completed run: the input of the verdict and the report.

mod failures;
mod gpu_peaks;

pub(crate) use failures::LAUNCHERS;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

use memfit_channel::ledger::{LedgerView, MAX_TALLY, OutsideView, ProcessView, TallyKind};
use memfit_channel::message::{Cause, DeviceStats, Done, HostCompared, Loader, LoaderTrial, Oom, Training};
use memfit_channel::{ClockMark, RunDir, Setup, ValuePolicy};
use memfit_devices::Overhead;
use memfit_explain::RepeatedWork;
use memfit_recording::Track;
use memfit_report::remarks::{Note, Stake, assumption_text};
use memfit_report::wire::{AssumedValue, AtPeak, CallCount, Coverage, DeviceInfo, Exception, GpuPeak, Peak};
use memfit_vocabulary::Remark;

use crate::block_use::BlockUse;
use crate::environment::Command;
use crate::host::HostPeaks;
use crate::inbox::{Inbox, Speaker};
use crate::not_run;
use crate::output;
use crate::overlaid;
use crate::preflight::Torch;
use crate::recording::{self, Fullest};
use crate::request::Request;
use crate::secrets::without_secrets;
use crate::signals::is_crash;
use crate::stage::Stage;
use crate::watch::{Ended, RealCard, Watched};

/// Maximum lines, or sizes, named in a sentence about values that were read back.
const MAX_NAMED: usize = 3;
/// Maximum number of lines listed for each assumption.
const MAX_LINES: usize = 16;

/// Prefixes of calls that never affect training's device memory: telemetry, profilers, logs, and the table
/// by which NVIDIA's tools find each other. NVIDIA's libraries query these and work without them.
const IRRELEVANT_CALLS: &[&str] = &[
    "nvml",
    "cupti",
    "cuFile",
    "nvtx",
    "cudaProfiler",
    "cuProfiler",
    "cuLogs",
    "cudaLogs",
    "cuGetExportTable",
];

/// Everything known about a completed run.
#[derive(Clone, Debug)]
pub struct Facts {
    /// End of the run.
    pub ended: Ended,
    /// Settings of the processes.
    pub(crate) setup: Setup,
    /// The command as it was started.
    pub(crate) command: Vec<String>,
    /// Memory outside the allocator on a virtual device, with its source.
    pub(crate) overhead: Option<Overhead>,
    /// Ranks, in order.
    pub(crate) ranks: Vec<RankFacts>,
    /// GPUs, in order.
    pub(crate) gpus: Vec<GpuPeak>,
    /// Index in `ranks` of the one with the highest device peak.
    pub(crate) fullest: usize,
    /// Names that the device counted, by kind of entry.
    pub(crate) tally: Tally,
    /// Remarks of the processes.
    pub(crate) notes: Vec<Note>,
    /// The line that most often read values that only a GPU can compute since the last step, and how often.
    pub(crate) repeated: Option<(String, u64)>,
    /// Places of conditions on unknown values.
    pub(crate) conditions: Vec<String>,
    /// Block use of each process; empty if the run assumed no values.
    pub(crate) block_use: Vec<BlockUse>,
    /// `true` if the probe ran in any of the script's processes.
    pub(crate) watched: bool,
    /// The first out-of-memory error.
    pub oom: Option<OomFacts>,
    /// The exception that ended the script, if it is not an out-of-memory error: uncaught, or the last that
    /// it printed.
    pub exception: Option<Exception>,
    /// `true` if the script printed that exception and continued to its own end.
    pub(crate) survived: bool,
    /// Line of Python code at which a signal, the time limit or the user ended the script.
    pub(crate) stopped_at: Option<String>,
    /// Forward passes of a script that has not trained yet.
    pub(crate) passes_without_training: usize,
    /// Names of files that the run wrote, renamed or removed in the overlay, if there is such an exception.
    pub(crate) overlaid: BTreeSet<OsString>,
    /// `true` if the script has read a checkpoint among them.
    pub(crate) read_back: bool,
    /// Possible causes of that exception.
    pub(crate) cause: Cause,
    /// The interpreter that ran the script.
    pub(crate) interpreter: Option<String>,
    /// `torch.__version__`.
    pub(crate) torch: Option<String>,
    /// Allocator settings, as reported by the script's own process if available.
    pub(crate) alloc_conf: Option<String>,
    /// Result of a comparison run on the host.
    pub on_host: Option<HostCompared>,
    /// The real device, if the run uses one.
    pub(crate) real: Option<RealCard>,
    /// Peaks on the host.
    pub(crate) host: HostPeaks,
    /// Peak of the page-locked memory.
    pub(crate) pinned: u64,
    /// Wall time from the start of the command to the end of its processes.
    pub(crate) wall: Duration,
    /// End of the script's standard error, or of its standard output if that is empty.
    pub last_output: String,
}

/// Names that the device counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Calls that are not modelled.
    pub(crate) unmodelled: Vec<CallCount>,
    /// Values that were assumed, with the possible consequence of each.
    pub(crate) values: Vec<(AssumedValue, Stake)>,
    /// Remarks.
    pub(crate) notes: Vec<Note>,
    /// Maximum bytes that a remark concerns, by its id.
    pub(crate) remark_bytes: BTreeMap<String, u64>,
}

/// Facts of one rank.
#[derive(Clone, Debug, Default)]
pub struct RankFacts {
    /// Number of the rank.
    pub(crate) rank: u32,
    /// Device that it used most.
    pub(crate) card: u32,
    /// Peaks.
    pub(crate) peak: Peak,
    /// Memory outside the allocator on that device at its peak.
    pub(crate) outside: OutsideView,
    /// Completed steps.
    pub(crate) steps: u64,
    /// Last message.
    pub done: Option<Done>,
    /// Readings of the device's clock at the end of each step.
    pub(crate) marks: Vec<ClockMark>,
    /// Levers that could not be applied, with reasons.
    pub refused: Vec<(String, String)>,
    /// Facts about the training, if a plan asked for them.
    pub training: Option<Training>,
    /// Measurement of its own `DataLoader`, if requested.
    pub loader: Option<Loader>,
    /// Measurements of that loader with other numbers of workers.
    pub trials: Vec<LoaderTrial>,
    /// Peak active minus peak allocated bytes: freed blocks that were still in use on another stream.
    pub(crate) pending: u64,
    /// Work of an early step that would exceed the peak in a later one.
    pub(crate) repeated: Option<RepeatedWork>,
    /// Composition of the peak.
    pub(crate) at_peak: Option<AtPeak>,
}

/// An out-of-memory error.
#[derive(Clone, Debug)]
pub struct OomFacts {
    /// Circumstances of the error.
    pub(crate) oom: Oom,
    /// Message of the error.
    pub(crate) text: Option<String>,
    /// Process in which it occurred.
    pub(crate) process: u32,
    /// `true` if it ended the process.
    pub(crate) uncaught: bool,
    /// Steps completed after the last error.
    pub(crate) steps_after: u64,
}

impl Facts {
    /// Rank with the highest device peak.
    pub fn fullest(&self) -> Option<&RankFacts> {
        self.ranks.get(self.fullest)
    }

    /// Rank whose own loader was measured.
    pub fn measured(&self) -> Option<&RankFacts> {
        self.ranks.iter().find(|rank| rank.loader.is_some())
    }

    /// Peaks of the rank with the highest device peak.
    pub(crate) fn peak(&self) -> Peak {
        self.fullest().map(|rank| rank.peak).unwrap_or_default()
    }

    /// Returns `true` if the user or the time limit stopped the run.
    pub(crate) fn was_stopped(&self) -> bool {
        matches!(self.ended, Ended::Interrupted | Ended::TimedOut)
    }

    /// Returns `true` if anything was allocated on a device.
    pub(crate) fn used_gpu(&self) -> bool {
        self.oom.is_some() || self.ranks.iter().any(|rank| rank.peak.reserved > 0)
    }

    /// Returns `true` if a value with one of these possible consequences was read back.
    pub(crate) fn has_read(&self, stakes: &[Stake]) -> bool {
        self.tally.values.iter().any(|(_, stake)| stakes.contains(stake))
    }

    /// The first few lines that read back numbers which only a GPU can compute, as part of a sentence; `None`
    /// if none is known.
    pub(crate) fn lines_read(&self) -> Option<String> {
        let values = self.tally.values.iter();
        let numbers = values.filter(|(_, stake)| {
            matches!(stake, Stake::Number | Stake::Condition | Stake::Count | Stake::Unbounded)
        });
        let mut lines: Vec<&str> = Vec::new();
        for line in numbers.flat_map(|(value, _)| &value.lines) {
            if !lines.contains(&line.as_str()) {
                lines.push(line);
            }
        }
        lines.truncate(MAX_NAMED);
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    /// The first few sizes that were read back but only a GPU can compute, as part of a sentence.
    pub(crate) fn sizes_read(&self) -> Option<String> {
        let values = self.tally.values.iter();
        let sizes: Vec<String> = values
            .filter(|(_, stake)| matches!(stake, Stake::Size | Stake::Unbounded))
            .map(|(value, _)| match value.lines.first() {
                Some(line) => format!("{} (at {line})", value.call),
                None => value.call.clone(),
            })
            .take(MAX_NAMED)
            .collect();
        (!sizes.is_empty()).then(|| sizes.join("; "))
    }

    /// Description of the device. For a real device, its own data are used.
    pub(crate) fn device(&self, request: &Request) -> DeviceInfo {
        let info = request.card.info();
        match &self.real {
            Some(real) => DeviceInfo { name: real.before.name.clone(), capacity: real.before.total, ..info },
            None => info,
        }
    }

    /// Coverage of all ranks.
    pub(crate) fn coverage(&self) -> Coverage {
        let dones: Vec<_> = self.ranks.iter().filter_map(|rank| rank.done.as_ref()).collect();
        let all = |covered: fn(&Done) -> bool| {
            dones.len() == self.ranks.len() && !dones.is_empty() && dones.iter().all(|done| covered(done))
        };
        Coverage {
            steps: self.steps(),
            forward_only: all(|done| done.forward_only),
            evaluation: all(|done| done.evaluation),
            largest_batch: all(|done| done.largest_batch),
            epoch_end: all(|done| done.epoch_end),
            has_loader: dones.iter().any(|done| done.feeding.is_some()),
            growth_per_step: dones.iter().filter_map(|done| done.growth_per_step).max(),
            not_run: not_run::of_ranks(&dones),
        }
    }

    /// The signal by which compiled code crashed after every rank had come to the script's end.
    pub(crate) fn crashed_at_end(&self) -> Option<i32> {
        let Ended::Signalled(signal) = self.ended else { return None };
        let at_end = |rank: &RankFacts| rank.done.as_ref().is_some_and(|done| done.reason == "exit");
        (is_crash(signal) && !self.ranks.is_empty() && self.ranks.iter().all(at_end)).then_some(signal)
    }

    /// Minimum of the steps that each rank completed.
    pub(crate) fn steps(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.steps).min().unwrap_or(0)
    }
}

/// Collects the facts of a run.
pub(crate) fn gather(
    command: &Command,
    torch: Option<&Torch>,
    stage: &Stage,
    watched: Watched,
    tracks: &[Track],
    wall: Duration,
) -> Facts {
    let Watched { ended, inbox, ledger, host, real } = watched;
    let ledger = ledger.unwrap_or_default();
    let setup = stage.setup().clone();
    let logged = |pid| tracks.iter().find(|track| track.pid == pid).and_then(recording::fullest);
    let mut ranks: Vec<RankFacts> = inbox
        .ranks_by(&|pid| logged(pid).is_some_and(|fullest| fullest.reserved > 0))
        .into_iter()
        .enumerate()
        .map(|(index, (pid, speaker))| rank(index as u32, pid, speaker, logged(pid), &ledger))
        .collect();
    if let (Some(real), [rank]) = (&real, ranks.as_mut_slice()) {
        rank.peak.device = rank.peak.reserved.max(real.own());
        rank.peak.device_upper = rank.peak.device;
        rank.outside.context = rank.peak.device - rank.peak.reserved;
    }
    if setup.shares_host_memory() {
        for rank in &mut ranks {
            rank.peak.device += host.resident;
            rank.peak.device_upper += host.resident;
        }
    }
    let fullest = (0..ranks.len()).rev().max_by_key(|index| ranks[*index].peak.device_upper).unwrap_or(0);
    let (last_output, oom) = (output::output_tail(stage), failures::out_of_memory(&inbox));
    let steps = ranks.iter().map(|rank| rank.steps).min().unwrap_or(0);
    let printed = oom.is_none().then(|| output::printed_exception(ended, steps, &last_output)).flatten();
    let raised = failures::uncaught(&inbox, ended);
    let survived = raised.is_none() && printed.is_some() && ended == Ended::Exited(0);
    let uncaught = raised.or(printed.as_ref().map(|printed| (printed, Cause::default())));
    let tally = tally(&ledger, setup.values, &inbox);
    let conditions = conditions(&inbox);
    // Only runs that assumed values are compared with others.
    let assumes = !tally.values.is_empty() || !conditions.is_empty();
    Facts {
        ended,
        overhead: stage.overhead().cloned(),
        command: without_secrets(command.words()),
        fullest,
        tally,
        notes: notes(&inbox, tracks, stage.run_dir(), command),
        repeated: (inbox.processes.values())
            .filter_map(|speaker| speaker.repeated.clone())
            .max_by_key(|(_, count)| *count),
        block_use: if assumes { BlockUse::by_process(tracks) } else { Vec::new() },
        conditions,
        interpreter: interpreter(&inbox, command),
        watched: !inbox.processes.is_empty(),
        oom,
        exception: uncaught.as_ref().map(|(exception, _)| (*exception).clone()),
        survived,
        stopped_at: matches!(ended, Ended::Signalled(_) | Ended::TimedOut | Ended::Interrupted)
            .then(|| {
                let ranks = inbox.ranks().into_iter().map(|(pid, _)| pid).collect();
                output::stopped_at(stage.run_dir(), &ranks, &inbox.launchers())
            })
            .flatten(),
        // Only told of a script that has not come to a step.
        passes_without_training: if steps == 0 { recording::passes_without_training(tracks) } else { 0 },
        overlaid: uncaught
            .as_ref()
            .map(|_| overlaid::names(&stage.run_dir().overlay_tree()))
            .unwrap_or_default(),
        read_back: stage.run_dir().read_back().exists(),
        cause: uncaught.map(|(_, cause)| cause).unwrap_or_default(),
        on_host: inbox.processes.values().find_map(|speaker| speaker.on_host.clone()),
        torch: inbox
            .processes
            .values()
            .find_map(|speaker| speaker.torch.clone())
            .or_else(|| torch.map(|torch| torch.version.clone())),
        alloc_conf: match inbox.processes.values().find(|speaker| speaker.torch.is_some()) {
            Some(speaker) => speaker.alloc_conf.clone(),
            None => recording::alloc_conf(),
        },
        real,
        host,
        pinned: ledger.processes.iter().map(|process| process.peak_pinned).sum(),
        wall,
        last_output,
        ranks,
        gpus: gpu_peaks::gpu_peaks(&ledger),
        setup,
    }
}

fn rank(index: u32, pid: u32, speaker: &Speaker, logged: Option<Fullest>, ledger: &LedgerView) -> RankFacts {
    let (ordinal, stats) = statistics(speaker, logged.as_ref());
    let share = ledger.processes.iter().find(|process| process.pid == pid).and_then(fullest_share);
    let number = share.map_or(ordinal, |(card, _)| card);
    let mut peak = Peak { allocated: stats.peak_allocated, reserved: stats.peak_reserved, ..Peak::default() };
    let mut outside = OutsideView::default();
    if let Some((_, share)) = share {
        // Without a last message and without a log, the ledger's figures are still known.
        peak.reserved = if peak.reserved == 0 { share.peak } else { peak.reserved };
        peak.device = share.peak_device;
        peak.device_upper = share.peak_device_upper;
        outside = share.outside;
    }
    if let Some(card) = ledger.cards.get(number as usize) {
        // The verdict is about the device, which holds the memory of all processes on it.
        peak.device = peak.device.max(card.peak_device);
        peak.device_upper = peak.device_upper.max(card.peak_device_upper);
        outside = card.outside_at_peak;
    }
    peak.device = peak.device.max(peak.reserved);
    peak.device_upper = peak.device_upper.max(peak.device);
    RankFacts {
        rank: speaker.rank.unwrap_or(index),
        card: number,
        peak,
        outside,
        steps: speaker.all_steps(),
        done: speaker.done.clone(),
        marks: speaker.marks.clone(),
        refused: speaker.refused.clone(),
        training: speaker.training.clone(),
        loader: speaker.loader.clone(),
        trials: speaker.trials.clone(),
        pending: stats.peak_active.saturating_sub(stats.peak_allocated),
        repeated: logged.as_ref().and_then(|logged| logged.repeated.clone()),
        at_peak: logged.and_then(|logged| logged.at_peak),
    }
}

/// PyTorch's own statistics of the device that a process used most, with the process's index for it. For a
/// process without a last message, the statistics come from its log.
fn statistics(speaker: &Speaker, logged: Option<&Fullest>) -> (u32, DeviceStats) {
    let reported = speaker.done.as_ref().and_then(|done| {
        done.devices
            .iter()
            .max_by_key(|(_, stats)| stats.peak_reserved)
            .map(|(device, stats)| (*device, *stats))
    });
    let (device, mut stats) = reported.unwrap_or_default();
    stats.peak_allocated = stats.peak_allocated.max(speaker.peak_allocated);
    match logged {
        // The log has the same totals block by block; a script may have reset PyTorch's own peak counters.
        Some(logged) if reported.is_none() || logged.device == device => {
            stats.peak_allocated = stats.peak_allocated.max(logged.allocated);
            stats.peak_reserved = stats.peak_reserved.max(logged.reserved);
            (logged.device, stats)
        }
        _ => (device, stats),
    }
}

fn fullest_share(process: &ProcessView) -> Option<(u32, memfit_channel::ledger::ShareView)> {
    (0_u32..)
        .zip(&process.shares)
        .filter(|(_, share)| share.was_used())
        .max_by_key(|(_, share)| share.peak_device_upper)
        .map(|(card, share)| (card, *share))
}

fn tally(ledger: &LedgerView, policy: ValuePolicy, inbox: &Inbox) -> Tally {
    let mut tally = Tally::default();
    for entry in &ledger.tally {
        let counted = || CallCount { call: entry.name.clone(), count: entry.count };
        match entry.kind {
            TallyKind::Unmodelled => tally.unmodelled.push(counted()),
            TallyKind::ValuePolicy => {
                let (text, stake) = assumption_text(&entry.name);
                let call = match stake {
                    Stake::Size => format!("{text}: {policy} used"),
                    Stake::Unbounded => format!("{text}; no bound follows"),
                    Stake::Value | Stake::Number | Stake::Condition | Stake::Count => text.to_owned(),
                };
                let lines = lines_that_read(inbox, &entry.name);
                tally.values.push((AssumedValue { call, count: entry.count, lines }, stake));
            }
            TallyKind::Note => tally.notes.push(Note::received(&entry.name, BTreeMap::new())),
            TallyKind::RemarkBytes => {
                tally.remark_bytes.insert(entry.name.clone(), entry.count);
            }
        }
    }
    if ledger.tally.len() >= MAX_TALLY {
        tally.notes.push(Note::new(Remark::TallyFull));
    }
    tally
}

/// Interpreter that imported torch, as it reported itself.
fn interpreter(inbox: &Inbox, command: &Command) -> Option<String> {
    let importer = inbox.processes.values().find(|speaker| speaker.torch.is_some());
    importer
        .and_then(|speaker| speaker.executable.clone())
        .filter(|path| !path.is_empty())
        .or_else(|| command.python.as_ref().map(|path| path.display().to_string()))
}

fn notes(inbox: &Inbox, tracks: &[Track], run_dir: &RunDir, command: &Command) -> Vec<Note> {
    let mut notes = Vec::new();
    for note in inbox.processes.values().flat_map(|speaker| &speaker.notes) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    if inbox.garbled > 0 {
        notes.push(Note::new(Remark::Garbled).with_value("count", inbox.garbled.to_string()));
    }
    if tracks.iter().any(|track| track.truncated) {
        notes.push(Note::new(Remark::LogFull));
    }
    if let Some(skipped) = &command.skipped {
        let note = Note::new(Remark::PythonSkipped).with_value("path", skipped.display().to_string());
        notes.push(note.with_value("python", command.program.display().to_string()));
    }
    let redirected =
        [(run_dir.saved_checkpoints(), Remark::Checkpoints), (run_dir.kept_files(), Remark::FilesKept)];
    for (mark, remark) in redirected {
        if mark.exists() {
            notes.push(Note::new(remark));
        }
    }
    notes
}

/// First lines of the script's processes that read a value of this assumption.
fn lines_that_read(inbox: &Inbox, id: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let assumed = inbox.processes.values().flat_map(|speaker| &speaker.assumed);
    for (_, line) in assumed.filter(|(assumption, _)| assumption == id) {
        if lines.len() < MAX_LINES && !lines.contains(line) {
            lines.push(line.clone());
        }
    }
    lines
}

/// Places of conditions on unknown values, each once, in the order of their first evaluation.
fn conditions(inbox: &Inbox) -> Vec<String> {
    let mut known = BTreeSet::new();
    let all = inbox.processes.values().flat_map(|speaker| &speaker.conditions);
    all.filter(|place| known.insert(place.as_str())).cloned().collect()
}

/// Returns `true` if a refused call may affect memory.
pub(crate) fn may_affect_memory(call: &str) -> bool {
    !IRRELEVANT_CALLS.iter().any(|prefix| call.starts_with(prefix))
}

#[cfg(test)]
mod tests;
