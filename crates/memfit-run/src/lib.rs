//! Runs a script on a device, from the request to the result.
//!
//! Owns the processes that `memfit run` starts (set-up, watching, ending), the facts collected from them, and
//! the verdict. It does not know how command lines are parsed, how memory is simulated or analysed, or how a
//! report is rendered: it calls the crates that do, fills a wire type, and communicates with the user through
//! a [`Console`].
//!
//! [`Request`] is the input. [`environment`] and [`preflight`] find out whether the command can be started;
//! `stage` sets up the run directory; `process` starts and ends processes; `watch` follows them; `facts`
//! collects the outcome; `verdict` judges it, and `problem` says why there is no answer; `remedies` tries
//! changes that would have helped; [`report`](fn@report) converts everything to the wire type.

mod absent;
mod attention;
mod blame;
mod block_use;
mod branches;
mod by_name;
mod checkout;
mod console;
mod downloads;
pub mod environment;
mod error;
mod facts;
mod fidelity;
mod forks;
mod gpus;
mod host;
mod hub;
mod inbox;
mod interrupt;
mod keeper;
mod known_failures;
mod launcher;
mod leftovers;
mod libraries;
mod live;
mod local;
mod newer;
mod not_run;
mod numbers;
mod older;
mod other_gpu;
mod output;
mod outside;
mod overlaid;
mod own_modules;
pub mod preflight;
mod problem;
mod process;
mod programs;
mod progress;
mod recording;
mod rehearsal;
pub mod releases;
mod remedies;
mod renamed;
mod report;
mod request;
mod script;
mod secrets;
mod settle;
mod signals;
mod sizes;
mod stage;
mod stand_ins;
mod started;
mod synthetic;
mod tested;
mod time;
mod traceback;
mod tree;
mod verdict;
mod watch;

use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use memfit_channel::ValuePolicy;
use memfit_explain::{ExplainOverrides, Explanation};

pub use checkout::{Checkout, CheckoutError, repository};
pub use console::{Console, Progress};
pub use error::RunError;
pub use facts::{Facts, OomFacts, RankFacts};
pub use host::{Machine, free_shared_memory};
pub use interrupt::Interrupt;
pub use libraries::Library;
pub use live::LiveRun;
pub use local::{LocalGpu, Reading};
pub use memfit_channel::{HostPart, HostRun};
pub use other_gpu::{OutsideBytes, RanOut, Replayed};
pub use rehearsal::Rehearsal;
pub use report::{failure, report};
pub use request::{Card, LOCAL, LoneRank, Request};
pub use secrets::without_secrets;
pub use sizes::Sizes;
pub use stage::Changes;
pub use synthetic::Samples;
pub use watch::Ended;

use self::environment::Command;
use self::not_run::FurtherRuns;
use self::preflight::Torch;
use self::remedies::Diagnosis;
use self::stage::Stage;
use self::tested::{OtherSizes, Tested};

/// Version of this build.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The installation that memfit runs from. A stand-alone program and a Python package find its parts
/// differently.
#[derive(Clone, Debug, Default)]
pub struct Home {
    /// Interpreter of the environment in which memfit is installed.
    pub python: Option<PathBuf>,
    /// Folder with the device libraries.
    pub libraries: Option<PathBuf>,
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Facts of the run.
    pub facts: Facts,
    /// Facts of a second run in which each size that is read back is at its lower bound; `None` if there was
    /// none.
    lower: Option<Facts>,
    /// Findings of further runs with other values.
    tested: Tested,
    /// Statements that did not run in those runs.
    further: FurtherRuns,
    /// Reason why memory ran out, and remedies.
    diagnosis: Option<Diagnosis>,
    /// File of the saved recording.
    recording: Option<PathBuf>,
}

impl Outcome {
    /// The outcome of a single run, without further runs.
    fn new(facts: Facts) -> Self {
        Self {
            facts,
            lower: None,
            tested: Tested::default(),
            further: FurtherRuns::default(),
            diagnosis: None,
            recording: None,
        }
    }

    /// Returns `true` if the verdict depends on values that only a GPU can compute, and further runs with
    /// other values may settle it.
    pub fn depends_on_values(&self, request: &Request) -> bool {
        verdict::depends_on_numbers(request, &self.facts, self.tested)
            || self.lacks_by_values(request)
            || self.depends_on_sizes(request)
    }

    /// Returns `true` if it ran out of memory with assumed values, and further runs with other values may
    /// show that memory suffices.
    pub fn lacks_by_values(&self, request: &Request) -> bool {
        verdict::lacks_by_numbers(request, &self.facts, self.tested)
    }

    /// Returns `true` if it ran to its end, and only sizes that a GPU would compute leave the verdict open.
    pub fn depends_on_sizes(&self, request: &Request) -> bool {
        self.facts.oom.is_none() && verdict::depends_on_sizes(request, &self.facts, self.tested)
    }
}

/// Performs the requested run once: no remedies, no second run with other numbers.
pub fn perform_once(request: &Request, home: &Home, console: &dyn Console) -> Result<Outcome, RunError> {
    preflight::system()?;
    let command = environment::resolve(&request.command, home)?;
    let torch = match &command.python {
        Some(python) => Some(preflight::torch(&preflight::interpreter(python)?)?),
        None => None,
    };
    let runner = Runner { command: &command, torch: torch.as_ref(), local: None, home, console };
    let facts = runner.run_unchanged(request, ValuePolicy::UPPER)?.facts;
    Ok(Outcome::new(facts))
}

