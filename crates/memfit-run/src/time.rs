//! Timing in the report: the duration of a step, and notes on time.

use memfit_channel::clock::{SpeedRange, StepTime};
use memfit_channel::{ClockMode, HostTime};
use memfit_report::remarks::Note;
use memfit_report::wire::Time;
use memfit_vocabulary::Remark;

use crate::facts::{Facts, RankFacts};
use crate::{Card, Request};

/// Minimum share of the peak for a remark on memory that waits for another stream.
const MIN_REMARK_SHARE: f64 = 0.005;

/// Step time of the slowest rank, and the duration of the run itself.
pub(crate) fn step_time(request: &Request, facts: &Facts) -> Time {
    let wall_s = thousandths(facts.wall.as_secs_f64());
    let Card::Virtual(device, _) = &request.card else { return Time { wall_s, ..Time::default() } };
    let range = |(best, worst)| SpeedRange { best, worst };
    let compute = range(device.achieved.tensor.time_range());
    let memory = range(device.achieved.memory.time_range());
    let step = facts
        .ranks
        .iter()
        .filter_map(|rank| {
            let time = StepTime::from_marks(&rank.marks, compute, memory)?;
            match request.planned.as_ref().filter(|planned| planned.most_pieces.is_some() && !ran_whole(rank))
            {
                // Too few steps to extrapolate the skipped micro-batches: no time is better than that of a
                // part.
                Some(planned) => Some(scale_step_time(time, planned.step_time_factor(&rank.marks)?)),
                None => Some(time),
            }
        })
        .max_by(|a, b| a.typical.total_cmp(&b.typical))
        // A clock that assigns no time to work says nothing about a step's duration.
        .filter(|_| facts.setup.clock != ClockMode::Instant);
    let clock = match facts.setup.clock {
        ClockMode::Estimate => "estimate",
        ClockMode::Instant => "instant",
        ClockMode::Never => "never",
    };
    let milliseconds = |nanoseconds: f64| thousandths(nanoseconds / 1e6);
    Time {
        wall_s,
        step_ms_estimate: step.as_ref().map(|step| milliseconds(step.typical)),
        step_ms_low: step.as_ref().map(|step| milliseconds(step.low)),
        step_ms_high: step.as_ref().map(|step| milliseconds(step.high)),
        busy_ms: step
            .map(|step| {
                step.busy
                    .iter()
                    .map(|(kind, length)| (kind.name().to_owned(), milliseconds(*length)))
                    .collect()
            })
            .unwrap_or_default(),
        clock: Some(clock.to_owned()),
    }
}

/// Returns `true` if all micro-batches of its steps ran, though only some were requested.
fn ran_whole(rank: &RankFacts) -> bool {
    rank.training.as_ref().is_some_and(|training| training.whole)
}

/// Scales the time of a step with some of its micro-batches to the time with all of them.
fn scale_step_time(time: StepTime, stretch: f64) -> StepTime {
    StepTime {
        typical: time.typical * stretch,
        low: time.low * stretch,
        high: time.high * stretch,
        busy: time.busy.into_iter().map(|(kind, length)| (kind, length * stretch)).collect(),
    }
}

/// Remark that the device would wait for data, derived from the slowest rank's steps; `None` if unknown, or
/// if the error of the step time permits both answers.
fn waits_for_data(request: &Request, facts: &Facts) -> Option<Note> {
    if facts.setup.host_time == HostTime::Measured {
        // In this case, loading is part of the reported step time.
        return None;
    }
    let step = step_time(request, facts);
    let (typical, high) = (step.step_ms_estimate?, step.step_ms_high?);
    let (loading, workers) = facts
        .ranks
        .iter()
        .filter_map(|rank| {
            let done = rank.done.as_ref().filter(|done| done.steps > 0 && !done.forward_only)?;
            let feeding = done.feeding?;
            let batches = feeding.batches as f64 / done.steps as f64;
            Some((batches * feeding.period_ns? as f64 / 1e6, feeding.workers))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    let how = match workers {
        0 => "its loader, without workers,".to_owned(),
        1 => "its loader's one worker".to_owned(),
        many => format!("its loader with {many} workers"),
    };
    (loading > high).then(|| {
        Note::new(Remark::WaitsForData)
            .with_value("how", how)
            .with_value("loading", milliseconds(loading))
            .with_value("step", milliseconds(typical))
            .with_value("high", milliseconds(high))
    })
}

/// Notes on time: the clock's effect on the peaks, skipped micro-batches, and waiting for data.
pub(crate) fn notes(request: &Request, facts: &Facts) -> Vec<Note> {
    let mut notes = Vec::new();
    let pending = facts.ranks.iter().map(|rank| rank.pending).max().unwrap_or(0);
    let reserved = facts.fullest().map_or(0, |rank| rank.peak.reserved);
    if pending as f64 > MIN_REMARK_SHARE * reserved as f64 {
        let mib = pending.div_ceil(1 << 20);
        notes.push(Note::new(Remark::Pending).with_value("mib", mib.to_string()));
    }
    if let Some(planned) = &request.planned
        && let Some(most) = planned.most_pieces
        && !facts.ranks.iter().any(ran_whole)
    {
        notes.push(
            Note::new(Remark::Pieces)
                .with_value("pieces", planned.pieces.to_string())
                .with_value("run", (most + 1).to_string()),
        );
    }
    notes.extend(waits_for_data(request, facts));
    match facts.setup.clock {
        ClockMode::Estimate => {}
        ClockMode::Instant => notes.push(Note::new(Remark::ClockInstant)),
        ClockMode::Never => notes.push(Note::new(Remark::ClockNever)),
    }
    notes
}

/// Formats milliseconds for a sentence.
fn milliseconds(number: f64) -> String {
    if number < 10.0 { format!("{number:.1}") } else { format!("{number:.0}") }
}

fn thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
