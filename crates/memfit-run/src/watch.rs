//! Follows a run from its first process to its last, and decides when it is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use memfit_channel::ledger::LedgerView;
use memfit_channel::proc::Stat;

use crate::environment::Command;
use crate::forks::Server;
use crate::host::{HostPeaks, HostWatch, Pace};
use crate::inbox::{Inbox, Speaker};
use crate::keeper::Keeper;
use crate::local::{LocalGpu, Reading};
use crate::process::{self, Running};
use crate::progress::Line;
use crate::stage::Stage;
use crate::tree;
use crate::{Console, RunError};
use crate::{Interrupt, Request};

/// Interval for reading messages.
const MESSAGE_PACE: Pace = Pace::new(Duration::from_millis(10), Duration::from_millis(250));
/// Interval for the more expensive readings.
const SAMPLE_PACE: Pace = Pace::new(Duration::from_millis(200), Duration::from_secs(2));
/// A process that shows no activity for this long counts as stalled once another rank is done, or once it has
/// failed.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every rank has completed the requested steps.
    Complete,
    /// A rank has completed the steps, and others stalled; or a process that had failed did not end.
    Stalled,
    /// The command ended by itself, with this status.
    Exited(i32),
    /// A signal that memfit did not send ended the command.
    Signalled(i32),
    /// The user interrupted the run.
    Interrupted,
    /// The time limit was reached.
    TimedOut,
}

/// Observations of a run.
#[derive(Debug)]
pub(crate) struct Watched {
    /// End of the run.
    pub(crate) ended: Ended,
    /// Messages of the processes.
    pub(crate) inbox: Inbox,
    /// Final state of the ledger, if the device is virtual.
    pub(crate) ledger: Option<LedgerView>,
    /// Peaks on the host.
    pub(crate) host: HostPeaks,
    /// Memory of the real GPU, if the run uses one.
    pub(crate) real: Option<RealCard>,
}

/// Memory of a real device during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RealCard {
    /// State before the run.
    pub(crate) before: Reading,
    /// Peak of what all programs use beyond that.
    grown: u64,
    /// Peak of what the driver counts for the run's processes, and what other programs used then; `None` if
    /// it never counted any.
    counted: Option<(u64, u64)>,
}

impl RealCard {
    fn new(before: Reading) -> Self {
        Self { before, grown: 0, counted: None }
    }

    /// Takes a reading: what all programs use, and what the driver counts for each.
    fn see(&mut self, used: u64, by_process: &BTreeMap<u32, u64>, pids: &BTreeSet<u32>) {
        self.grown = self.grown.max(used.saturating_sub(self.before.used));
        let own: u64 = pids.iter().filter_map(|pid| by_process.get(pid)).sum();
        if own > self.counted.map_or(0, |(most, _)| most) {
            self.counted = Some((own, used.saturating_sub(own)));
        }
    }

    /// Peak of the run's own use. Where the driver does not tell processes apart, all growth counts as the
    /// run's, assuming that the use by other programs is constant.
    pub(crate) fn own(&self) -> u64 {
        self.counted.map_or(self.grown, |(own, _)| own)
    }

    /// Memory of other programs at that peak.
    pub(crate) fn others(&self) -> u64 {
        self.counted.map_or(self.before.used, |(_, others)| others)
    }
}

/// Starts the command and follows it to its end. When this returns, none of its processes is left.
pub(crate) fn run(
    request: &Request,
    command: &Command,
    stage: &Stage,
    local: Option<&LocalGpu>,
    server: Option<&Server>,
    console: &dyn Console,
) -> Result<Watched, RunError> {
    let interrupted = Interrupt::listen();
    process::adopt_orphans();
    let keeper = Keeper::start(stage.run_dir(), request.keep)
        .map_err(RunError::io("start a keeper for the run in", stage.run_dir().path()))?;
    let host = HostWatch::start();
    let real = local.and_then(LocalGpu::read).map(RealCard::new);
    let forked = server.and_then(|server| server.fork(stage));
    let mut child = match forked {
        Some(forked) => forked,
        None => Running::Child(process::start(command, stage)?),
    };
    let mut watch = Watch {
        request,
        stage,
        console,
        inbox: Inbox::default(),
        ledger: None,
        host,
        local,
        real,
        line: Line::new(console.progress(), request.steps),
        output: [Show::new(&stage.run_dir().stdout()), Show::new(&stage.run_dir().stderr())],
        started: Instant::now(),
        hearing: MESSAGE_PACE,
        looking: SAMPLE_PACE,
        life: Life::default(),
    };
    let ended = watch.follow(&mut child, &interrupted);
    // Read once more before the end, for state that exists only while a process does, and once after it, for
    // last messages.
    watch.sample(child.id(), true);
    if matches!(ended, Ended::TimedOut | Ended::Interrupted) {
        process::ask_where(&child, stage.run_dir());
    }
    process::end_all(&mut child, stage.run_dir());
    drop(keeper);
    watch.read_messages();
    watch.line.clear();
    let ledger = LedgerView::read(stage.run_dir())?.or(watch.ledger);
    Ok(Watched { ended, inbox: watch.inbox, ledger, host: watch.host.peaks(), real: watch.real })
}

