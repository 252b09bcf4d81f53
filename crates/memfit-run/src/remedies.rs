//! Remedies for a run that ran out of memory, and their proofs. Remedies that can be applied from outside are
//! tried by further runs, the best first, without touching the user's files.

use std::ffi::OsString;

use memfit_channel::ValuePolicy;
use memfit_devices::Bytes;
use memfit_explain::{Apply, Explanation, Fix};
use memfit_report::text::size;
use memfit_report::wire::{Exception, ExplainFix, FixProof, Verdict};
use memfit_vocabulary::{Cause, Lever, Proof};

use crate::stage::Changes;
use crate::watch::Ended;
use crate::{Card, Outcome, Ran, Request, RunError, Runner, verdict};

/// Maximum remedies in a report.
const MAX_REMEDIES: usize = 8;
/// Maximum remedies that are tried until one succeeds.
const MAX_TRIALS: usize = 3;
/// Names of the variable with the allocator's settings.
const VARIABLES: [&str; 2] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];

/// Reason why a run ran out of memory, and remedies.
#[derive(Clone, Debug)]
pub(crate) struct Diagnosis {
    /// Explanation of the recording.
    pub(crate) explanation: Explanation,
    /// For each remedy, the result of another run with it.
    proofs: Vec<Option<FixProof>>,
}

impl Diagnosis {
    /// Creates the diagnosis of a recording, with nothing proven yet.
    pub(crate) fn new(mut explanation: Explanation) -> Self {
        explanation.fixes.truncate(MAX_REMEDIES);
        let proofs = vec![None; explanation.fixes.len()];
        Self { explanation, proofs }
    }

    /// Results of the runs that tried a remedy, for the recording.
    pub(crate) fn trials(&self) -> Vec<memfit_recording::Trial> {
        let tried = self.explanation.fixes.iter().zip(&self.proofs);
        tried
            .filter_map(|(fix, proof)| {
                let FixProof { verdict, steps, peak } =
                    proof.filter(|proof| matches!(proof.verdict, Verdict::Fits | Verdict::Oom))?;
                Some(memfit_recording::Trial {
                    lever: fix.lever.to_string(),
                    how: fix.how.clone(),
                    fits: verdict == Verdict::Fits,
                    steps,
                    allocated: peak.allocated,
                    reserved: peak.reserved,
                    device: peak.device,
                    device_upper: peak.device_upper,
                })
            })
            .collect()
    }

    /// Records the result of a run with a remedy, which replaces what a replay or a model says of it. A run
    /// that failed for another reason proves nothing about the memory.
    fn record(&mut self, index: usize, proof: FixProof) {
        let fix = &mut self.explanation.fixes[index];
        match proof.verdict {
            Verdict::Fits | Verdict::Oom => {
                fix.fits = Some(proof.verdict == Verdict::Fits);
                fix.proof = Proof::Run;
            }
            Verdict::Unknown => fix.fits = None,
            Verdict::Error => {}
        }
        self.proofs[index] = Some(proof);
    }

    fn names_cause(&self) -> bool {
        self.explanation.cause != Cause::None
    }

    /// Next untried remedy that may be enough, and the trial for it.
    fn next(&self, request: &Request, tried: &[(Lever, String)]) -> Option<(usize, Trial)> {
        let untried = |fix: &Fix| !tried.iter().any(|(lever, how)| *lever == fix.lever && *how == fix.how);
        let in_doubt = |fix: &Fix| fix.fits.is_none() && matches!(fix.apply, Apply::Environment(..));
        let mut left: Vec<(usize, &Fix)> = (self.explanation.fixes.iter().enumerate())
            .filter(|(_, fix)| fix.fits != Some(false) && untried(fix))
            .collect();
        left.sort_by_key(|(_, fix)| in_doubt(fix));
        left.into_iter().find_map(|(index, fix)| trial(request, fix).map(|trial| (index, trial)))
    }

