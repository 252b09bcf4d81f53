//! The same command run again and again, each time with other levers or on another card, at little cost each.

use std::time::Instant;

use memfit_link::ValuePolicy;

use super::environment::{self, Command};
use super::forks::Server;
use super::preflight::{self, Torch};
use super::stage::{Changes, Stage};
use super::{Outcome, Request, facts, recording, script, watch};
use crate::{CliError, Home, Printer};

/// A command that is ready to be run many times.
#[derive(Debug)]
pub(crate) struct Rehearsal<'a> {
    command: Command,
    torch: Option<Torch>,
    server: Option<Server>,
    home: &'a Home,
    printer: &'a Printer,
}

impl<'a> Rehearsal<'a> {
    /// Gets it ready.
    pub(crate) fn open(request: &Request, home: &'a Home, printer: &'a Printer) -> Result<Self, CliError> {
        preflight::system()?;
        let command = environment::resolve(&request.command, home)?;
        let torch = match &command.python {
            Some(python) => Some(preflight::torch(&preflight::interpreter(python)?)?),
            None => None,
        };
        let server = Server::start(request, &command, torch.as_ref(), home)?;
        Ok(Self { command, torch, server, home, printer })
    }

    /// Runs it once.
    pub(crate) fn run(&mut self, request: &Request) -> Result<Outcome, CliError> {
        self.run_with(request, &Changes::default())
    }

    /// Runs it once with something changed, from its very beginning: what was ready is the unchanged script.
    pub(crate) fn run_with(&mut self, request: &Request, changes: &Changes) -> Result<Outcome, CliError> {
        let stage = Stage::set_up(request, self.torch.as_ref(), ValuePolicy::UPPER, changes, self.home)?;
        let started = Instant::now();
        let server = self.server.as_mut().filter(|_| changes.is_none());
        let watched = watch::run(request, &self.command, &stage, None, server, self.printer)?;
        let wall = started.elapsed();
        let tracks = recording::tracks(stage.run_dir(), &watched.inbox);
        let facts = facts::gather(&self.command, self.torch.as_ref(), &stage, watched, &tracks, wall);
        Ok(Outcome { facts, lower: None, diagnosis: None, recording: None })
    }

    /// The script, where the command names one.
    pub(crate) fn script(&self) -> Option<std::path::PathBuf> {
        self.command.python.as_ref().and_then(|_| script::of_interpreter(&self.command.args))
    }

    /// Whether each run begins where the script first needs the card.
    pub(crate) fn forks(&self) -> bool {
        self.server.is_some()
    }
}
