//! Runs the same command repeatedly at low cost, with other levers or on other devices.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Instant;

use memfit_channel::{OtherValues, ValuePolicy};
use memfit_recording::Track;

use crate::console::Silent;
use crate::environment::{self, Command};
use crate::facts::Facts;
use crate::forks::Server;
use crate::launcher::{self, Launched};
use crate::preflight::{self, Torch};
use crate::request::LoneRank;
use crate::settle;
use crate::stage::{Changes, Stage};
use crate::tested::OtherSizes;
use crate::verdict;
use crate::{Card, Machine, Outcome, Request, facts, recording, script, watch};
use crate::{Console, Home, Interrupt, RunError};

/// A command prepared for many runs.
#[derive(Debug)]
pub struct Rehearsal<'a> {
    command: Command,
    torch: Option<Torch>,
    server: Option<Server>,
    /// Processes that the command launches, if only the first of them is run on behalf of all.
    standing_in: Option<(Launched, LoneRank)>,
    home: &'a Home,
    console: &'a dyn Console,
    /// Keeps signals that arrive between two runs.
    _interrupt: Interrupt,
}

impl<'a> Rehearsal<'a> {
    /// Prepares the command.
    pub fn open(request: &Request, home: &'a Home, console: &'a dyn Console) -> Result<Self, RunError> {
        let interrupt = Interrupt::listen();
        preflight::system()?;
        let command = environment::resolve(&request.command, home)?;
        let torch = match &command.python {
            Some(python) => Some(preflight::torch(&preflight::interpreter(python)?)?),
            None => None,
        };
        let cards = match &request.card {
            Card::Virtual(_, count) => *count,
            Card::Local(_) => 1,
        };
        let launched = launcher::launched(&command, cards);
        let several = launched.filter(|launched| (2..=cards).contains(&launched.processes));
        let standing_in = several.map(|several| {
            let lone = LoneRank::first_rank(several.processes, cards);
            (several, lone)
        });
        let server = match &standing_in {
            Some((launched, lone)) => {
                let request = Request { lone_rank: Some(*lone), ..request.clone() };
                Server::start(&request, &launched.alone, torch.as_ref(), home)?
            }
            None => Server::start(request, &command, torch.as_ref(), home)?,
        };
        // If the command cannot be forked, running a single rank saves little.
        let standing_in = standing_in.filter(|_| server.is_some());
        Ok(Self { command, torch, server, standing_in, home, console, _interrupt: interrupt })
    }

    /// Runs the command once. Of several training processes, only the first runs, on behalf of all.
    pub fn run(&self, request: &Request) -> Result<Outcome, RunError> {
        self.run_first(request, &Changes::default())
    }

    fn run_first(&self, request: &Request, changes: &Changes) -> Result<Outcome, RunError> {
        match &self.standing_in {
            Some((launched, lone)) => {
                let request = Request { lone_rank: Some(*lone), ..request.clone() };
                let command = launched.alone.clone();
                self.run_command(&request, &command, changes, true)
            }
            None => self.run_with(request, changes),
        }
    }

    /// Runs the command once with changes. It starts from the beginning, since the prepared process has the
    /// unchanged script.
    pub fn run_with(&self, request: &Request, changes: &Changes) -> Result<Outcome, RunError> {
        let command = self.command.clone();
        let forked = changes.is_none() && self.standing_in.is_none();
        self.run_command(request, &command, changes, forked)
    }

    /// Tests whether the verdict depends on values that only a GPU can compute: repeats the run with
    /// other values, with `all` processes or only with the first. Forked runs draw the same random numbers
    /// anyway; other runs are seeded.
    pub fn test_values(
        &self,
        request: &Request,
        changes: &Changes,
        all: bool,
        outcome: &mut Outcome,
    ) -> Result<(), RunError> {
        self.test_sizes(request, changes, all, outcome)?;
        let run = self.runs_with_others(request, changes, all, outcome);
        outcome.tested = settle::test_numbers(request, &outcome.facts, outcome.tested, |_| {}, run)?;
        Ok(())
    }

    /// Tests whether the verdict depends on sizes that only a GPU can compute, as [`Self::test_values`] does.
    pub fn test_sizes(
        &self,
        request: &Request,
        changes: &Changes,
        all: bool,
        outcome: &mut Outcome,
    ) -> Result<(), RunError> {
        if outcome.depends_on_sizes(request) {
            let run = self.runs_with_others(request, changes, all, outcome);
            let (found, lower) = OtherSizes::test(&outcome.facts, run)?;
            outcome.tested.sizes = found;
            outcome.lower = Some(lower);
        }
        Ok(())
    }