    /// Continues from a run in which a setting cured fragmentation but was not enough: the cause of that
    /// run's failure becomes the diagnosis. Remedies that were tried stay in the list, marked as refuted.
    fn continue_from(&mut self, later: Explanation) {
        let earlier =
            std::mem::replace(&mut self.explanation, later).fixes.into_iter().zip(self.proofs.drain(..));
        let refuted: Vec<(Fix, Option<FixProof>)> =
            earlier.filter(|(_, proof)| proof.is_some_and(|proof| proof.verdict == Verdict::Oom)).collect();
        let fixes = &mut self.explanation.fixes;
        // These remedies build on the trial's setting, which the script itself does not have.
        fixes.retain(|fix| !matches!(fix.apply, Apply::Environment(..)));
        fixes.truncate(MAX_REMEDIES.saturating_sub(refuted.len()));
        self.proofs = vec![None; fixes.len()];
        for (fix, proof) in refuted {
            fixes.push(fix);
            self.proofs.push(proof);
        }
    }

    /// Remedies for the report: those proven by a run come first, refuted ones last among the likely ones. A
    /// larger GPU is always enough but explains nothing, so it comes after possible remedies. If other
    /// processes are the cause, a remedy against them comes before changes to the training.
    pub(crate) fn wire(&self) -> Vec<ExplainFix> {
        let mut fixes: Vec<ExplainFix> = (self.explanation.fixes.iter().zip(&self.proofs))
            .map(|(fix, proof)| ExplainFix { proof: *proof, ..ExplainFix::from(fix.clone()) })
            .collect();
        let only = fixes.iter().all(|fix| fix.card.is_some() || fix.enough == Some(false));
        let by_others = matches!(self.explanation.cause, Cause::OtherProcesses | Cause::Outside);
        let against_others =
            |fix: &ExplainFix| matches!(fix.lever, Lever::EndOtherProcess | Lever::CpuOnlyWorkers);
        let confirmed = |fix: &ExplainFix| fix.proof.is_some_and(|proof| proof.verdict == Verdict::Fits);
        fixes.sort_by_key(|fix| match (fix.enough, confirmed(fix)) {
            (Some(_), _) if fix.card.is_some() && !only => 3,
            (Some(true), true) => 0,
            (Some(true), false) if by_others && against_others(fix) => 0,
            (None, _) if fix.environment.is_some() => 2,
            (None, _) if fix.proof.is_some_and(|proof| proof.verdict == Verdict::Error) => 2,
            (Some(true) | None, _) => 1,
            (Some(false), _) => 4,
        });
        fixes
    }
}

