//! One run: from a command and a card to the facts about how it went, and from those to a report.
//!
//! [`request`] is what was asked, [`environment`] and [`preflight`] find out whether it can be started, [`stage`] sets
//! up the run directory, [`process`] starts and ends processes, [`watch`] follows them, [`facts`] is what came of it,
//! [`verdict`] judges it, [`report`] puts it into the wire type.

pub(crate) mod environment;
mod facts;
mod host;
mod inbox;
mod keeper;
pub(crate) mod local;
pub(crate) mod preflight;
mod process;
mod progress;
mod recording;
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

use memfit_link::ValuePolicy;

pub(crate) use facts::Facts;
pub(crate) use report::{exit, failure, report};
pub(crate) use request::{Card, Request};

use self::environment::Command;
use self::local::LocalGpu;
use self::preflight::Torch;
use self::stage::Stage;
use crate::args::Sizes;
use crate::{CliError, Home, Printer};

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The facts.
    pub(crate) facts: Facts,
    /// The same with each size that is read back at its lower bound; nothing where that was not asked.
    pub(crate) lower: Option<Facts>,
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
    let once = |values| once(request, &command, torch.as_ref(), local.as_ref(), values, home, printer);
    let policy = match request.sizes {
        Sizes::At(policy) => policy,
        Sizes::Bounds | Sizes::Both => ValuePolicy::UPPER,
    };
    let facts = once(policy)?;
    // Sizes at their upper bound may be to blame. If it fails with the lower one as well, they are not.
    let told = matches!(request.sizes, Sizes::At(_));
    let hangs = verdict::has_size_read_back(&facts) && !request.card.is_local() && !told;
    let lower = if hangs && (facts.oom.is_some() || request.sizes == Sizes::Both) {
        printer.remark("once more, with sizes that are read back at their lower bound");
        Some(once(ValuePolicy::LOWER)?)
    } else {
        None
    };
    Ok(Outcome { facts, lower, recording: request.output.clone() })
}

fn once(
    request: &Request,
    command: &Command,
    torch: Option<&Torch>,
    local: Option<&LocalGpu>,
    values: ValuePolicy,
    home: &Home,
    printer: &Printer,
) -> Result<Facts, CliError> {
    let first = matches!(request.sizes, Sizes::At(_)) || values == ValuePolicy::UPPER;
    let stage = Stage::set_up(request, torch, values, home)?;
    let started = Instant::now();
    let watched = watch::run(request, command, &stage, local, printer)?;
    let wall = started.elapsed();
    let tracks = recording::tracks(stage.run_dir(), &watched.inbox);
    let facts = facts::gather(command, torch, &stage, watched, &tracks, wall);
    if let Some(path) = request.output.as_deref().filter(|_| first) {
        recording::save(path, request, command.words(), &facts, tracks)?;
    }
    if request.keep {
        printer.remark(&format!("the run's files are in `{}`", stage.keep().display()));
    }
    Ok(facts)
}
