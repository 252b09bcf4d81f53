//! `memfit data --loader train.py`: host memory and throughput of a script's own `DataLoader`, and settings
//! that would keep the GPU busy.

use memfit_channel::message::{Loader, LoaderTrial};
use memfit_loader::DataLoader;
use memfit_plan::{Batches, Given, Host, expected, propose};
use memfit_report::text;
use memfit_report::wire::{
    LoaderBatch, LoaderDataset, LoaderHost, LoaderMeasured, LoaderReport, LoaderSample, LoaderSettings,
    LoaderVerdict, Problem, ProblemKind, RunReport, Verdict, schema,
};
use memfit_run::{Home, Machine};

use super::{answer, plain_catalogue};
use crate::args::DataArgs;
use crate::request;
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Prefetched batches per worker if the script does not set them.
const PREFETCH: u64 = 2;
/// Start-up time of workers from which a remark is shown.
const SLOW_START_MS: f64 = 1000.0;

/// Runs a script for a few steps, and measures its loader.
pub(crate) fn data_loader(
    args: DataArgs,
    settings: &Settings,
    home: &Home,
    printer: &Printer,
) -> Result<Exit, CliError> {
    let out = args.out.clone();
    let catalogue = plain_catalogue(None, settings)?;
    let request = request::to_measure(args, settings, &catalogue)?;
    let outcome = memfit_run::perform_once(&request, home, printer)?;
    let ran = memfit_run::report(&request, &outcome);
    let measured = outcome.facts.measured();
    let report = match measured.and_then(|rank| Some((rank.loader.as_ref()?, rank.trials.as_slice()))) {
        Some((loader, trials)) => report(ran, loader, trials),
        None => without(ran),
    };
    let canvas = printer.canvas();
    answer(&report, || text::data_loader(&report, canvas), &out, settings, printer)?;
    Ok(match report.verdict {
        LoaderVerdict::KeepsUp => Exit::Good,
        LoaderVerdict::KeepsUpAsProposed | LoaderVerdict::Waits => Exit::BadNews,
        LoaderVerdict::Unknown => Exit::NoAnswer,
    })
}

/// The answer if no loader was measured.
fn without(ran: RunReport) -> LoaderReport {
    let problem = ran.problem.clone().unwrap_or_else(|| Problem {
        kind: ProblemKind::NoDataLoader,
        message: "The steps that ran never iterated over a `torch.utils.data.DataLoader`.".to_owned(),
        hint: Some("`memfit data FOLDER` looks at images by themselves".to_owned()),
    });
    LoaderReport { problem: Some(problem), ..empty(ran) }
}

fn empty(ran: RunReport) -> LoaderReport {
    let Machine { processors, shared_memory, memory } = Machine::current();
    LoaderReport {
        schema: schema::DATA_LOADER,
        verdict: LoaderVerdict::Unknown,
        device: ran.device,
        script: ran.script,
        steps: ran.steps,
        step_ms_estimate: ran.time.step_ms_estimate,
        batches_per_step: None,
        card_samples_per_s: None,
        dataset: LoaderDataset::default(),
        batch: LoaderBatch::default(),
        sample: None,
        own: None,
        measured: Vec::new(),
        proposed: None,
        why: String::new(),
        advice: Vec::new(),
        host: LoaderHost { processors, memory, shared_memory },
        problem: None,
    }
}

/// Reason why the steps of a script that runs out of memory have no time.
fn out_of_memory(ran: &RunReport) -> Option<Problem> {
    let oom = ran.oom.as_ref().filter(|_| ran.verdict == Verdict::Oom)?;
    let place = oom.stack.first().map_or_else(String::new, |place| format!(", at {place}"));
    Some(Problem {
        kind: ProblemKind::OutOfMemory,
        message: format!(
            "The script runs out of memory on this GPU in step {}{place}, so the time of a step is unknown.",
            oom.step
        ),
        hint: Some(
            "name a larger GPU, or pass a smaller batch; `memfit run` shows what fills the memory".to_owned(),
        ),
    })
}