struct Watch<'a> {
    request: &'a Request,
    stage: &'a Stage,
    console: &'a dyn Console,
    inbox: Inbox,
    ledger: Option<LedgerView>,
    host: HostWatch,
    local: Option<&'a LocalGpu>,
    real: Option<RealCard>,
    line: Line,
    output: [Show; 2],
    started: Instant,
    hearing: Pace,
    looking: Pace,
    life: Life,
}

impl Watch<'_> {
    fn follow(&mut self, child: &mut Running, interrupt: &Interrupt) -> Ended {
        loop {
            // Read the status first: when a process has been reaped, all its messages are written.
            let status = child.try_wait();
            let mut hearing = self.hearing;
            hearing.work(|| self.read_messages());
            self.hearing = hearing;
            if self.looking.is_due() {
                let mut looking = self.looking;
                looking.work(|| self.sample(child.id(), false));
                self.looking = looking;
            }
            if let Some(ended) = self.complete() {
                return ended;
            }
            if let Some(status) = status {
                return ended_with(status);
            }
            if self.hangs_after_failure() {
                return Ended::Stalled;
            }
            if interrupt.happened() {
                return Ended::Interrupted;
            }
            if self.request.timeout.is_some_and(|timeout| self.started.elapsed() >= timeout) {
                return Ended::TimedOut;
            }
            std::thread::sleep(self.hearing.interval());
        }
    }

    /// Reads new messages, and passes on the script's output.
    fn read_messages(&mut self) {
        self.inbox.poll(self.stage.run_dir());
        if self.request.show_output {
            for show in &mut self.output {
                if let Some(new) = show.new_bytes() {
                    self.line.clear();
                    self.console.script_output(&new);
                }
            }
        }
    }

    /// Reads the processes, the ledger and the host; with `end`, everything.
    fn sample(&mut self, root: u32, end: bool) {
        let all = tree::all_processes();
        let mut pids = tree::descendants(&all, root);
        pids.extend(self.inbox.processes.keys().filter(|pid| all.contains_key(pid)));
        self.host.sample(&pids, end);
        if let (Some(real), Some(local)) = (&mut self.real, self.local)
            && let Some(used) = local.used()
        {
            real.see(used, &local.used_by_process(), &pids);
        }
        // A ledger that does not exist yet, or is incomplete, is retried at the next reading.
        self.ledger = LedgerView::read(self.stage.run_dir()).ok().flatten().or_else(|| self.ledger.take());
        self.life.note(&all, &self.inbox);
        self.line.draw(&self.inbox, self.ledger.as_ref(), self.started.elapsed());
    }

    /// Returns how the run ended once every rank has completed its requested steps.
    fn complete(&self) -> Option<Ended> {
        let speakers = || self.inbox.processes.values();
        if !speakers().any(Speaker::is_complete) {
            return None;
        }
        let world = speakers().filter_map(|speaker| speaker.world_size).max().unwrap_or(1);
        let waiting = if world > 1 {
            // A rank may also have ended by itself before the steps were complete.
            self.inbox.finished_ranks() < world as usize
        } else {
            self.alive().any(|(pid, speaker)| self.trains(pid, speaker))
        };
        match waiting {
            false => Some(Ended::Complete),
            true if self.life.last_sign.elapsed() > STALL_TIMEOUT => Some(Ended::Stalled),
            true => None,
        }
    }

    /// Returns `true` if exceptions have ended all processes that train, and one of them still waits: for a
    /// thread, or in a library that shuts down.
    fn hangs_after_failure(&self) -> bool {
        let has_failed = |speaker: &Speaker| speaker.exception.is_some();
        self.alive().any(|(_, speaker)| has_failed(speaker))
            && self.alive().all(|(pid, speaker)| has_failed(speaker) || !self.trains(pid, speaker))
            && self.life.last_sign.elapsed() > STALL_TIMEOUT
    }

    /// The script's processes that have not ended.
    fn alive(&self) -> impl Iterator<Item = (u32, &Speaker)> {
        let processes = self.inbox.processes.iter().map(|(pid, speaker)| (*pid, speaker));
        processes.filter(|(pid, _)| self.life.is_alive(*pid))
    }

    /// Returns `true` if a process uses the GPU, and is not done.
    fn trains(&self, pid: u32, speaker: &Speaker) -> bool {
        speaker.done.is_none() && (speaker.steps > 0 || self.holds_memory(pid))
    }

    fn holds_memory(&self, pid: u32) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| {
            let process = ledger.processes.iter().find(|process| process.pid == pid && process.alive);
            process.is_some_and(|process| process.shares.iter().any(|share| share.used > 0))
        })
    }
}

