//! One run: from a command and a card to the facts about how it went, and from those to a report.
//!
//! [`request`] is what was asked, [`environment`] and [`preflight`] find out whether it can be started, [`stage`] sets
//! up the run directory, [`process`] starts and ends processes, [`watch`] follows them, [`facts`] is what came of it,
//! [`verdict`] judges it, [`remedies`] tries what would have helped, [`report`] puts it into the wire type.

pub(crate) mod environment;
mod facts;
mod fidelity;
mod forks;
mod host;
mod inbox;
mod interrupt;
mod keeper;
mod launcher;
mod live;
pub(crate) mod local;
mod outside;
pub(crate) mod preflight;
mod process;
mod progress;
mod recording;
mod rehearsal;
mod remedies;
mod report;
mod request;
mod script;
mod stage;
mod time;
mod tree;
mod verdict;
mod watch;

use std::path::PathBuf;
use std::time::Instant;

use memfit_explain::Explanation;
use memfit_link::ValuePolicy;

pub(crate) use facts::Facts;
pub(crate) use host::host;
pub(crate) use interrupt::Interrupt;
pub(crate) use live::LiveRun;
pub(crate) use rehearsal::Rehearsal;
pub(crate) use remedies::Diagnosis;
pub(crate) use report::{exit, failure, report};
pub(crate) use request::{Card, Request};
pub(crate) use stage::Changes;
pub(crate) use watch::Ended;

use self::environment::Command;
use self::local::LocalGpu;
use self::preflight::Torch;
use self::stage::Stage;
use crate::args::Sizes;
use crate::explained;
use crate::{CliError, Home, Printer};

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The facts.
    pub(crate) facts: Facts,
    /// The same with each size that is read back at its lower bound; nothing where that was not asked.
    pub(crate) lower: Option<Facts>,
    /// Why it ran out of memory, and what would have helped.
    pub(crate) diagnosis: Option<Diagnosis>,
    /// The recording that was saved.
    pub(crate) recording: Option<PathBuf>,
}

/// Runs what was asked for.
pub(crate) fn perform(request: &Request, home: &Home, printer: &Printer) -> Result<Outcome, CliError> {
    preflight::system()?;
    let local = match request.card {
        Card::Local(_) => Some(LocalGpu::find().ok_or(CliError::NoLocalGpu)?),
        Card::Virtual(..) => None,
    };
    let command = environment::resolve(&request.command, home)?;
    let torch = match &command.python {
        Some(python) => Some(preflight::torch(&preflight::interpreter(python)?)?),
        None => None,
    };
    let runner = Runner { command: &command, torch: torch.as_ref(), local: local.as_ref(), home, printer };
    let policy = match request.sizes {
        Sizes::At(policy) => policy,
        Sizes::Bounds | Sizes::Both => ValuePolicy::UPPER,
    };
    let first = runner.first(request, policy)?;
    // Sizes at their upper bound may be to blame. If it fails with the lower one as well, they are not.
    let told = matches!(request.sizes, Sizes::At(_));
    let hangs = verdict::has_size_read_back(&first.facts) && !request.card.is_local() && !told;
    let lower = if hangs && (first.facts.oom.is_some() || request.sizes == Sizes::Both) {
        printer.remark("once more, with sizes that are read back at their lower bound");
        let trial = Request { output: None, ..request.clone() };
        Some(runner.once(&trial, ValuePolicy::LOWER, &Changes::default())?.facts)
    } else {
        None
    };
    let mut outcome = Outcome {
        facts: first.facts,
        lower,
        diagnosis: first.explanation.map(Diagnosis::new),
        recording: request.output.clone(),
    };
    remedies::prove(request, &mut outcome, &runner, policy)?;
    Ok(outcome)
}

/// What a run came to, and why it ran out of memory where it did.
struct Ran {
    facts: Facts,
    explanation: Option<Explanation>,
}

/// Everything that stays the same from run to run of one command.
struct Runner<'run> {
    command: &'run Command,
    torch: Option<&'run Torch>,
    local: Option<&'run LocalGpu>,
    home: &'run Home,
    printer: &'run Printer,
}

impl Runner<'_> {
    /// The run that was asked for: what it recorded is saved, and explained where memory ran out.
    fn first(&self, request: &Request, values: ValuePolicy) -> Result<Ran, CliError> {
        self.once(request, values, &Changes::default())
    }

    /// One run, with something changed about it. What it recorded is saved where the request says so.
    fn once(&self, request: &Request, values: ValuePolicy, changes: &Changes) -> Result<Ran, CliError> {
        let stage = Stage::set_up(request, self.torch, values, changes, self.home)?;
        let started = Instant::now();
        let watched = watch::run(request, self.command, &stage, self.local, None, self.printer)?;
        let wall = started.elapsed();
        let tracks = recording::tracks(stage.run_dir(), &watched.inbox);
        let facts = facts::gather(self.command, self.torch, &stage, watched, &tracks, wall);
        let recording = recording::whole(request, &facts, tracks);
        if let Some(path) = request.output.as_deref() {
            recording::save(path, &recording)?;
        }
        // Lines of a changed source are not the user's.
        let failed = facts.oom.as_ref().filter(|_| changes.files.is_empty());
        let explanation =
            failed.and_then(|_| explained::of_recording(&explained::Asked::default(), &recording).ok());
        if request.keep {
            self.printer.remark(&format!("the run's files are in `{}`", stage.keep().display()));
        }
        Ok(Ran { facts, explanation })
    }
}
