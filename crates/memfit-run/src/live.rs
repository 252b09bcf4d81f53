//! A run in progress that was started by another process.
//!
//! Finds its processes by the run directory in their initial environment. The processes are not contacted:
//! only their messages and the ledger in that directory are read.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use memfit_channel::ledger::{CardView, LedgerView};
use memfit_channel::proc::{self, Stat};
use memfit_channel::{RunDir, Setup};
use memfit_report::wire::{CardKind, WatchedCard, WatchedOom, WatchedProcess, WatchedRun};

use crate::host;
use crate::inbox::{Inbox, Speaker};
use crate::local::LocalGpu;
use crate::tree;

/// Maximum readings that are kept per device.
const MAX_READINGS: usize = 240;

/// A run in progress, and its readings so far.
#[derive(Debug)]
pub struct LiveRun {
    run_dir: RunDir,
    setup: Setup,
    began: SystemTime,
    inbox: Inbox,
    local: Option<LocalGpu>,
    /// First of its processes, and its command line.
    first: (u32, Vec<String>),
    seen: Option<WatchedRun>,
}

/// Run directories of visible processes, each with its processes.
fn in_progress(all: &BTreeMap<u32, Stat>) -> BTreeMap<PathBuf, Vec<u32>> {
    let mut runs: BTreeMap<PathBuf, Vec<u32>> = BTreeMap::new();
    for (pid, entry) in all {
        if let Some(run_dir) = (!entry.ended).then(|| tree::process_run_dir(*pid)).flatten() {
            runs.entry(run_dir).or_default().push(*pid);
        }
    }
    runs
}