fn report(ran: RunReport, loader: &Loader, trials: &[LoaderTrial]) -> LoaderReport {
    let failed = ran.problem.clone().or_else(|| out_of_memory(&ran));
    let steps = ran.steps;
    let mut report = empty(ran);
    report.dataset = LoaderDataset { class: loader.dataset.clone(), items: loader.items };
    report.batch = LoaderBatch {
        samples: loader.samples,
        bytes: loader.bytes,
        on_card: loader.on_card,
        collate_ms: loader.collate_ns.map(ms),
        pin_ms: ms(loader.copy_ns),
    };
    report.sample = loader.item_ns.zip(loader.slowest_ns).map(|(median, slowest)| LoaderSample {
        median_ms: ms(median),
        slowest_ms: ms(slowest),
        measured: loader.measured,
    });
    report.batches_per_step = (steps > 0 && loader.given > 0).then(|| loader.given as f64 / steps as f64);
    let card_ms = report.step_ms_estimate.zip(report.batches_per_step).map(|(step, many)| step / many);
    report.card_samples_per_s = card_ms.map(|card| rate(loader.samples as f64, card));
    let given: Vec<Given> = trials.iter().filter_map(given).collect();
    report.measured = trials.iter().map(|trial| measured(trial, card_ms)).collect();

    let slowest = trials.iter().filter(|trial| trial.workers == 0).map(|trial| trial.slowest_ns).max();
    let batches =
        Batches { bytes: loader.bytes, slowest_ms: ms(slowest.unwrap_or(0)), on_card: loader.on_card };
    let host = Host {
        processors: report.host.processors,
        shared_memory: report.host.shared_memory,
        memory: report.host.memory,
    };
    let fed = Fed { loader, given: &given, card_ms };
    let own = fed.settings(loader.workers, loader.prefetch, loader.pinned, loader.persistent);
    let proposal = propose(&given, &batches, card_ms, &host);
    report.proposed = proposal
        .as_ref()
        .map(|found| fed.settings(found.workers, found.prefetch, found.pinned, found.persistent));
    report.why = proposal.as_ref().map(|found| found.why.clone()).unwrap_or_default();
    let keeps_up = proposal.as_ref().and_then(|found| found.keeps_up);
    let is_enough = own.card_waits.is_some_and(|waits| waits <= BORNE);
    report.verdict = match keeps_up {
        _ if is_enough => LoaderVerdict::KeepsUp,
        Some(true) => LoaderVerdict::KeepsUpAsProposed,
        Some(false) => LoaderVerdict::Waits,
        None => LoaderVerdict::Unknown,
    };
    report.own = Some(own);
    if report.verdict == LoaderVerdict::Unknown {
        report.problem = failed.or_else(|| {
            Some(Problem {
                kind: ProblemKind::NoStepTime,
                message: match &loader.error {
                    Some(error) => format!("The loader gave no batch: {error}"),
                    None if given.is_empty() => "The loader could not be iterated again.".to_owned(),
                    None => {
                        "Fewer than two optimizer steps ran, so the time of a step is unknown.".to_owned()
                    }
                },
                hint: None,
            })
        });
    }
    report.advice = advice(&report, loader);
    report
}

/// Maximum share of the time that a GPU may wait and still count as busy.
const BORNE: f64 = 0.05;

/// Facts about a loader that feeds a GPU.
struct Fed<'a> {
    loader: &'a Loader,
    given: &'a [Given],
    card_ms: Option<f64>,
}

