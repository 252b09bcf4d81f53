//! A plan as a patch of the script's source, with a run of the patched script.

use std::path::Path;

use memfit_patch::{Left, Patched, patch, unified_diff};
use memfit_plan::Plan;
use memfit_report::wire::{FixProof, PatchNumbers, PlanPatch, RejectedLever, Verdict};
use memfit_run::{Changes, Request, report};
use memfit_vocabulary::Lever;

use super::compared::Beside;
use super::script::Script;
use super::{Tries, failure};
use crate::{CliError, Printer};

/// A changed script with the result of its run.
struct Attempt {
    changed: Patched,
    proof: Option<FixProof>,
    /// Comparison of its gradients with the original script's.
    numbers: Option<PatchNumbers>,
    /// Reason why it failed, unless memory ran out.
    failure: Option<String>,
}

/// Applies a plan to the script's source, and runs the result on the GPU with the memory that a plan may use.
/// A patch is never returned if the script fails for a reason other than memory, or if its training differs
/// from what the plan's labels allow; a lever that the script's libraries reject is left out. `divides_alike`
/// is `true` if the plan promises that a split batch trains like the whole one.
pub(crate) fn patched(
    tries: &mut Tries<'_>,
    plan: &Plan,
    divides_alike: bool,
    script: &Path,
    printer: &Printer,
) -> Result<PlanPatch, CliError> {
    let text = std::fs::read_to_string(script).map_err(CliError::io("read", script))?;
    let file = shown(script);
    let script = Script { path: script, text: &text, divides_alike };
    let mut beside = Beside::default();
    let mut attempt = attempt(tries, plan, &script, &mut beside, printer)?;
    if let Some(why) = attempt.failure.clone() {
        if let Some(better) =
            without_one(tries, plan, &script, &mut beside, &attempt.changed.done, &why, printer)?
        {
            attempt = better;
        } else {
            let changed = &mut attempt.changed;
            changed.text.clone_from(&text);
            let why = format!("no change is shown, because the changed script {why}");
            let left = changed.done.drain(..).map(|lever| Left { lever, why: why.clone() });
            changed.left.extend(left);
        }
    }
    let Attempt { changed, proof, numbers, .. } = attempt;
    Ok(PlanPatch {
        diff: unified_diff(&format!("a/{file}"), &format!("b/{file}"), &text, &changed.text),
        file,
        written: None,
        levers: changed.done.iter().map(|lever| lever.name().to_owned()).collect(),
        left: rejected(changed.left),
        remarks: changed.remarks,
        proof,
        numbers,
    })
}

/// Applies the plan to the script, and runs it.
fn attempt(
    tries: &mut Tries<'_>,
    plan: &Plan,
    script: &Script<'_>,
    beside: &mut Beside,
    printer: &Printer,
) -> Result<Attempt, CliError> {
    let changed = patch(script.text, plan);
    if changed.text == script.text {
        return Ok(Attempt { changed, proof: None, numbers: None, failure: None });
    }
    printer.remark("running the changed script");
    let (request, changes) = (tries.request_for_change(), script.changes(&changed.text)?);
    let (proof, failure) = run_changed(tries, &request, &changes)?;
    if failure.is_some() {
        return Ok(Attempt { changed, proof: Some(proof), numbers: None, failure });
    }
    let numbers = beside.compare(tries, plan, script, &changed, proof.peak.allocated, printer)?;
    let promised = script.divides_alike || !changed.done.contains(&Lever::MicroBatch);
    let failure = (promised && numbers.equal == Some(false))
        .then(|| format!("trains differently from the original script: {}", numbers.difference_told()));
    Ok(Attempt { changed, proof: Some(proof), numbers: Some(numbers), failure })
}

/// The patch without the one lever that makes it fail: the first one without which the script fits, or else
/// runs.
fn without_one(
    tries: &mut Tries<'_>,
    plan: &Plan,
    script: &Script<'_>,
    beside: &mut Beside,
    done: &[Lever],
    why: &str,
    printer: &Printer,
) -> Result<Option<Attempt>, CliError> {
    let mut runs = None;
    // In the order of the search, which starts with the mildest levers.
    let levers = plan.levers.iter().map(|setting| setting.lever).chain([Lever::MicroBatch]);
    for lever in levers.filter(|lever| done.contains(lever)) {
        let mut fewer = plan.clone();
        fewer.levers.retain(|setting| setting.lever != lever);
        if lever == Lever::MicroBatch {
            fewer.micro_batch = None;
        }
        let mut without = attempt(tries, &fewer, script, beside, printer)?;
        let Some(proof) = without.proof.as_ref().filter(|_| without.failure.is_none()) else { continue };
        let why = format!("with it, the changed script {why}");
        without.changed.left.push(Left { lever, why });
        if proof.verdict == Verdict::Fits {
            return Ok(Some(without));
        }
        runs.get_or_insert(without);
    }
    Ok(runs)
}

/// Runs a changed script. Returns the reason if it failed, unless memory ran out.
pub(super) fn run_changed(
    tries: &mut Tries<'_>,
    request: &Request,
    changes: &Changes,
) -> Result<(FixProof, Option<String>), CliError> {
    let mut outcome = tries.rehearsal.run_with(request, changes)?;
    tries.rehearsal.test_values(request, changes, true, &mut outcome)?;
    let report = report(request, &outcome);
    let failure = (report.verdict == Verdict::Error)
        .then(|| failure::failure_reason(&outcome.facts, report.problem.as_ref()))
        .map(|told| {
            told.map_or_else(|| "ends before it has trained".to_owned(), |told| format!("fails: {told}"))
        });
    Ok((FixProof { verdict: report.verdict, steps: report.steps, peak: report.peak }, failure))
}

/// Levers that a patch leaves out, in the form of the report.
pub(super) fn rejected(left: Vec<Left>) -> Vec<RejectedLever> {
    left.into_iter()
        .map(|left| RejectedLever { lever: left.lever.name().to_owned(), why: left.why })
        .collect()
}

/// The script's path relative to the current directory, as a patch names it.
pub(super) fn shown(script: &Path) -> String {
    let here = std::env::current_dir().ok();
    let inside = here.as_deref().and_then(|here| script.strip_prefix(here).ok()).unwrap_or(script);
    let path = inside.strip_prefix("./").unwrap_or(inside);
    path.display().to_string().trim_start_matches('/').to_owned()
}
