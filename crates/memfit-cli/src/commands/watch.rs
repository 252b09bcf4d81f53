//! `memfit watch [PID]`: runs in progress, looked at until they end.

use std::thread;
use std::time::{Duration, Instant};

use memfit_report::text;
use memfit_report::wire::{WatchReport, schema};
use memfit_run::{Interrupt, LiveRun};

use super::answer;
use crate::args::{Format, WatchArgs};
use crate::settings::Settings;
use crate::{CliError, Exit, Printer};

/// Delay until an interrupt is noticed.
const TICK: Duration = Duration::from_millis(50);
/// Between two looks, where nobody said otherwise.
const EVERY: Duration = Duration::from_secs(1);

/// Watches until the runs are over, or the user has seen enough.
pub(crate) fn watch(args: &WatchArgs, settings: &Settings, printer: &Printer) -> Result<Exit, CliError> {
    let mut runs = LiveRun::find(args.pid);
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
            let known: Vec<_> = runs.iter().map(|run| run.run_dir().clone()).collect();
            runs.extend(LiveRun::find(None).into_iter().filter(|run| !known.contains(run.run_dir())));
        }
    }
}

fn look(runs: &mut [LiveRun]) -> WatchReport {
    WatchReport { schema: schema::WATCH, runs: runs.iter_mut().map(LiveRun::look).collect() }
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