impl Fed<'_> {
    /// The outcome of these settings.
    fn settings(
        &self,
        workers: u64,
        prefetch: Option<u64>,
        pinned: bool,
        persistent: bool,
    ) -> LoaderSettings {
        let given = self.given.iter().find(|one| one.workers == workers);
        let samples = self.loader.samples as f64;
        let fed = given.zip(self.card_ms).map(|(given, card)| expected(given, card));
        let taken = DataLoader {
            workers,
            prefetch: prefetch.unwrap_or(PREFETCH),
            batch: self.loader.bytes,
            pinned,
            decoding: 0,
        }
        .host_memory();
        let own = given.map_or(0, |given| given.memory);
        LoaderSettings {
            num_workers: workers,
            prefetch_factor: prefetch,
            pin_memory: pinned,
            persistent_workers: persistent,
            samples_per_s: given.map(|given| rate(samples, given.batch_ms)),
            expected_samples_per_s: fed.map(|fed| rate(samples, fed.period_ms)),
            card_waits: fed.map(|fed| fed.waits),
            host_memory: own + taken.shared + taken.pinned,
            shared_memory: taken.shared,
            pinned: taken.pinned,
        }
    }
}

fn given(trial: &LoaderTrial) -> Option<Given> {
    (trial.error.is_none() && trial.batches > 0).then(|| Given {
        workers: trial.workers,
        batch_ms: ms(trial.wall_ns) / trial.batches as f64,
        start_ms: ms(trial.start_ns),
        memory: trial.memory,
    })
}

fn measured(trial: &LoaderTrial, card_ms: Option<f64>) -> LoaderMeasured {
    let given = given(trial);
    LoaderMeasured {
        workers: trial.workers,
        samples_per_s: given.map(|_| rate(trial.samples as f64, ms(trial.wall_ns))),
        batch_ms: given.map(|given| given.batch_ms),
        slowest_ms: ms(trial.slowest_ns),
        start_ms: ms(trial.start_ns),
        memory: trial.memory,
        batches: trial.batches,
        card_waits: given.zip(card_ms).map(|(given, card)| expected(&given, card).waits),
        error: trial.error.clone(),
    }
}

/// Further advice, most important first.
fn advice(report: &LoaderReport, loader: &Loader) -> Vec<String> {
    let mut advice = Vec::new();
    for trial in report.measured.iter().filter(|trial| trial.error.is_some()) {
        advice.push(format!(
            "With {} workers it failed: {}",
            trial.workers,
            trial.error.as_deref().unwrap_or_default()
        ));
    }
    if report.verdict == LoaderVerdict::Waits {
        advice.push(
            "More workers do not help on this host. Make items cheaper: decode images at the size that is needed (`memfit.data.ImageLoader`, or `memfit.data.decode` in the data set), cache what is recomputed in each epoch, or augment batches on the GPU (`memfit.data.Augment`)."
                .to_owned(),
        );
    }
    let chosen = report.proposed.and_then(|found| {
        report.measured.iter().find(|trial| trial.workers == found.num_workers && trial.workers > 0)
    });
    if let Some(chosen) = chosen.filter(|chosen| chosen.start_ms > SLOW_START_MS && !loader.persistent) {
        advice.push(format!(
            "Starting {} workers takes {:.1} s in every epoch without persistent_workers=True. Persistent workers keep their copy of the data set: changes that the script makes between epochs do not reach them.",
            chosen.workers,
            chosen.start_ms / 1000.0
        ));
    }
    let ends_early = loader.items.is_some() && chosen.is_some_and(|chosen| chosen.batches == 0);
    if ends_early {
        advice.push(
            "The data set ended before the workers reached a steady rate: measure longer with `--measure`."
                .to_owned(),
        );
    }
    if report.device.count > 1 {
        advice.push(format!(
            "These figures are for one process. {} processes, one per GPU, share this host's CPUs and memory.",
            report.device.count
        ));
    }
    advice.push(
        "Files that were read before come from the page cache: if the data is larger than this machine's memory, the disk or network decides."
            .to_owned(),
    );
    advice
}

fn ms(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

/// Rate per second of `many` items that take this many milliseconds.
fn rate(many: f64, milliseconds: f64) -> f64 {
    (many * 1e6 / milliseconds.max(1e-6)).round() / 1000.0
}