/// If memory ran out, tries remedies until one succeeds.
pub(crate) fn prove(
    request: &Request,
    outcome: &mut Outcome,
    runner: &Runner<'_>,
    policy: ValuePolicy,
) -> Result<(), RunError> {
    let (verdict, _) = verdict::judge_run(request, &outcome.facts, outcome.tested);
    if verdict != Verdict::Oom
        || !request.prove
        || request.card.is_local()
        || outcome.facts.ended == Ended::Interrupted
    {
        return Ok(());
    }
    if !outcome.facts.setup.stacks {
        runner.console.remark("out of memory; running again to see which lines allocate what");
        let changes = Changes { stacks: true, ..Changes::default() };
        let request = Request { output: None, ..request.clone() };
        let again = runner.run_once(&request, policy, &changes)?;
        if again.facts.ended == Ended::Interrupted {
            return Ok(());
        }
        let again = again.explanation.map(Diagnosis::new);
        outcome.diagnosis = prefer_stacks(outcome.diagnosis.take(), again);
    }
    let Some(diagnosis) = &mut outcome.diagnosis else { return Ok(()) };
    let mut tried = Vec::new();
    while tried.len() < MAX_TRIALS
        && let Some((index, mut trial)) = diagnosis.next(request, &tried)
    {
        let fix = &mut diagnosis.explanation.fixes[index];
        tried.push((fix.lever, fix.how.clone()));
        trial.request = verdict::repeat_request(&trial.request, &outcome.facts);
        runner.console.remark(&format!("out of memory; running again with {}", trial.with));
        let Ran { facts, explanation } = runner.run_once(&trial.request, policy, &trial.changes)?;
        let interrupted = facts.ended == Ended::Interrupted;
        let mut tried_outcome = Outcome::new(facts);
        if !interrupted {
            runner.test_values(&trial.request, policy, &trial.changes, false, &mut tried_outcome)?;
        }
        let facts = &tried_outcome.facts;
        let verdict = verdict::judge_run(&trial.request, facts, tried_outcome.tested).0;
        if interrupted && matches!(verdict, Verdict::Unknown | Verdict::Error) {
            break;
        }
        if facts.ended == Ended::TimedOut && verdict == Verdict::Error {
            // It was stopped before it had shown anything, and did not fail.
            runner.console.remark(&format!("the run with {} did not end in time", trial.with));
            continue;
        }
        if let (Verdict::Unknown | Verdict::Error, Apply::Edit(_), Some(exception)) =
            (verdict, &fix.apply, &facts.exception)
            && facts.oom.is_none()
        {
            // No diff is shown with which the script fails.
            fix.apply = Apply::ByHand(Some(failure(exception)));
        }
        if let (Verdict::Fits, Apply::Card(_)) = (verdict, &fix.apply) {
            // The run shows the whole need; the failed one only that up to its end.
            let used = size(facts.peak().device_upper);
            fix.how = format!("a GPU with {used} or more (`memfit gpus` lists all)");
        }
        let setting = matches!(fix.apply, Apply::Environment(..));
        diagnosis.record(index, FixProof { verdict, steps: facts.steps(), peak: facts.peak() });
        match verdict {
            Verdict::Fits => break,
            Verdict::Oom => {}
            Verdict::Unknown | Verdict::Error => continue,
        }
        if setting {
            doubt_settings(&mut diagnosis.explanation.fixes);
        }
        let named = |later: &Explanation| !matches!(later.cause, Cause::None | Cause::Fragmented);
        if setting
            && diagnosis.explanation.cause == Cause::Fragmented
            && let Some(later) = explanation.filter(named)
        {
            diagnosis.continue_from(later);
        }
    }
    Ok(())
}

/// Reason why the diff of a remedy is not shown after a run with it.
fn failure(exception: &Exception) -> String {
    let message = exception.message.lines().next().unwrap_or_default();
    let name = exception.r#type.trim_start_matches("builtins.");
    format!("a run with it ended with {name}: {message}")
}

/// Withdraws what a replay said of other allocator settings. A replay ends where the script failed; a run
/// has shown that more memory is needed after that.
fn doubt_settings(fixes: &mut [Fix]) {
    let settings = fixes.iter_mut().filter(|fix| matches!(fix.apply, Apply::Environment(..)));
    for fix in settings.filter(|fix| fix.proof != Proof::Run && fix.fits == Some(true)) {
        fix.fits = None;
    }
}

/// Chooses between the diagnoses of two runs. The second run recorded stacks, so it is more precise, unless
/// it did not reproduce the failure: processes that fill a device together need not fail twice.
fn prefer_stacks(first: Option<Diagnosis>, again: Option<Diagnosis>) -> Option<Diagnosis> {
    let known = first.as_ref().is_some_and(Diagnosis::names_cause);
    again.filter(|again| again.names_cause() || !known).or(first)
}

/// A run with a remedy.
struct Trial {
    request: Request,
    changes: Changes,
    /// Description of the change, for a sentence.
    with: String,
}

