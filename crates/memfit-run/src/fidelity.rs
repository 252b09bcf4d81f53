//! Fidelity of the results: refused calls, assumptions and remarks, and their possible effects on the peaks.

use memfit_devices::Origin;
use memfit_report::remarks::{Effect, Note, Stake};
use memfit_report::text::size;
use memfit_report::wire::{Fidelity, PossibleEffect};
use memfit_vocabulary::Remark;

use crate::facts::Facts;
use crate::numbers::Numbers;
use crate::releases::{self, Support};
use crate::signals::signal_name;
use crate::watch::Ended;
use crate::{Card, Outcome, Request, facts, gpus, outside, time};

/// Fidelity of a run's results.
pub(crate) fn assess(request: &Request, outcome: &Outcome) -> Fidelity {
    let facts = &outcome.facts;
    let notes = notes(request, facts);
    let effects = effects(request, outcome, &notes);
    Fidelity {
        unmodelled: facts.tally.unmodelled.clone(),
        values: facts.tally.values.iter().map(|(value, _)| value.clone()).collect(),
        notes: notes.iter().map(Note::text).collect(),
        effects,
    }
}

/// Remark on a process that made no progress, in a run of this many ranks.
fn stalled(ranks: usize) -> Note {
    let who = if ranks > 1 { "some ranks" } else { "a process of the script" };
    Note::new(Remark::Stalled).with_value("who", who)
}

fn notes(request: &Request, facts: &Facts) -> Vec<Note> {
    let mut notes = facts.notes.clone();
    notes.extend(facts.tally.notes.iter().cloned());
    for (lever, why) in facts.ranks.iter().flat_map(|rank| &rank.refused) {
        notes.push(Note::new(Remark::LeverRefused).with_value("lever", lever).with_value("why", why));
    }
    if facts.ended == Ended::Stalled && facts.exception.is_none() {
        notes.push(stalled(facts.ranks.len()));
    }
    if let Some(signal) = facts.crashed_at_end() {
        notes.push(Note::new(Remark::CrashedAtEnd).with_value("signal", signal_name(signal)));
    }
    // A run that ended before has not looked for them.
    if facts.setup.cover_full && matches!(facts.ended, Ended::Complete | Ended::Exited(0)) {
        let covered = facts.coverage();
        // One in which memory ran out was found, and is what the verdict is about.
        let evaluation = covered.evaluation || facts.oom.as_ref().is_some_and(|oom| oom.oom.evaluation);
        for (what, ran) in [("evaluation", evaluation), ("batch of the largest items", covered.largest_batch)]
        {
            if !ran {
                notes.push(Note::new(Remark::NotCovered).with_value("what", what));
            }
        }
    }
    if facts.real.is_some() {
        notes.push(Note::new(Remark::Sampled));
        if facts.ranks.len() > 1 {
            notes.push(Note::new(Remark::FirstCard));
        }
    }
    if let Some(torch) = facts.torch.as_deref().filter(|torch| releases::support_of(torch) != Support::Tested)
    {
        let note = Note::new(Remark::TorchUntried)
            .with_value("torch", torch)
            .with_value("tried", releases::tested_releases());
        notes.push(note);
    }
    notes.extend(gpus::note(request, facts));
    notes.extend(time::notes(request, facts));
    if let Card::Virtual(device, _) = &request.card {
        notes.extend(outside::notes(device, facts));
    }
    if request.other_processes > 0 {
        let how = match request.other_processes_origin {
            Origin::Calibrated => "assumed, as at calibration,",
            _ => "assumed",
        };
        let held = size(request.other_processes);
        notes.push(Note::new(Remark::OtherProcesses).with_value("how", how).with_value("held", held));
    }
    notes
}

