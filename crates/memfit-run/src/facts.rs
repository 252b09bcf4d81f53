//! What came of a run: everything that the verdict and the report are made of.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Duration;

use memfit_channel::ledger::{LedgerView, MAX_TALLY, OutsideView, ProcessView, TallyKind};
use memfit_channel::message::{DeviceStats, Done, HostCompared, Loader, LoaderTrial, Oom, Training};
use memfit_channel::{ClockMark, RunDir, Setup, ValuePolicy};
use memfit_devices::Overhead;
use memfit_recording::Track;
use memfit_report::remarks::{Note, Stake, assumption_text};
use memfit_report::wire::{AtPeak, CallCount, Coverage, DeviceInfo, Exception, Peak};
use memfit_vocabulary::Remark;

use crate::environment::Command;
use crate::host::HostPeaks;
use crate::inbox::{Inbox, Speaker};
use crate::preflight::Torch;
use crate::recording::{self, Fullest};
use crate::request::Request;
use crate::secrets::without_secrets;
use crate::stage::Stage;
use crate::watch::{Ended, RealCard, Watched};

/// How much of the end of what a script printed is kept.
const TAIL: u64 = 64 << 10;

/// So many lines, or sizes, are named where numbers were read back.
const MAX_NAMED: usize = 3;

/// Calls that, refused or not, have nothing to do with what a training holds on a card: telemetry, profilers,
/// logs, and the table by which NVIDIA's tools find each other, which its libraries ask for and do without.
const BESIDE_THE_POINT: &[&str] = &[
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

/// Everything that is known of a run that is over.
#[derive(Clone, Debug)]
pub struct Facts {
    /// How it ended.
    pub ended: Ended,
    /// What was asked of the processes.
    pub(crate) setup: Setup,
    /// The command as it was started.
    pub(crate) command: Vec<String>,
    /// What lies outside the allocator on a virtual card, with who says so.
    pub(crate) overhead: Option<Overhead>,
    /// Its ranks, in order.
    pub(crate) ranks: Vec<RankFacts>,
    /// The index in `ranks` of the one with the highest device peak.
    pub(crate) fullest: usize,
    /// What was counted by name, of each kind.
    pub(crate) tally: Tally,
    /// Remarks of the processes.
    pub(crate) notes: Vec<Note>,
    /// Lines that read integers back which only a GPU computes.
    pub(crate) read_back: Vec<String>,
    /// What the allocators of the processes handed out.
    pub(crate) handed_out: Vec<HandedOut>,
    /// Whether the probe came into any of the script's processes.
    pub(crate) watched: bool,
    /// The first out-of-memory error.
    pub oom: Option<OomFacts>,
    /// An exception that nothing caught and that is no out-of-memory error.
    pub exception: Option<Exception>,
    /// Whether no value can have caused that exception: it lies in the program's text, or in its libraries.
    pub(crate) mistake: bool,
    /// The interpreter that ran the script.
    pub(crate) interpreter: Option<String>,
    /// `torch.__version__`.
    pub(crate) torch: Option<String>,
    /// The allocator's settings: those of the script's own process where it told them.
    pub(crate) alloc_conf: Option<String>,
    /// What came of a run on the host.
    pub on_host: Option<HostCompared>,
    /// The real card, where it is one.
    pub(crate) real: Option<RealCard>,
    /// What it had on the host.
    pub(crate) host: HostPeaks,
    /// The most page-locked memory.
    pub(crate) pinned: u64,
    /// From the start of the command to the end of its processes.
    pub(crate) wall: Duration,
    /// The end of what the script wrote to its standard error, or to its standard output where that is
    /// empty.
    pub last_output: String,
}

/// All that an allocator handed out in the course of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HandedOut {
    blocks: u64,
    bytes: u64,
}

impl HandedOut {
    /// For each process, in an order that does not depend on their numbers.
    fn by_process(tracks: &[Track]) -> Vec<Self> {
        let of = |track: &Track| Self {
            blocks: track.blocks().len() as u64,
            bytes: track.blocks().iter().map(|block| block.bytes).sum(),
        };
        let mut all: Vec<Self> = tracks.iter().map(of).collect();
        all.sort_unstable();
        all
    }
}

