//! A measured run of a script, in a working tree or in a checkout.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use memfit_cards::Arguments;
use memfit_ci::{Measurement, Roots, Script, largest_batch};
use memfit_devices::{Bytes, Catalogue};
use memfit_recording::{Recording, Source};
use memfit_report::wire::{Problem, ProblemKind, RunReport, Verdict};
use memfit_run::{Home, Interrupt, Request, RunError, read_source, without_secrets};

use crate::args::CiArgs;
use crate::settings::Settings;
use crate::{CliError, Printer, request};

/// Reason why there is no measurement.
pub(super) enum Unmeasured {
    /// The user interrupted.
    Interrupted,
    /// This tree has no such script.
    NoScript(CliError),
    /// The run failed to start.
    Error(CliError),
    /// The run gave no answer.
    Problem(Problem),
}

impl<E: Into<CliError>> From<E> for Unmeasured {
    fn from(error: E) -> Self {
        match error.into() {
            CliError::Run(RunError::Interrupted) => Self::Interrupted,
            error @ CliError::Run(RunError::ScriptNotFound { .. }) => Self::NoScript(error),
            error => Self::Error(error),
        }
    }
}

/// Everything that all runs have in common.
pub(super) struct Measurer<'run> {
    pub(super) args: &'run CiArgs,
    pub(super) settings: &'run Settings,
    pub(super) catalogue: &'run Catalogue,
    pub(super) home: &'run Home,
    pub(super) printer: &'run Printer,
    pub(super) interrupt: &'run Interrupt,
}

impl Measurer<'_> {
    /// Measures a script of the tree in which the settings file would be in `folder`.
    pub(super) fn measure(
        &self,
        script: &Script,
        folder: &Path,
        roots: &Roots,
    ) -> Result<Measurement, Unmeasured> {
        let found = self.measure_there(script, folder, roots);
        // An interrupt may look like any other failure.
        if self.interrupt.happened() { Err(Unmeasured::Interrupted) } else { found }
    }

    fn measure_there(
        &self,
        script: &Script,
        folder: &Path,
        roots: &Roots,
    ) -> Result<Measurement, Unmeasured> {
        let _there = Inside::enter(&folder.join(&script.folder))?;
        let request = request::to_track(script, self.args, self.settings, self.catalogue)?;
        let Ran { mut report, mut recording, mut last_output } = self.run(&request)?;
        let fits = report.verdict == Verdict::Fits;
        if report.verdict == Verdict::Oom {
            Ran { report, recording, last_output } =
                self.run(&Request { card: request.card.with_memory(Bytes::UNLIMITED), ..request.clone() })?;
        }
        if report.verdict != Verdict::Fits {
            return Err(Unmeasured::Problem(no_answer(&report, &last_output)));
        }
        if let Some(file) = Measurement::foreign_file(&recording, roots) {
            return Err(Unmeasured::Error(CliError::ForeignSource { file: file.into() }));
        }
        let largest = if script.largest_batch { self.largest(&request)? } else { None };
        Ok(Measurement {
            script: script.name.clone(),
            gpu: script.gpu.clone(),
            command: without_secrets(script.command.clone()),
            fits,
            memfit: crate::VERSION.to_owned(),
            largest_batch: largest,
            ..Measurement::new(&report, &recording, roots, &read_source)
        })
    }

    fn run(&self, request: &Request) -> Result<Ran, Unmeasured> {
        let folder = tempfile::tempdir().map_err(CliError::io("make a folder in", std::env::temp_dir()))?;
        let file = folder.path().join("run.memfit");
        let request = Request { output: Some(file.clone()), ..request.clone() };
        let outcome = memfit_run::perform(&request, self.home, self.printer)?;
        let report = memfit_run::report(&request, &outcome);
        let recording = match crate::input::read(&file) {
            Ok((Source::Recording(recording), _)) => *recording,
            // A script that failed before it used the GPU leaves no recording.
            _ => Recording::default(),
        };
        Ok(Ran { report, recording, last_output: outcome.facts.last_output })
    }

    /// The largest batch size with which the command fits.
    fn largest(&self, request: &Request) -> Result<Option<u64>, Unmeasured> {
        let own = Arguments::new(&request.command);
        let start = own.batch().ok_or(memfit_cards::ArgumentsError::NoBatch)?;
        largest_batch(start, |batch| {
            let command: Vec<OsString> = own.with_batch(Some(batch))?.words().to_vec();
            let request = Request { command, ..request.clone() };
            let outcome = memfit_run::perform(&request, self.home, self.printer)?;
            let report = memfit_run::report(&request, &outcome);
            match report.verdict {
                _ if self.interrupt.happened() => Err(Unmeasured::Interrupted),
                Verdict::Fits => Ok(true),
                Verdict::Oom => Ok(false),
                Verdict::Unknown | Verdict::Error => {
                    let mut problem = no_answer(&report, &outcome.facts.last_output);
                    problem.message = format!("with a batch of {batch}: {}", problem.message);
                    Err(Unmeasured::Problem(problem))
                }
            }
        })
    }
}

/// A run's report, recording and last output.
struct Ran {
    report: RunReport,
    recording: Recording,
    last_output: String,
}

/// Reason why a run gave no answer, with the last line of the script's output if the script itself failed.
fn no_answer(report: &RunReport, last_output: &str) -> Problem {
    let mut problem = report.problem.clone().unwrap_or_else(|| Problem {
        kind: ProblemKind::OutOfMemory,
        message: "It runs out of memory even without a limit.".to_owned(),
        hint: None,
    });
    let last = last_output.lines().rev().map(str::trim).find(|line| !line.is_empty());
    if let Some(last) =
        last.filter(|last| report.script.exit_status.is_some() && !problem.message.contains(last))
    {
        problem.message = format!("{} Its last line: {last}", problem.message);
    }
    problem
}

/// Changes the current directory until it is dropped.
struct Inside {
    back: PathBuf,
}

impl Inside {
    fn enter(folder: &Path) -> Result<Self, Unmeasured> {
        let back = std::env::current_dir().map_err(CliError::io("use", folder))?;
        std::env::set_current_dir(folder).map_err(|error| {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            let error = CliError::io("use", folder)(error);
            if missing { Unmeasured::NoScript(error) } else { Unmeasured::Error(error) }
        })?;
        Ok(Self { back })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _left = std::env::set_current_dir(&self.back);
    }
}