/// Possible effects of each refused call, each assumed value and each note.
fn effects(request: &Request, outcome: &Outcome, notes: &[Note]) -> Vec<PossibleEffect> {
    let facts = &outcome.facts;
    let effect = |id: &str, what: &str, bytes: Option<u64>, why: &str| PossibleEffect {
        id: id.to_owned(),
        what: what.to_owned(),
        bytes,
        why: why.to_owned(),
    };
    let refused = facts.tally.unmodelled.iter().map(|call| {
        if facts::may_affect_memory(&call.call) {
            effect("unmodelled", &call.call, None, "its effect on memory is unknown")
        } else {
            effect("unmodelled", &call.call, Some(0), "it does not affect the memory of training")
        }
    });
    let between = sizes_between(outcome);
    let values = facts.tally.values.iter().map(|(value, stake)| match (stake, between) {
        (Stake::Value, _) => effect(
            "value",
            &value.call,
            None,
            "not a size, and a correct script does not branch on it",
        ),
        (Stake::Condition | Stake::Count, _) => match outcome.tested.numbers {
            Numbers::Harmless => effect(
                "condition",
                &value.call,
                Some(0),
                "runs in which it has the other truth value do not need more memory",
            ),
            Numbers::NeedsMore(bytes) => effect(
                "condition",
                &value.call,
                Some(bytes),
                "a run with other values needs that much more, which the upper bound includes",
            ),
            Numbers::Untried => {
                effect("condition", &value.call, None, "a peak may change if the other branch allocates more")
            }
            Numbers::Decisive | Numbers::Fatal | Numbers::Unfinished => effect(
                "condition",
                &value.call,
                None,
                "may change the peak: with other values the script allocates differently, fails or does not end",
            ),
        },
        (Stake::Number, _) => match outcome.tested.numbers {
            Numbers::Harmless => {
                effect("number", &value.call, Some(0), "runs with other numbers allocated the same")
            }
            Numbers::NeedsMore(bytes) => effect(
                "number",
                &value.call,
                Some(bytes),
                "a run with other values needs that much more, which the upper bound includes",
            ),
            Numbers::Decisive => {
                effect("number", &value.call, None, "what the script allocates depends on it")
            }
            Numbers::Fatal => effect("number", &value.call, None, "with another number the script fails"),
            Numbers::Unfinished => {
                effect("number", &value.call, None, "the run with another number was stopped before its end")
            }
            Numbers::Untried => effect(
                "number",
                &value.call,
                None,
                "no known bound if it becomes a size; no second run tried that",
            ),
        },
        (Stake::Unbounded, _) => effect("size-unbounded", &value.call, None, "the arguments give no bound"),
        (Stake::Size, Some(bytes)) => {
            let why = "between the device peaks with all such sizes at their upper and at their lower bound";
            effect("size", &value.call, Some(bytes), why)
        }
        (Stake::Size, None) => effect("size", &value.call, None, "`--sizes both` runs with both bounds"),
    });
    let notes = notes.iter().map(|note| {
        let bytes = match note.effect() {
            Effect::None => Some(0),
            Effect::Booked | Effect::Bound => facts.tally.remark_bytes.get(&note.id).copied(),
            Effect::Stated => note.remark().and_then(|remark| stated_bytes(remark, request, facts)),
            Effect::Unbounded => None,
        };
        note.possible_effect(bytes)
    });
    refused.chain(values).chain(notes).collect()
}

/// Difference between the peaks of the two runs, if both completed.
fn sizes_between(outcome: &Outcome) -> Option<u64> {
    let lower = outcome.lower.as_ref()?;
    let upper = &outcome.facts;
    let complete = lower.oom.is_none() && upper.oom.is_none() && lower.steps() >= upper.steps();
    let peak = |facts: &Facts| facts.fullest().map(|rank| rank.peak.device);
    complete.then(|| Some(peak(upper)?.abs_diff(peak(lower)?))).flatten()
}

/// Bytes that a remark itself states.
fn stated_bytes(remark: Remark, request: &Request, facts: &Facts) -> Option<u64> {
    match remark {
        Remark::Pending => facts.ranks.iter().map(|rank| rank.pending).max(),
        Remark::OtherProcesses => Some(request.other_processes),
        Remark::Outside => {
            let rank = facts.fullest()?;
            let outside = outside::at_peak(facts, rank.outside, &rank.peak);
            let parts = outside::parts(request, facts, &outside);
            Some(parts.iter().map(|part| (part.high - part.typical).max(part.typical - part.low)).sum())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_stands_still_is_called_no_rank() {
        assert!(stalled(2).text().starts_with("some ranks made no progress"), "{}", stalled(2).text());
        assert!(stalled(1).text().starts_with("a process of the script made no"), "{}", stalled(1).text());
    }
}