/// What the device counted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Calls that are not modelled.
    pub(crate) unmodelled: Vec<CallCount>,
    /// Values that were answered by policy.
    pub(crate) values: Vec<CallCount>,
    /// What each of these may change.
    pub(crate) stakes: Vec<Stake>,
    /// Remarks.
    pub(crate) notes: Vec<Note>,
    /// The most bytes that a remark is about, by its id.
    pub(crate) at_stake: BTreeMap<String, u64>,
}

/// One rank.
#[derive(Clone, Debug, Default)]
pub struct RankFacts {
    /// Which one.
    pub(crate) rank: u32,
    /// The card that it used most.
    pub(crate) card: u32,
    /// Its peaks.
    pub(crate) peak: Peak,
    /// What lay outside the allocator on that card at its peak.
    pub(crate) outside: OutsideView,
    /// Completed steps.
    pub(crate) steps: u64,
    /// Its last word.
    pub done: Option<Done>,
    /// The device's clock at the end of each step.
    pub(crate) marks: Vec<ClockMark>,
    /// Levers that could not be applied, and why.
    pub refused: Vec<(String, String)>,
    /// What the training is, where a plan asked.
    pub training: Option<Training>,
    /// Its own loader, where it was asked about it.
    pub loader: Option<Loader>,
    /// What that gives with each number of workers.
    pub trials: Vec<LoaderTrial>,
    /// By how much memory that waited for another stream raised what was in use at its peak.
    pub(crate) pending: u64,
    /// What filled the card.
    pub(crate) at_peak: Option<AtPeak>,
}

/// An out-of-memory error.
#[derive(Clone, Debug)]
pub struct OomFacts {
    /// Where it struck.
    pub(crate) oom: Oom,
    /// Its text.
    pub(crate) text: Option<String>,
    /// The process that it struck.
    pub(crate) process: u32,
    /// Whether it ended the process.
    pub(crate) uncaught: bool,
    /// Steps that were completed after the last one.
    pub(crate) steps_after: u64,
}

impl Facts {
    /// The rank with the highest device peak.
    pub fn fullest(&self) -> Option<&RankFacts> {
        self.ranks.get(self.fullest)
    }

    /// The rank whose own loader was measured.
    pub fn measured(&self) -> Option<&RankFacts> {
        self.ranks.iter().find(|rank| rank.loader.is_some())
    }

    /// The peaks of that rank.
    pub(crate) fn peak(&self) -> Peak {
        self.fullest().map(|rank| rank.peak).unwrap_or_default()
    }

    /// Whether anything was ever allocated on a card.
    pub(crate) fn used_gpu(&self) -> bool {
        self.oom.is_some() || self.ranks.iter().any(|rank| rank.peak.reserved > 0)
    }

    /// Whether something was read back that may change this.
    pub(crate) fn has_read(&self, stakes: &[Stake]) -> bool {
        self.tally.stakes.iter().any(|stake| stakes.contains(stake))
    }

    /// The lines that read numbers back which only a GPU computes, for a sentence: the first few of them.
    /// Nothing where none is known.
    pub(crate) fn lines_read(&self) -> Option<String> {
        let lines: Vec<&str> = self.read_back.iter().take(MAX_NAMED).map(String::as_str).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    /// The sizes that were read back which only a GPU computes, for a sentence: the first few of them.
    pub(crate) fn sizes_read(&self) -> Option<String> {
        let stakes = self.tally.stakes.iter();
        let sizes: Vec<&str> = (self.tally.values.iter().zip(stakes))
            .filter(|(_, stake)| matches!(stake, Stake::Size | Stake::Unbounded))
            .map(|(value, _)| value.call.as_str())
            .take(MAX_NAMED)
            .collect();
        (!sizes.is_empty()).then(|| sizes.join("; "))
    }

    /// The card: a real one says itself what it is.
    pub(crate) fn device(&self, request: &Request) -> DeviceInfo {
        let info = request.card.info();
        match &self.real {
            Some(real) => DeviceInfo { name: real.before.name.clone(), capacity: real.before.total, ..info },
            None => info,
        }
    }

    /// What all ranks covered.
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
            growth_per_step: dones.iter().filter_map(|done| done.growth_per_step).max(),
        }
    }

    /// The fewest steps that any rank completed.
    pub(crate) fn steps(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.steps).min().unwrap_or(0)
    }
}