fn ended_with(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, signal) => Ended::Signalled(signal.unwrap_or_default()),
    }
}

/// Activity of the ranks that are not done: messages or CPU time.
#[derive(Debug)]
struct Life {
    last_sign: Instant,
    messages: u64,
    ticks: u64,
    alive: BTreeMap<u32, Stat>,
}

impl Default for Life {
    fn default() -> Self {
        Self { last_sign: Instant::now(), messages: 0, ticks: 0, alive: BTreeMap::new() }
    }
}

impl Life {
    /// CPU time in clock ticks up to which a process counts as waiting: about a tenth of a second.
    const MAX_IDLE_TICKS: u64 = 10;

    fn note(&mut self, all: &BTreeMap<u32, Stat>, inbox: &Inbox) {
        let busy = inbox.processes.iter().filter(|(_, speaker)| speaker.done.is_none());
        let ticks = busy.filter_map(|(pid, _)| all.get(pid)).map(|entry| entry.ticks).sum::<u64>();
        if inbox.count != self.messages || ticks.abs_diff(self.ticks) > Self::MAX_IDLE_TICKS {
            (self.messages, self.ticks, self.last_sign) = (inbox.count, ticks, Instant::now());
        }
        self.alive = all.clone();
    }

    fn is_alive(&self, pid: u32) -> bool {
        self.alive.get(&pid).is_some_and(|stat| !stat.ended)
    }
}

/// One of the script's outputs, shown as it grows.
#[derive(Debug)]
struct Show {
    file: Option<File>,
}

impl Show {
    fn new(path: &Path) -> Self {
        Self { file: File::open(path).ok() }
    }

    fn new_bytes(&mut self) -> Option<Vec<u8>> {
        let file = self.file.as_mut()?;
        let at = file.stream_position().ok()?;
        if file.metadata().ok()?.len() < at {
            // The script has truncated its own output.
            file.seek(SeekFrom::Start(0)).ok()?;
        }
        let mut new = Vec::new();
        file.take(1 << 20).read_to_end(&mut new).ok()?;
        (!new.is_empty()).then_some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn card() -> RealCard {
        RealCard::new(Reading { name: "H200".to_owned(), total: 140 * GIB, used: 3 * GIB })
    }

    #[test]
    fn the_use_of_other_programs_is_not_the_runs_own() {
        let (mut card, own) = (card(), BTreeSet::from([7, 8]));
        // Another program starts during the run; one of the run's processes ends before the last reading.
        card.see(5 * GIB, &BTreeMap::from([(1, 3 * GIB), (7, 2 * GIB)]), &own);
        card.see(20 * GIB, &BTreeMap::from([(1, 3 * GIB), (2, 12 * GIB), (7, 4 * GIB), (8, GIB)]), &own);
        card.see(16 * GIB, &BTreeMap::from([(1, 3 * GIB), (2, 12 * GIB), (8, GIB)]), &own);
        assert_eq!((card.own(), card.others()), (5 * GIB, 15 * GIB));
    }

    #[test]
    fn without_figures_of_processes_all_growth_is_the_runs() {
        let (mut card, own) = (card(), BTreeSet::from([7]));
        for by_process in [BTreeMap::new(), BTreeMap::from([(40_000, 9 * GIB)])] {
            card.see(9 * GIB, &by_process, &own);
            assert_eq!((card.own(), card.others()), (6 * GIB, 3 * GIB));
        }
    }
}