/// Performs the requested run and, if memory runs out, runs that try remedies.
pub fn perform(request: &Request, home: &Home, console: &dyn Console) -> Result<Outcome, RunError> {
    let _interrupt = Interrupt::listen();
    preflight::system()?;
    let local = match request.card {
        Card::Local(_) => Some(LocalGpu::find().ok_or(RunError::NoLocalGpu)?),
        Card::Virtual(..) => None,
    };
    let command = environment::resolve(&request.command, home)?;
    let torch = match &command.python {
        Some(python) => Some(preflight::torch(&preflight::interpreter(python)?)?),
        None => None,
    };
    let runner = Runner { command: &command, torch: torch.as_ref(), local: local.as_ref(), home, console };
    let policy = match request.sizes {
        Sizes::At(policy) => policy,
        Sizes::Bounds | Sizes::Both => ValuePolicy::UPPER,
    };
    let first = runner.run_unchanged(request, policy)?;
    let mut outcome = Outcome {
        diagnosis: first.explanation.map(Diagnosis::new),
        recording: request.output.clone(),
        ..Outcome::new(first.facts)
    };
    let interval = request.sizes == Sizes::Both;
    runner.test_values(request, policy, &Changes::default(), interval, &mut outcome)?;
    remedies::prove(request, &mut outcome, &runner, policy)?;
    let trials = outcome.diagnosis.as_ref().map(Diagnosis::trials).unwrap_or_default();
    if let Some(path) = request.output.as_deref().filter(|_| !trials.is_empty() && !request.confidential) {
        recording::add_trials(path, trials)?;
    }
    Ok(outcome)
}

/// Facts of a run, and the explanation if it ran out of memory.
struct Ran {
    facts: Facts,
    explanation: Option<Explanation>,
}

/// Everything that all runs of a command have in common.
struct Runner<'run> {
    command: &'run Command,
    torch: Option<&'run Torch>,
    local: Option<&'run LocalGpu>,
    home: &'run Home,
    console: &'run dyn Console,
}

impl Runner<'_> {
    /// Performs the requested run: saves its recording, and explains it if memory ran out.
    fn run_unchanged(&self, request: &Request, values: ValuePolicy) -> Result<Ran, RunError> {
        self.run_once(request, values, &Changes::default())
    }

    /// Tests whether the verdict depends on assumed values, by further runs with other ones. A script that
    /// draws random sizes allocates differently each time; in that case two seeded runs are compared.
    /// `interval` is `true` if the peak with the smallest sizes is wanted as well.
    fn test_values(
        &self,
        request: &Request,
        values: ValuePolicy,
        changes: &Changes,
        interval: bool,
        outcome: &mut Outcome,
    ) -> Result<(), RunError> {
        let trial = verdict::repeat_request(request, &outcome.facts);
        let further = &mut outcome.further;
        let mut run = |others| {
            let changes = Changes { others, seeded: true, ..changes.clone() };
            let facts = self.run_once(&trial, values, &changes)?.facts;
            further.add(facts.ended, facts.coverage().not_run);
            Ok(facts)
        };
        if verdict::depends_on_sizes(request, &outcome.facts, outcome.tested) {
            self.console.remark("running again, with other computed sizes");
            let (found, lower) = OtherSizes::test(&outcome.facts, &mut run)?;
            outcome.tested.sizes = found;
            outcome.lower = Some(lower);
        } else if interval && verdict::has_size_read_back(&outcome.facts) && !request.card.is_local() {
            self.console.remark("running again, with computed sizes at their lower bound");
            outcome.lower = Some(OtherSizes::lower(&mut run)?);
        }
        let remark = |text: &str| self.console.remark(text);
        outcome.tested = settle::test_numbers(request, &outcome.facts, outcome.tested, remark, run)?;
        Ok(())
    }

    /// Performs one run with changes. Saves its recording if the request says so.
    fn run_once(&self, request: &Request, values: ValuePolicy, changes: &Changes) -> Result<Ran, RunError> {
        let stage = Stage::set_up(request, self.torch, values, changes, self.home)?;
        let (began, started) = (SystemTime::now(), Instant::now());
        let watched = watch::run(request, self.command, &stage, self.local, None, self.console)?;
        let wall = started.elapsed();
        let tracks = recording::tracks(stage.run_dir(), &watched.inbox);
        let facts = facts::gather(self.command, self.torch, &stage, watched, &tracks, wall);
        let mut recording = recording::build(request, &facts, tracks);
        // The source of a changed file differs from the user's.
        if request.output.is_some() && changes.files.is_empty() {
            recording.origin.sources = recording::sources(&recording.tracks, began);
        }
        if let Some(path) = request.output.as_deref() {
            if request.confidential {
                let mut shared = recording.clone();
                shared.make_confidential();
                recording::save(path, &shared)?;
            } else {
                recording::save(path, &recording)?;
            }
        }
        // Line numbers of a changed file differ from the user's.
        let failed = facts.oom.as_ref().filter(|_| changes.files.is_empty());
        let explanation = failed.and_then(|_| {
            memfit_explain::explain_recording(&ExplainOverrides::default(), &recording, &read_source).ok()
        });
        if request.keep {
            self.console.remark(&format!("the run's files are in `{}`", stage.keep().display()));
        }
        Ok(Ran { facts, explanation })
    }
}

/// Text of a source file; `None` if it is missing or too large for a source file.
pub fn read_source(file: &str) -> Option<String> {
    const MAX_SOURCE_BYTES: u64 = 4 << 20;
    let meta = std::fs::metadata(file).ok()?;
    (meta.is_file() && meta.len() <= MAX_SOURCE_BYTES).then(|| std::fs::read_to_string(file).ok()).flatten()
}
