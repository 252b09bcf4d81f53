//! Converts the facts and the verdict to the report's wire type.

use memfit_report::wire::{
    Coverage, DeviceInfo, Fidelity, Host, Oom, Outside, Peak, PeakEnd, PeakInterval, Problem, Rank,
    RunReport, Script, Time, Verdict, schema,
};
use memfit_vocabulary::Phase;

use crate::facts::Facts;
use crate::remedies::Diagnosis;
use crate::signals::signal_name;
use crate::watch::Ended;
use crate::{Outcome, Request, fidelity, gpus, outside, time, verdict};

/// Builds the report of a run.
pub fn report(request: &Request, outcome: &Outcome) -> RunReport {
    let facts = &outcome.facts;
    let device = facts.device(request);
    let (verdict, problem) = verdict::judge_run(request, facts, outcome.tested);
    let fullest = facts.fullest();
    let mut peak = facts.peak();
    peak.device_upper += outcome.tested.numbers.additional_bytes();
    let outside = fullest.map(|rank| outside::at_peak(facts, rank.outside, &rank.peak)).unwrap_or_default();
    RunReport {
        schema: schema::RUN.to_owned(),
        verdict,
        headroom: device.capacity as i64 - peak.device_upper as i64,
        peak,
        peak_interval: outcome.lower.as_ref().map(|lower| interval(lower, facts)),
        steps: facts.steps(),
        coverage: coverage(outcome),
        at_peak: fullest.and_then(|rank| rank.at_peak.clone()),
        outside_parts: outside::parts(request, facts, &outside),
        outside,
        host: Host {
            rss: facts.host.resident,
            pinned: facts.pinned,
            shared_memory: facts.host.shared_memory,
        },
        oom: facts.oom.as_ref().map(|oom| Oom {
            caught: !oom.uncaught,
            requested: oom.oom.requested,
            step: oom.oom.step,
            phase: phase(&oom.oom.phase),
            module: oom.oom.module.clone(),
            evaluation: oom.oom.evaluation && phase(&oom.oom.phase) == Phase::Forward,
            stack: oom.oom.stack.clone(),
            message: oom.text.clone(),
        }),
        ranks: facts
            .ranks
            .iter()
            .map(|rank| Rank { rank: rank.rank, card: rank.card, peak: rank.peak })
            .collect(),
        gpus: gpus::peaks(request, facts),
        time: time::step_time(request, facts),
        fidelity: fidelity::assess(request, outcome),
        torch: facts.torch.clone(),
        recording: outcome.recording.as_ref().map(|path| path.display().to_string()),
        script: script(facts),
        cause: outcome
            .diagnosis
            .as_ref()
            .filter(|_| facts.oom.is_some())
            .map(|found| found.explanation.cause),
        fixes: outcome.diagnosis.as_ref().map(Diagnosis::wire).unwrap_or_default(),
        plan: None,
        problem,
        device,
    }
}

/// Coverage of the run. A statement that ran in a further run is not missing.
fn coverage(outcome: &Outcome) -> Coverage {
    let mut coverage = outcome.facts.coverage();
    outcome.further.retain(&mut coverage.not_run);
    coverage
}

/// Peaks at the lower and at the upper bound of the sizes that were read back.
fn interval(lower: &Facts, upper: &Facts) -> PeakInterval {
    let end = |facts: &Facts| PeakEnd {
        peak: facts.peak(),
        out_of_memory: facts.oom.is_some(),
        completed: facts.oom.is_none() && facts.exception.is_none() && facts.steps() >= upper.steps(),
    };
    PeakInterval { lower: end(lower), upper: end(upper) }
}

/// Builds the report of a run that could not begin.
pub fn failure(problem: Problem, device: DeviceInfo, command: Vec<String>) -> RunReport {
    RunReport {
        schema: schema::RUN.to_owned(),
        verdict: Verdict::Error,
        headroom: device.capacity as i64,
        device,
        peak: Peak::default(),
        peak_interval: None,
        steps: 0,
        coverage: Coverage::default(),
        at_peak: None,
        outside: Outside::default(),
        outside_parts: Vec::new(),
        host: Host::default(),
        oom: None,
        ranks: Vec::new(),
        gpus: Vec::new(),
        time: Time::default(),
        fidelity: Fidelity::default(),
        torch: None,
        recording: None,
        script: Script { command: crate::without_secrets(command), ..Script::default() },
        cause: None,
        fixes: Vec::new(),
        plan: None,
        problem: Some(problem),
    }
}

/// Phase with this name.
pub(super) fn phase(name: &str) -> Phase {
    Phase::ALL.iter().copied().find(|phase| phase.name() == name).unwrap_or(Phase::Other)
}

fn script(facts: &Facts) -> Script {
    let (exit_status, signal) = match facts.ended {
        Ended::Exited(code) => (Some(code), None),
        Ended::Signalled(signal) => (None, Some(signal_name(signal))),
        Ended::Complete | Ended::Stalled | Ended::Interrupted | Ended::TimedOut => (None, None),
    };
    Script {
        command: facts.command.clone(),
        interpreter: facts.interpreter.clone(),
        exit_status,
        signal,
        exception: facts.exception.clone(),
    }
}
