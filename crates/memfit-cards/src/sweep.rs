//! All rows of a table: every requested GPU, count and batch size.

use std::ffi::OsString;
use std::time::Instant;

use memfit_devices::Device;
use memfit_report::text::Growth;
use memfit_report::wire::{CardRow, Problem, Verdict};
use memfit_run::{Card, Console, Home, Interrupt, Rehearsal, Request, RunError, without_secrets};

use crate::architecture::largest_first;
use crate::arguments::{Arguments, ArgumentsError};
use crate::judge::Judge;
use crate::replicas::replicated;
use crate::rows::row;
use crate::workload::Workload;

/// CUDA major version used for the size of communicators if torch's is unknown.
const UNKNOWN_CUDA: u32 = 12;

/// Request for a table.
#[derive(Debug)]
pub struct Question {
    /// The request for a run of the command; its GPU is ignored.
    pub request: Request,
    /// Options with which `memfit run` makes this request, for the command of a row.
    pub options: Vec<String>,
    /// The GPUs.
    pub devices: Vec<Device>,
    /// Numbers of GPUs; empty for one per process that the command starts.
    pub counts: Vec<u32>,
    /// Batch sizes; empty for the command's own.
    pub batches: Vec<u64>,
    /// `true` if the script runs on every GPU.
    pub proves_all: bool,
}

/// Table.
#[derive(Debug, Default)]
pub struct Found {
    /// The rows, in no order.
    pub rows: Vec<CardRow>,
    /// The training, for each requested batch size.
    pub workloads: Vec<(Option<u64>, Workload)>,
    /// Runs of the script.
    pub runs: u64,
    /// Duration of the first run in seconds, including the script's imports.
    pub first_run_s: Option<f64>,
    /// `torch.__version__`.
    pub torch: Option<String>,
    /// Minimum of the steps completed by the successful runs.
    pub steps: Option<u64>,
    /// `true` if the command starts as many processes as there are GPUs.
    pub launches: bool,
    /// `true` if a remark says that memory grows.
    grows: bool,
    /// Remarks.
    pub notes: Vec<String>,
    /// Reason why the script fails on every GPU.
    pub problem: Option<Problem>,
}

/// Reason why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A run failed to start.
    #[error(transparent)]
    Run(#[from] RunError),
    /// An argument could not be set.
    #[error(transparent)]
    Arguments(#[from] ArgumentsError),
}

impl Found {
    /// The training with the requested batch size.
    pub fn workload(&self, batch: Option<u64>) -> Option<&Workload> {
        let of_batch = |known: &&(Option<u64>, Workload)| known.0 == batch || known.1.batch == batch;
        self.workloads.iter().find(of_batch).map(|(_, workload)| workload)
    }

    /// Samples in an optimizer step, over all GPUs of a row.
    pub fn samples_per_step(&self, row: &CardRow) -> Option<u64> {
        // A plan that spreads a single-process script divides its batches.
        let processes = if row.chosen.is_some() && !self.launches { 1 } else { row.count };
        // A batch that the script reduced by itself equals no requested one; batches per step are the same.
        let workload = self.workload(row.batch).or_else(|| self.workloads.first().map(|(_, first)| first))?;
        let workload = Workload { batch: row.batch.or(workload.batch), ..*workload };
        Some(workload.samples_per_step()? * u64::from(processes))
    }
}

/// Finds the rows.
pub fn sweep(question: &Question, home: &Home, console: &dyn Console) -> Result<Found, SweepError> {
    let _interrupt = Interrupt::listen();
    let mut found = Found::default();
    let own = Arguments::new(&question.request.command);
    let batches: Vec<Option<u64>> = match question.batches.as_slice() {
        [] => vec![None],
        batches => batches.iter().copied().map(Some).collect(),
    };
    for batch in batches {
        let arguments = own.with_batch(batch)?;
        let named = batch.or_else(|| arguments.batch());
        let processes = arguments.processes();
        found.launches = processes.is_some();
        let counts = match question.counts.as_slice() {
            [] => vec![processes.unwrap_or(1)],
            counts => counts.to_vec(),
        };
        // A launcher's command differs from count to count; a single-process script runs once for all counts.
        let commands: Vec<(Arguments, &[u32])> = if processes.is_some() {
            let with = |count: &u32| arguments.with_processes(*count).unwrap_or_else(|| arguments.clone());
            counts.iter().map(with).zip(counts.chunks(1)).collect()
        } else {
            vec![(arguments.clone(), counts.as_slice())]
        };
        for (command, counts) in commands {
            let asked = Asked { batch, named, counts, launches: processes.is_some() };
            one_command(question, &command, &asked, home, console, &mut found)?;
        }
        if found.problem.is_some() {
            break;
        }
    }
    Ok(found)
}

/// Request for one command.
struct Asked<'counts> {
    /// The requested batch size.
    batch: Option<u64>,
    /// The batch size in the command.
    named: Option<u64>,
    counts: &'counts [u32],
    /// `true` if it starts one process for each GPU of the count.
    launches: bool,
}

