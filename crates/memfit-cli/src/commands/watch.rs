//! `memfit watch [PID]`: samples runs in progress until they end.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use memfit_report::wire::{WatchReport, schema};
use memfit_report::{metrics, text};
use memfit_run::{Interrupt, LiveRun};
use memfit_view::{Answer, Loopback, Pages};

use super::answer;
use crate::args::{Format, WatchArgs};
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Maximum delay until an interrupt is noticed.
const TICK: Duration = Duration::from_millis(50);
/// Default interval between samples.
const EVERY: Duration = Duration::from_secs(1);

/// Watches until the runs end or the user interrupts.
pub(crate) fn watch(args: &WatchArgs, settings: &Settings, printer: &Printer) -> Result<Exit, CliError> {
    let mut runs = LiveRun::find(args.pid);
    if let Some(port) = args.prometheus.filter(|_| args.pid.is_none() || !runs.is_empty()) {
        return serve_metrics(runs, args.pid, port, printer);
    }
    if runs.is_empty() {
        return Err(CliError::NothingToWatch { pid: args.pid });
    }
    if args.once {
        let report = look(&mut runs);
        answer(&report, || text::watch(&report, printer.canvas()), &args.out, settings, printer)?;
        return Ok(Exit::Good);
    }
    let json = args.out.format.or(settings.format).unwrap_or_default() == Format::Json;
    let every = args.every.0.unwrap_or(EVERY);
    let interrupt = Interrupt::listen();
    let mut screen = printer.screen();
    loop {
        let report = look(&mut runs);
        if let Some(file) = &args.out.json {
            let text = crate::printer::to_json(&report)?;
            std::fs::write(file, text).map_err(CliError::io("write", file))?;
        }
        if json {
            printer.json_line(&report)?;
        } else {
            screen.draw(&text::watch(&report, printer.canvas()));
        }
        let over = report.runs.iter().all(|run| run.ended);
        if over || interrupted_within(every, &interrupt) {
            return Ok(Exit::Good);
        }
        if args.pid.is_none() {
            add_new(&mut runs);
        }
    }
}

/// Adds runs that have started since.
fn add_new(runs: &mut Vec<LiveRun>) {
    let known: Vec<_> = runs.iter().map(|run| run.run_dir().clone()).collect();
    runs.extend(LiveRun::find(None).into_iter().filter(|run| !known.contains(run.run_dir())));
}

/// Metrics, sampled at each request.
struct Metrics {
    runs: Mutex<Vec<LiveRun>>,
    /// `true` if only the runs found at the start are watched.
    chosen: bool,
}

impl Pages for Metrics {
    fn answer(&self, path: &str) -> Answer<'_> {
        if path != "/metrics" {
            return Answer::Refused("404 Not Found");
        }
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.chosen {
            add_new(&mut runs);
        }
        let report = look(&mut runs);
        let mut ended = report.runs.iter().map(|run| run.ended);
        runs.retain(|_| !ended.next().unwrap_or(false));
        Answer::Made { kind: metrics::CONTENT_TYPE, body: metrics::metrics(&report).into_bytes() }
    }
}

/// Serves metrics until the process ends.
fn serve_metrics(
    runs: Vec<LiveRun>,
    pid: Option<u32>,
    port: u16,
    printer: &Printer,
) -> Result<Exit, CliError> {
    let server = Loopback::bind(port).map_err(|source| CliError::Listen { port, source })?;
    printer.answer(&format!("http://{}/metrics\n", server.address()));
    printer.remark("the address works on this machine only, and until this command ends: Ctrl-C ends it");
    server.run(&Arc::new(Metrics { runs: Mutex::new(runs), chosen: pid.is_some() }));
    Ok(Exit::Good)
}

fn look(runs: &mut [LiveRun]) -> WatchReport {
    WatchReport { schema: schema::WATCH, runs: runs.iter_mut().map(LiveRun::read_state).collect() }
}

fn interrupted_within(time: Duration, interrupt: &Interrupt) -> bool {
    let began = Instant::now();
    while began.elapsed() < time {
        if interrupt.happened() {
            return true;
        }
        thread::sleep(TICK.min(time));
    }
    interrupt.happened()
}