/// Puts together what was seen.
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
    let mut ranks: Vec<RankFacts> = inbox
        .ranks()
        .into_iter()
        .enumerate()
        .map(|(index, (pid, speaker))| {
            let track = tracks.iter().find(|track| track.pid == pid);
            let fullest = track.and_then(recording::fullest);
            rank(index as u32, pid, speaker, fullest, &ledger)
        })
        .collect();
    if let (Some(real), [rank]) = (&real, ranks.as_mut_slice()) {
        // What the card shows beyond what was there before is this run's, as far as it was alone in changing.
        let seen = real.most_used.saturating_sub(real.before.used);
        rank.peak.device = rank.peak.reserved.max(seen);
        rank.peak.device_upper = rank.peak.device;
        rank.outside.context = rank.peak.device - rank.peak.reserved;
    }
    let fullest = (0..ranks.len()).rev().max_by_key(|index| ranks[*index].peak.device_upper).unwrap_or(0);
    let uncaught = uncaught(&inbox);
    Facts {
        ended,
        overhead: stage.overhead().cloned(),
        command: without_secrets(command.words()),
        fullest,
        tally: tally(&ledger, setup.values),
        notes: notes(&inbox, tracks, stage.run_dir(), command),
        read_back: read_back(&inbox),
        handed_out: HandedOut::by_process(tracks),
        interpreter: interpreter(&inbox, command),
        watched: !inbox.processes.is_empty(),
        oom: oom(&inbox),
        exception: uncaught.map(|(exception, _)| exception.clone()),
        mistake: uncaught.is_some_and(|(_, mistake)| mistake),
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
        last_output: last_output(stage),
        ranks,
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
        // Without last words and without a log, what the card lent is still known.
        peak.reserved = if peak.reserved == 0 { share.peak } else { peak.reserved };
        peak.device = share.peak_device;
        peak.device_upper = share.peak_device_upper;
        outside = share.outside;
    }
    if let Some(card) = ledger.cards.get(number as usize) {
        // The card sees all of its processes, and the verdict is about what the card sees.
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
        at_peak: logged.and_then(|logged| logged.at_peak),
    }
}

