//! Repeated cheap runs of the same command, each with other levers or on another device.

use std::time::Instant;

use memfit_channel::ValuePolicy;
use memfit_recording::Track;

use crate::environment::{self, Command};
use crate::forks::Server;
use crate::launcher::{self, Launched};
use crate::preflight::{self, Torch};
use crate::request::LoneRank;
use crate::stage::{Changes, Stage};
use crate::verdict::{self, Numbers};
use crate::{Card, Outcome, Request, facts, recording, script, watch};
use crate::{Console, Home, RunError};

/// A command prepared for many runs.
#[derive(Debug)]
pub struct Rehearsal<'a> {
    command: Command,
    torch: Option<Torch>,
    server: Option<Server>,
    /// Processes that the command launches, if the first of them stands for all.
    standing_in: Option<(Launched, LoneRank)>,
    home: &'a Home,
    console: &'a dyn Console,
}

impl<'a> Rehearsal<'a> {
    /// Prepares the command.
    pub fn open(request: &Request, home: &'a Home, console: &'a dyn Console) -> Result<Self, RunError> {
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
        // Without forking, running a single rank saves little.
        let standing_in = standing_in.filter(|_| server.is_some());
        Ok(Self { command, torch, server, standing_in, home, console })
    }

    /// Runs the command once; of several processes that train, only the first, which stands for all.
    pub fn run(&mut self, request: &Request) -> Result<Outcome, RunError> {
        self.run_first(request, &Changes::default())
    }

    fn run_first(&mut self, request: &Request, changes: &Changes) -> Result<Outcome, RunError> {
        match &self.standing_in {
            Some((launched, lone)) => {
                let request = Request { lone_rank: Some(*lone), ..request.clone() };
                let command = launched.alone.clone();
                self.run_command(&request, &command, changes, true)
            }
            None => self.run_with(request, changes),
        }
    }

    /// Runs it once with changes, from its very beginning: the prepared process is the unchanged script.
    pub fn run_with(&mut self, request: &Request, changes: &Changes) -> Result<Outcome, RunError> {
        let command = self.command.clone();
        let forked = changes.is_none() && self.standing_in.is_none();
        self.run_command(request, &command, changes, forked)
    }

    /// Tests whether an outcome that says `fits` depends on numbers that only a GPU can compute: repeats the
    /// run with others, with `all` processes or with the one that stands for them. Forked runs draw the same
    /// random numbers anyway; the others are seeded.
    pub fn test_numbers(
        &mut self,
        request: &Request,
        changes: &Changes,
        all: bool,
        outcome: &mut Outcome,
    ) -> Result<(), RunError> {
        if !outcome.hangs_on_numbers(request) {
            return Ok(());
        }
        let request = verdict::repeat_request(request, &outcome.facts);
        let mut run = |other_numbers| {
            let changes = Changes { other_numbers, seeded: true, ..changes.clone() };
            if all { self.run_with(&request, &changes) } else { self.run_first(&request, &changes) }
        };
        let others = run(true)?.facts;
        outcome.numbers = Numbers::compare(&outcome.facts, &others);
        if !matches!(outcome.numbers, Numbers::Harmless | Numbers::Unfinished) {
            outcome.numbers = Numbers::compare(&run(false)?.facts, &others);
        }
        Ok(())
    }

    fn run_command(
        &mut self,
        request: &Request,
        command: &Command,
        changes: &Changes,
        forked: bool,
    ) -> Result<Outcome, RunError> {
        self.recorded(request, command, changes, forked).map(|(outcome, _)| outcome)
    }

    /// Runs it once, and keeps what its allocators did.
    pub fn run_recorded(&mut self, request: &Request) -> Result<(Outcome, Vec<Track>), RunError> {
        let (request, command) = match &self.standing_in {
            Some((launched, lone)) => {
                (Request { lone_rank: Some(*lone), ..request.clone() }, launched.alone.clone())
            }
            None => (request.clone(), self.command.clone()),
        };
        self.recorded(&request, &command, &Changes::default(), true)
    }

    fn recorded(
        &mut self,
        request: &Request,
        command: &Command,
        changes: &Changes,
        forked: bool,
    ) -> Result<(Outcome, Vec<Track>), RunError> {
        let stage = Stage::set_up(request, self.torch.as_ref(), ValuePolicy::UPPER, changes, self.home)?;
        let started = Instant::now();
        let server = self.server.as_mut().filter(|server| {
            forked
                && match &request.card {
                    Card::Virtual(device, _) => server.stands_for(device),
                    Card::Local(_) => true,
                }
        });
        let watched = watch::run(request, command, &stage, None, server, self.console)?;
        let wall = started.elapsed();
        let tracks = recording::tracks(stage.run_dir(), &watched.inbox);
        let facts = facts::gather(command, self.torch.as_ref(), &stage, watched, &tracks, wall);
        let outcome =
            Outcome { facts, lower: None, numbers: Numbers::Untried, diagnosis: None, recording: None };
        Ok((outcome, tracks))
    }

    /// Number of processes that the one that is run stands for.
    pub fn stands_for(&self) -> Option<u32> {
        self.standing_in.as_ref().map(|(launched, _)| launched.processes)
    }

    /// Runs all processes from now on, each time anew.
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

    /// Returns `true` if each run begins where the script first needs the device.
    pub fn forks(&self) -> bool {
        self.server.is_some()
    }
}