/// Command line of a process, for display.
fn command_line(pid: u32) -> Vec<String> {
    let words = proc::command_line(pid).unwrap_or_default();
    words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

impl LiveRun {
    /// Finds the runs in progress that `pid` belongs to, or all of them, in order of their start.
    pub fn find(pid: Option<u32>) -> Vec<Self> {
        let all = tree::all_processes();
        let wanted = pid.map(|pid| tree::descendants(&all, pid));
        let mut runs: Vec<Self> = in_progress(&all)
            .into_iter()
            .filter(|(_, pids)| {
                wanted.as_ref().is_none_or(|wanted| pids.iter().any(|pid| wanted.contains(pid)))
            })
            .filter_map(|(path, pids)| Self::open(RunDir::new(path), &pids, &all))
            .collect();
        runs.sort_by_key(|run| run.began);
        runs
    }

    /// Opens the run of this directory, if it is readable.
    fn open(run_dir: RunDir, pids: &[u32], all: &BTreeMap<u32, Stat>) -> Option<Self> {
        let setup = Setup::read(&run_dir).ok()?;
        let began = fs::metadata(run_dir.setup()).ok()?.modified().ok()?;
        // The first process is the one whose parent is not part of the run.
        let outside = |pid: &&u32| all.get(pid).is_none_or(|entry| !pids.contains(&entry.parent));
        let first = *pids.iter().find(outside).or_else(|| pids.first())?;
        let local = setup.cards.is_empty().then(LocalGpu::find).flatten();
        let first = (first, command_line(first));
        Some(Self { run_dir, setup, began, inbox: Inbox::default(), local, first, seen: None })
    }

    /// Run directory, which identifies the run.
    pub fn run_dir(&self) -> &RunDir {
        &self.run_dir
    }

    /// Reads the current state. After its last process has ended, a run shows its last state, marked as
    /// ended.
    pub fn read_state(&mut self) -> WatchedRun {
        let over = !self.run_dir.setup().exists() || tree::with_run_dir(&self.run_dir).is_empty();
        if let (true, Some(seen)) = (over, &mut self.seen) {
            seen.ended = true;
            for process in &mut seen.processes {
                process.alive = false;
            }
            return seen.clone();
        }
        self.inbox.poll(&self.run_dir);
        let ledger = LedgerView::read(&self.run_dir).ok().flatten().unwrap_or_default();
        let run = WatchedRun {
            pid: self.first.0,
            command: self.first.1.clone(),
            ended: over,
            seconds: self.began.elapsed().unwrap_or_default().as_secs_f64(),
            steps: self.inbox.processes.values().map(Speaker::all_steps).max().unwrap_or(0),
            steps_wanted: (self.setup.steps > 0).then_some(self.setup.steps),
            torch: self.inbox.processes.values().find_map(|speaker| speaker.torch.clone()),
            kind: if self.setup.cards.is_empty() { CardKind::Real } else { CardKind::Virtual },
            cards: self.cards(&ledger),
            processes: self.processes(&ledger),
            oom: self.last_oom(),
        };
        self.seen = Some(run.clone());
        run
    }

    fn cards(&self, ledger: &LedgerView) -> Vec<WatchedCard> {
        let before = |index: usize| self.seen.as_ref().and_then(|seen| seen.cards.get(index));
        let with_history = |index: usize, mut card: WatchedCard| {
            let before = before(index);
            card.peak = card.peak.max(card.used).max(before.map_or(0, |before| before.peak));
            card.history = before.map(|before| before.history.clone()).unwrap_or_default();
            card.history.push(card.used);
            let old = card.history.len().saturating_sub(MAX_READINGS);
            card.history.drain(..old);
            card
        };
        if let Some(reading) = self.local.as_ref().and_then(LocalGpu::read) {
            let (name, capacity, used) = (reading.name, reading.total, reading.used);
            let card = WatchedCard { name, capacity, used, peak: used, history: Vec::new() };
            return vec![with_history(0, card)];
        }
        let setups = self.setup.cards.iter().enumerate();
        setups
            .map(|(index, setup)| {
                let view = ledger.cards.get(index).copied().unwrap_or_else(|| CardView::unused(setup));
                let card = WatchedCard {
                    name: setup.device.name.clone(),
                    capacity: setup.capacity(),
                    used: view.in_use(),
                    peak: view.peak_device,
                    history: Vec::new(),
                };
                with_history(index, card)
            })
            .collect()
    }

    fn processes(&self, ledger: &LedgerView) -> Vec<WatchedProcess> {
        let spoken = self.inbox.processes.iter().filter(|(_, speaker)| speaker.torch.is_some());
        let booked = ledger.processes.iter().map(|process| process.pid);
        let mut pids: Vec<u32> = spoken.map(|(pid, _)| *pid).chain(booked).collect();
        pids.sort_unstable();
        pids.dedup();
        let mut processes: Vec<WatchedProcess> =
            pids.into_iter().map(|pid| self.process(pid, ledger)).collect();
        // A process that ended without a step was a helper, and is not shown.
        processes.retain(|process| process.alive || process.steps > 0 || process.rank.is_some());
        processes.sort_by_key(|process| (process.rank, process.pid));
        processes
    }

    fn process(&self, pid: u32, ledger: &LedgerView) -> WatchedProcess {
        let speaker = self.inbox.processes.get(&pid);
        let booked = ledger.processes.iter().find(|process| process.pid == pid);
        let used = booked.map(|process| {
            process.shares.iter().map(|share| share.used + share.outside.total()).sum::<u64>()
        });
        let alive = tree::is_running(pid);
        WatchedProcess {
            pid,
            rank: speaker
                .and_then(|speaker| speaker.rank)
                .or_else(|| booked.and_then(|process| process.rank)),
            alive,
            steps: speaker.map_or(0, Speaker::all_steps),
            allocated: speaker.map_or(0, |speaker| speaker.allocated),
            peak_allocated: speaker.map_or(0, |speaker| speaker.peak_allocated),
            // A dead process holds no memory, even if it could not release it.
            used: (!self.setup.cards.is_empty()).then(|| if alive { used.unwrap_or(0) } else { 0 }),
            resident: host::resident(pid).unwrap_or(0),
            pinned: booked.map_or(0, |process| process.pinned),
        }
    }

    fn last_oom(&self) -> Option<WatchedOom> {
        let all = self.inbox.processes.iter();
        let last = all.filter_map(|(pid, speaker)| Some((pid, speaker.ooms.last()?)));
        let (pid, (oom, _)) = last.max_by_key(|(_, (oom, _))| oom.step)?;
        Some(WatchedOom {
            pid: *pid,
            requested: oom.requested,
            step: oom.step,
            phase: super::report::phase(&oom.phase),
            module: oom.module.clone(),
            line: oom.stack.first().cloned(),
        })
    }
}