/// PyTorch's own statistics of the device that a process used most, with the process's number for it; or what
/// the log of a process without last words says.
fn statistics(speaker: &Speaker, logged: Option<&Fullest>) -> (u32, DeviceStats) {
    let last_words = speaker.done.as_ref().and_then(|done| {
        done.devices
            .iter()
            .max_by_key(|(_, stats)| stats.peak_reserved)
            .map(|(device, stats)| (*device, *stats))
    });
    let (device, mut stats) = last_words.unwrap_or_default();
    stats.peak_allocated = stats.peak_allocated.max(speaker.peak_allocated);
    match logged {
        // The log has the same totals, block by block; a script may have set PyTorch's own peaks back.
        Some(logged) if last_words.is_none() || logged.device == device => {
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

fn tally(ledger: &LedgerView, policy: ValuePolicy) -> Tally {
    let mut tally = Tally::default();
    for entry in &ledger.tally {
        let counted = || CallCount { call: entry.name.clone(), count: entry.count };
        match entry.kind {
            TallyKind::Unmodelled => tally.unmodelled.push(counted()),
            TallyKind::ValuePolicy => {
                let (text, stake) = assumption_text(&entry.name);
                let call = match stake {
                    Stake::Size => format!("{text}, {policy} used"),
                    Stake::Unbounded => format!("{text}; no bound follows"),
                    Stake::Value | Stake::Number => text.to_owned(),
                };
                tally.stakes.push(stake);
                tally.values.push(CallCount { call, count: entry.count });
            }
            TallyKind::Note => tally.notes.push(Note::received(&entry.name, BTreeMap::new())),
            TallyKind::AtStake => {
                tally.at_stake.insert(entry.name.clone(), entry.count);
            }
        }
    }
    if ledger.tally.len() >= MAX_TALLY {
        tally.notes.push(Note::new(Remark::TallyFull));
    }
    tally
}

/// The interpreter that imported torch, by its own account.
fn interpreter(inbox: &Inbox, command: &Command) -> Option<String> {
    let said = inbox.processes.values().find(|speaker| speaker.torch.is_some());
    said.and_then(|speaker| speaker.executable.clone())
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
        notes.push(Note::new(Remark::Garbled).with("count", inbox.garbled.to_string()));
    }
    if tracks.iter().any(|track| track.truncated) {
        notes.push(Note::new(Remark::LogFull));
    }
    if let Some(skipped) = &command.skipped {
        let note = Note::new(Remark::PythonSkipped).with("path", skipped.display().to_string());
        notes.push(note.with("python", command.program.display().to_string()));
    }
    let led_aside =
        [(run_dir.saved_checkpoints(), Remark::Checkpoints), (run_dir.kept_files(), Remark::FilesKept)];
    for (mark, remark) in led_aside {
        if mark.exists() {
            notes.push(Note::new(remark));
        }
    }
    notes
}

fn read_back(inbox: &Inbox) -> Vec<String> {
    let mut places = Vec::new();
    for place in inbox.processes.values().flat_map(|speaker| &speaker.read_back) {
        if !places.contains(place) {
            places.push(place.clone());
        }
    }
    places
}

fn oom(inbox: &Inbox) -> Option<OomFacts> {
    let (process, speaker) = inbox
        .processes
        .iter()
        .find(|(_, speaker)| !speaker.ooms.is_empty() || !speaker.oom_texts.is_empty())?;
    // An error whose place was not seen, because it struck before the probe could attach to the allocator.
    let unseen = || Oom {
        requested: 0,
        device: 0,
        step: speaker.steps + 1,
        phase: "other".to_owned(),
        module: None,
        stack: Vec::new(),
    };
    let uncaught = speaker.exception.as_ref().is_some_and(|(_, oom)| *oom);
    // An error that ended the script is the one to tell; of those that it caught, the first.
    let which = if uncaught { speaker.ooms.last() } else { speaker.ooms.first() };
    let text = if uncaught { speaker.oom_texts.last() } else { speaker.oom_texts.first() };
    let last = speaker.ooms.last().map_or(speaker.steps, |(_, steps)| *steps);
    Some(OomFacts {
        oom: which.map_or_else(unseen, |(oom, _)| oom.clone()),
        text: text.cloned(),
        process: *process,
        uncaught,
        steps_after: speaker.all_steps().saturating_sub(last),
    })
}

/// The exception to tell, and whether no value can have caused it. A launcher's only says that a process
/// which it started has failed.
fn uncaught(inbox: &Inbox) -> Option<(&Exception, bool)> {
    let failed: Vec<(u32, &Speaker)> = inbox
        .processes
        .iter()
        .filter(|(_, speaker)| speaker.exception.is_some())
        .map(|(pid, speaker)| (*pid, speaker))
        .collect();
    let started = |launcher: u32, speaker: &Speaker| {
        let mut parent = speaker.parent;
        // Process ids may be used again: no more steps than there are processes.
        for _ in 0..inbox.processes.len() {
            match parent {
                Some(pid) if pid == launcher => return true,
                Some(pid) => parent = inbox.processes.get(&pid).and_then(|speaker| speaker.parent),
                None => return false,
            }
        }
        false
    };
    let is_launcher = |pid: u32| failed.iter().any(|(other, speaker)| *other != pid && started(pid, speaker));
    failed
        .iter()
        .filter_map(|(pid, speaker)| {
            let (exception, oom) = speaker.exception.as_ref()?;
            (!oom).then_some(((is_launcher(*pid), speaker.rank.is_none()), (exception, speaker.mistake)))
        })
        .min_by_key(|(order, _)| *order)
        .map(|(_, uncaught)| uncaught)
}

fn last_output(stage: &Stage) -> String {
    let stderr = tail(&stage.run_dir().stderr());
    if stderr.trim().is_empty() { tail(&stage.run_dir().stdout()) } else { stderr }
}

fn tail(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// Whether a refused call may have to do with memory.
pub(crate) fn matters(call: &str) -> bool {
    !BESIDE_THE_POINT.iter().any(|prefix| call.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_hold_no_memory_raise_no_doubt() {
        assert!(!matters("nvmlDeviceGetFanSpeed") && !matters("cuptiActivityEnable"));
        assert!(matters("cudaGraphicsMapResources") && matters("cuMemCreate"));
    }
}