/// The rows of one command. A launcher starts one process per GPU; a single-process script runs once, and its
/// replicas are modelled.
fn one_command(
    question: &Question,
    command: &Arguments,
    asked: &Asked<'_>,
    home: &Home,
    console: &dyn Console,
    found: &mut Found,
) -> Result<(), SweepError> {
    let Asked { batch, named, counts, launches } = *asked;
    let order = largest_first(&question.devices);
    let Some(first) = order.first().map(|architecture| architecture.representative().clone()) else {
        return Ok(());
    };
    let processes = if launches { counts.first().copied().unwrap_or(1) } else { 1 };
    let request = Request {
        card: Card::Virtual(Box::new(first), processes),
        command: command.words().to_vec(),
        ..question.request.clone()
    };
    let words = shown_words(command.words());
    let started = Instant::now();
    console.remark("starting the script, up to its first use of the GPU");
    let rehearsal = Rehearsal::open(&request, home, console)?;
    let mut judge = Judge::new(&request, &question.devices, question.proves_all, console);
    found.problem = judge.start(&rehearsal)?;
    found.first_run_s.get_or_insert_with(|| started.elapsed().as_secs_f64());
    if found.problem.is_some() {
        found.runs += judge.runs();
        return Ok(());
    }
    let mut workload = match judge.training() {
        Some((_, Some(training))) => Workload::from(training),
        Some((device, None)) => {
            found.runs += 1;
            Workload::survey(&rehearsal, &request, device)?
        }
        None => Workload::default(),
    };
    workload.batch = batch.or(workload.batch).or(named);
    let rows = judge.judge_all(&rehearsal, &question.devices)?;
    found.runs += judge.runs();
    found.torch = found.torch.take().or_else(|| rows.iter().find_map(|judged| judged.report.torch.clone()));
    let fitting = rows.iter().filter(|judged| judged.report.verdict == Verdict::Fits);
    let completed = fitting.clone().map(|judged| judged.report.coverage.steps).min();
    found.steps = completed.into_iter().chain(found.steps).min();
    let only_forward = "no optimizer stepped: a step is a forward pass here";
    if fitting.clone().any(|judged| judged.report.coverage.forward_only)
        && !found.notes.iter().any(|note| note == only_forward)
    {
        found.notes.push(only_forward.to_owned());
    }
    let cuda = found.torch.as_deref().and_then(cuda_major).unwrap_or(UNKNOWN_CUDA);
    if !found.grows
        && let Some((judged, growth)) =
            fitting.clone().find_map(|judged| Some((judged, Growth::of_run(&judged.report)?)))
    {
        found.grows = true;
        found.notes.push(format!("on {}, {}", judged.device.id, growth.with_advice()));
    }
    for judged in &rows {
        for count in counts {
            if launches || *count == 1 {
                found.rows.push(row(judged, *count, &workload, &question.options, &words));
            } else {
                found.rows.push(replicated(
                    &row(judged, 1, &workload, &question.options, &words),
                    &judged.device,
                    &workload,
                    *count,
                    cuda,
                ));
            }
        }
    }
    if rows.iter().all(|judged| judged.report.verdict == Verdict::Error) {
        found.problem = rows.first().and_then(|judged| judged.report.problem.clone());
    }
    found.workloads.push((batch, workload));
    Ok(())
}

/// A command for people.
fn shown_words(words: &[OsString]) -> Vec<String> {
    without_secrets(words.iter().map(|word| word.to_string_lossy().into_owned()))
}

/// The CUDA major version of a build of torch such as `2.15.0+cu132`.
fn cuda_major(torch: &str) -> Option<u32> {
    let digits = torch.split_once("+cu")?.1;
    digits.get(..digits.len().checked_sub(1)?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cuda_version_is_read_from_torchs_version() {
        assert_eq!(cuda_major("2.15.0+cu132"), Some(13));
        assert_eq!(cuda_major("2.6.0+cu118"), Some(11));
        assert_eq!(cuda_major("2.6.0+cpu"), None);
        assert_eq!(cuda_major("2.6.0"), None);
    }
}