/// Builds the trial of a remedy; `None` if only someone who knows the program can apply it.
fn trial(request: &Request, fix: &Fix) -> Option<Trial> {
    let mut trial = Trial {
        request: Request { output: None, keep: false, ..request.clone() },
        changes: Changes::default(),
        with: String::new(),
    };
    match &fix.apply {
        Apply::ByHand(_) => return None,
        Apply::Environment(name, value) => {
            // The newer variable name takes precedence, and the older one must not contradict it.
            let value = (!value.is_empty()).then(|| OsString::from(value));
            trial.with = match &value {
                Some(value) => format!("{name}={}", value.display()),
                None => format!("{name} unset"),
            };
            let others = VARIABLES.iter().filter(|other| *other != name).map(|other| (*other, None));
            trial.changes.environment = others.chain([(*name, value)]).collect();
            // If the remedy is not enough, this run's stacks identify the next cause.
            trial.changes.stacks = true;
        }
        Apply::Edit(change) => {
            trial.with = format!("{} (a change of `{}`)", fix.lever, change.file);
            trial.changes.files.insert(change.file.clone(), change.after.clone());
            if fix.lever == Lever::DropSetting {
                // The other allocator settings of the script may have been chosen to go with the dropped one.
                trial.changes.environment = VARIABLES.map(|name| (name, None)).into();
            }
        }
        Apply::Card(bytes) => {
            let Card::Virtual(device, count) = &request.card else { return None };
            let device = device.as_ref().clone().with_memory(Bytes::new(*bytes));
            trial.with = format!("a GPU with {}", device.memory);
            trial.request.card = Card::Virtual(Box::new(device), *count);
        }
    }
    Some(trial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfit_report::wire::Peak;

    fn fix(lever: Lever, apply: Apply) -> Fix {
        let how = lever.to_string();
        Fix { lever, saves: 1 << 30, how, proof: Proof::Modelled, fits: Some(true), apply }
    }

    fn setting(value: &str) -> Apply {
        Apply::Environment("PYTORCH_ALLOC_CONF", value.to_owned())
    }

    fn explained(cause: Cause, fixes: Vec<Fix>) -> Explanation {
        Explanation { cause, fixes, ..Explanation::without_events(0) }
    }

    #[test]
    fn a_setting_that_was_not_enough_gives_way_to_what_it_ran_out_for() {
        let pieces = vec![
            fix(Lever::ExpandableSegments, setting("expandable_segments:True")),
            fix(Lever::MaxSplitSize, setting("max_split_size_mb:64")),
        ];
        let mut diagnosis = Diagnosis::new(explained(Cause::Fragmented, pieces));
        diagnosis.explanation.fixes[0].fits = Some(false);
        let refuted = FixProof { verdict: Verdict::Oom, steps: 1, peak: Peak::default() };
        diagnosis.proofs[0] = Some(refuted);
        let mut later = vec![fix(Lever::MaxSplitSize, setting("max_split_size_mb:64"))];
        later.resize(MAX_REMEDIES + 3, fix(Lever::MicroBatch, Apply::ByHand(None)));
        diagnosis.continue_from(explained(Cause::TooBig, later));

        assert_eq!(diagnosis.explanation.cause, Cause::TooBig);
        let fixes = diagnosis.wire();
        assert_eq!(fixes.len(), MAX_REMEDIES);
        assert!(
            fixes[..MAX_REMEDIES - 1].iter().all(|fix| fix.lever == Lever::MicroBatch && fix.proof.is_none())
        );
        let last = &fixes[MAX_REMEDIES - 1];
        assert_eq!(
            (last.lever, last.enough, last.proof),
            (Lever::ExpandableSegments, Some(false), Some(refuted))
        );
    }

    #[test]
    fn a_run_with_a_remedy_replaces_what_was_said_of_it() {
        let ended = |verdict| {
            let fixes = vec![
                fix(Lever::Checkpointing, Apply::ByHand(None)),
                fix(Lever::ActivationOffload, Apply::ByHand(None)),
            ];
            let mut diagnosis = Diagnosis::new(explained(Cause::TooBig, fixes));
            diagnosis.record(1, FixProof { verdict, steps: 1, peak: Peak::default() });
            let fixes = diagnosis.wire();
            let place = fixes.iter().position(|fix| fix.lever == Lever::ActivationOffload).unwrap();
            assert_eq!(fixes[place].proof.map(|proof| proof.verdict), Some(verdict));
            (place, fixes[place].evidence, fixes[place].enough, diagnosis.trials().len())
        };
        assert_eq!(ended(Verdict::Fits), (0, Proof::Run, Some(true), 1));
        assert_eq!(ended(Verdict::Oom), (1, Proof::Run, Some(false), 1));
        assert_eq!(ended(Verdict::Unknown), (1, Proof::Modelled, None, 0));
        assert_eq!(ended(Verdict::Error), (1, Proof::Modelled, Some(true), 0));
    }

    #[test]
    fn a_setting_that_was_not_enough_casts_doubt_on_the_others() {
        let mut fixes = vec![
            fix(Lever::ExpandableSegments, setting("expandable_segments:True")),
            fix(Lever::MaxSplitSize, setting("max_split_size_mb:64")),
            fix(Lever::ByParts, Apply::ByHand(None)),
        ];
        (fixes[0].fits, fixes[0].proof) = (Some(false), Proof::Run);
        doubt_settings(&mut fixes);
        let order: Vec<_> = Diagnosis::new(explained(Cause::PrivatePools, fixes))
            .wire()
            .iter()
            .map(|fix| (fix.lever, fix.enough))
            .collect();
        let expected = [
            (Lever::ByParts, Some(true)),
            (Lever::MaxSplitSize, None),
            (Lever::ExpandableSegments, Some(false)),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn other_processes_are_ended_before_the_training_is_changed() {
        let first = |cause| {
            let fixes = vec![
                fix(Lever::EndOtherProcess, Apply::ByHand(None)),
                fix(Lever::MicroBatch, Apply::ByHand(None)),
                fix(Lever::ActivationOffload, Apply::ByHand(None)),
            ];
            let mut diagnosis = Diagnosis::new(explained(cause, fixes));
            diagnosis.proofs[2] = Some(FixProof { verdict: Verdict::Fits, steps: 1, peak: Peak::default() });
            diagnosis.wire().iter().map(|fix| fix.lever).collect::<Vec<_>>()
        };
        let (ended, offload, micro) = (Lever::EndOtherProcess, Lever::ActivationOffload, Lever::MicroBatch);
        assert_eq!(first(Cause::OtherProcesses), [ended, offload, micro]);
        assert_eq!(first(Cause::TooBig), [offload, ended, micro]);
    }

    fn diagnosis(cause: Cause, run: u8) -> Diagnosis {
        Diagnosis::new(Explanation { cause, ..Explanation::without_events(run) })
    }

    /// Returns the cause of a diagnosis and the run that it comes from, identified by its device.
    fn run_and_cause(diagnosis: Option<Diagnosis>) -> Option<(u8, Cause)> {
        diagnosis.map(|diagnosis| (diagnosis.explanation.device, diagnosis.explanation.cause))
    }

    #[test]
    fn the_run_that_looks_for_lines_takes_no_cause_away() {
        let first = |cause| Some(diagnosis(cause, 1));
        let again = |cause| Some(diagnosis(cause, 2));
        for (before, after, expected) in [
            (first(Cause::Outside), again(Cause::None), Some((1, Cause::Outside))),
            (first(Cause::Outside), again(Cause::TooBig), Some((2, Cause::TooBig))),
            (first(Cause::None), again(Cause::None), Some((2, Cause::None))),
            (first(Cause::None), again(Cause::Leaking), Some((2, Cause::Leaking))),
            (first(Cause::Outside), None, Some((1, Cause::Outside))),
            (None, again(Cause::None), Some((2, Cause::None))),
            (None, None, None),
        ] {
            assert_eq!(run_and_cause(prefer_stacks(before, after)), expected);
        }
    }
}