    /// Repeats a run with other assumed values.
    fn runs_with_others<'b>(
        &'b self,
        request: &Request,
        changes: &'b Changes,
        all: bool,
        outcome: &Outcome,
    ) -> impl FnMut(OtherValues) -> Result<Facts, RunError> + use<'a, 'b> {
        let request = verdict::repeat_request(request, &outcome.facts);
        move |others| {
            let changes = Changes { others, seeded: true, ..changes.clone() };
            let ran =
                if all { self.run_with(&request, &changes) } else { self.run_first(&request, &changes) };
            ran.map(|outcome| outcome.facts)
        }
    }

    fn run_command(
        &self,
        request: &Request,
        command: &Command,
        changes: &Changes,
        forked: bool,
    ) -> Result<Outcome, RunError> {
        self.recorded(request, command, changes, forked, self.console).map(|(outcome, _)| outcome)
    }

    /// Runs the command once, and returns the tracks of its allocators as well.
    pub fn run_recorded(&self, request: &Request) -> Result<(Outcome, Vec<Track>), RunError> {
        self.recorded_first(request, self.console)
    }

    fn recorded_first(
        &self,
        request: &Request,
        console: &dyn Console,
    ) -> Result<(Outcome, Vec<Track>), RunError> {
        let (request, command) = match &self.standing_in {
            Some((launched, lone)) => {
                (Request { lone_rank: Some(*lone), ..request.clone() }, launched.alone.clone())
            }
            None => (request.clone(), self.command.clone()),
        };
        self.recorded(&request, &command, &Changes::default(), true, console)
    }

    /// Runs the command once for each request, up to `at_once` at a time. `read` converts each run to a
    /// result; `done` is called with the number of finished runs.
    pub fn run_several<T: Send>(
        &self,
        requests: &[Request],
        at_once: usize,
        read: impl Fn(&Request, Outcome, Vec<Track>) -> T + Sync,
        mut done: impl FnMut(usize),
    ) -> Result<Vec<T>, RunError> {
        let interrupt = Interrupt::listen();
        let next = AtomicUsize::new(0);
        let (sender, receiver) = mpsc::channel();
        let work = |sender: mpsc::Sender<(usize, Result<T, RunError>)>| {
            while let Some((place, request)) =
                Some(next.fetch_add(1, Relaxed)).and_then(|place| Some((place, requests.get(place)?)))
                && !interrupt.happened()
            {
                let ran = self
                    .recorded_first(request, &Silent)
                    .map(|(outcome, tracks)| read(request, outcome, tracks));
                if sender.send((place, ran)).is_err() {
                    break;
                }
            }
        };
        let mut results: Vec<Option<T>> = requests.iter().map(|_| None).collect();
        std::thread::scope(|scope| -> Result<(), RunError> {
            for _ in 0..at_once.clamp(1, requests.len().max(1)) {
                let sender = sender.clone();
                scope.spawn(|| work(sender));
            }
            drop(sender);
            for (count, (place, ran)) in receiver.iter().enumerate() {
                // After an error, no further run is started.
                results[place] = Some(ran.inspect_err(|_| next.store(requests.len(), Relaxed))?);
                done(count + 1);
            }
            Ok(())
        })?;
        results.into_iter().collect::<Option<_>>().ok_or(RunError::Interrupted)
    }

    /// Maximum runs like this one for which the machine has enough CPUs and memory at the same time.
    pub fn at_once(&self, like: &Outcome) -> usize {
        let Machine { processors, memory, .. } = Machine::current();
        let by_processors = processors / (like.facts.ranks.len() as u64).max(1);
        let by_memory = (memory / 2).checked_div(like.facts.host.resident).unwrap_or(1);
        by_processors.min(by_memory).max(1) as usize
    }

    fn recorded(
        &self,
        request: &Request,
        command: &Command,
        changes: &Changes,
        forked: bool,
        console: &dyn Console,
    ) -> Result<(Outcome, Vec<Track>), RunError> {
        let stage = Stage::set_up(request, self.torch.as_ref(), ValuePolicy::UPPER, changes, self.home)?;
        let started = Instant::now();
        let server = self.server.as_ref().filter(|server| {
            // A library reads how to distribute the script before its first use of the GPU.
            forked
                && request.library().is_none()
                && match &request.card {
                    Card::Virtual(device, _) => server.stands_for(device),
                    Card::Local(_) => true,
                }
        });
        let watched = watch::run(request, command, &stage, None, server, console)?;
        let wall = started.elapsed();
        let tracks = recording::tracks(stage.run_dir(), &watched.inbox);
        let facts = facts::gather(command, self.torch.as_ref(), &stage, watched, &tracks, wall);
        Ok((Outcome::new(facts), tracks))
    }

    /// Number of processes that the single running process represents.
    pub fn stands_for(&self) -> Option<u32> {
        self.standing_in.as_ref().map(|(launched, _)| launched.processes)
    }

    /// From now on, runs all processes, and restarts them for each run.
    pub fn run_all(&mut self) {
        self.standing_in = None;
        self.server = None;
    }

    /// Path of the script, if the command names one.
    pub fn script(&self) -> Option<std::path::PathBuf> {
        if let Some((launched, _)) = &self.standing_in {
            return Some(launched.script.clone());
        }
        self.command.python.as_ref().and_then(|_| script::from_interpreter_args(&self.command.args))
    }

    /// Returns `true` if runs are forked at the point where the script first needs the device.
    pub fn forks(&self) -> bool {
        self.server.is_some()
    }
}
