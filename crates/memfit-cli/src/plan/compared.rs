//! Compares a changed script with the original numerically: both train a few steps with small batches on this
//! machine's CPU, and the gradients, updates, buffers and settings of every optimizer step are compared.

use std::time::Duration;

use memfit_channel::message::HostCompared;
use memfit_patch::{Patched, patch, with_batch};
use memfit_plan::Plan;
use memfit_report::text::size;
use memfit_report::wire::PatchNumbers;
use memfit_run::{Changes, Ended, Facts, HostPart, HostRun, Machine, Request};
use memfit_vocabulary::{Label, Lever};
use tempfile::TempDir;

use super::script::Script;
use super::{Tries, failure};
use crate::{CliError, Printer};

/// Samples in a micro-batch.
const PART: u64 = 2;
/// Samples in a loader's batch: two full micro-batches and a smaller one.
const BATCH: u64 = 5;
/// Samples in a batch that the script creates itself: only full micro-batches.
const OWN_BATCH: u64 = 4;
/// Optimizer steps of each run.
const STEPS: u64 = 4;
/// Time limit of a run.
const TIME_LIMIT: Duration = Duration::from_mins(3);
/// Maximum share of this machine's free memory that a run may use.
const MEMORY_SHARE: f64 = 0.6;

/// Runs of the original script with which changed scripts are compared; reused while the script is the same.
#[derive(Default)]
pub(super) struct Beside {
    /// The source that ran, with the folder of its gradients or the reason why there are none.
    ran: Option<(String, Result<TempDir, String>)>,
}

impl Beside {
    /// Compares a changed script with the original. `peak` is the changed script's peak on the GPU.
    pub(super) fn compare(
        &mut self,
        tries: &mut Tries<'_>,
        plan: &Plan,
        script: &Script<'_>,
        changed: &Patched,
        peak: u64,
        printer: &Printer,
    ) -> Result<PatchNumbers, CliError> {
        let pair = match Pair::small_batches(plan, script.text, changed) {
            Ok(pair) => pair,
            Err(why) => return Ok(unknown(why)),
        };
        let free = Machine::current().memory;
        if peak as f64 > MEMORY_SHARE * free as f64 {
            return Ok(unknown(format!(
                "that takes {}, which is more than {:.0} % of this machine's free memory ({})",
                size(peak),
                100.0 * MEMORY_SHARE,
                size(free)
            )));
        }
        if tries.rehearsal.stands_for().is_some() {
            return Ok(unknown("the script trains in several processes".to_owned()));
        }
        printer.remark(&format!(
            "comparing the gradients of the script and of the changed script on this machine's CPU: up to three runs, of {} minutes at most each",
            TIME_LIMIT.as_secs() / 60
        ));
        if self.ran.as_ref().is_none_or(|(text, _)| *text != pair.script) {
            let kept = of_script(tries, script, &pair.script)?;
            self.ran = Some((pair.script.clone(), kept));
        }
        let folder = match &self.ran {
            Some((_, Ok(folder))) => folder,
            Some((_, Err(why))) => return Ok(unknown(why.clone())),
            None => return Ok(unknown("the script was not run".to_owned())),
        };
        let result = match on_host(tries, script, &pair.changed, folder, HostPart::Changed)? {
            Ok(result) => result,
            Err(why) => return Ok(unknown(why)),
        };
        let apart = apart(&result);
        Ok(PatchNumbers {
            equal: Some(result.equal),
            levers: pair.levers.iter().map(|lever| lever.name().to_owned()).collect(),
            steps: result.steps,
            batch: pair.batch,
            part: pair.part,
            parameter: apart.parameter.filter(|_| apart.difference != Some(0.0)),
            difference: apart.difference,
            state: apart.state,
            printed: result.printed,
            why: None,
        })
    }
}

/// Runs the original script twice. Returns the folder of its results, or the reason why no comparison is
/// possible.
fn of_script(
    tries: &mut Tries<'_>,
    script: &Script<'_>,
    source: &str,
) -> Result<Result<TempDir, String>, CliError> {
    let folder = tempfile::tempdir().map_err(CliError::io("make a folder in", std::env::temp_dir()))?;
    if let Err(why) = on_host(tries, script, source, &folder, HostPart::First)? {
        return Ok(Err(why));
    }
    Ok(match on_host(tries, script, source, &folder, HostPart::Again)? {
        Ok(result) if result.equal => Ok(folder),
        Ok(result) => Err(format!("in two runs of the script itself, {}", apart(&result).difference_told())),
        Err(why) => Err(why),
    })
}

/// Difference between a run's training and the stored one.
fn apart(result: &HostCompared) -> PatchNumbers {
    let difference = result.difference.parse::<f64>().ok().filter(|share| share.is_finite());
    PatchNumbers {
        difference,
        parameter: result.parameter.clone(),
        state: result.state.clone(),
        ..PatchNumbers::default()
    }
}

fn unknown(why: String) -> PatchNumbers {
    PatchNumbers { why: Some(why), ..PatchNumbers::default() }
}

/// The original and the changed script, with batches small enough for a CPU.
struct Pair {
    script: String,
    changed: String,
    levers: Vec<Lever>,
    batch: u64,
    part: Option<u64>,
}

impl Pair {
    fn small_batches(plan: &Plan, text: &str, changed: &Patched) -> Result<Self, String> {
        let levers: Vec<Lever> =
            changed.done.iter().copied().filter(|lever| computes_alike(*lever)).collect();
        if levers.is_empty() {
            return Err("all changes in the patch lower the precision or compile".to_owned());
        }
        let divides = levers.contains(&Lever::MicroBatch);
        if divides && changed.by_library.contains(&Lever::MicroBatch) {
            return Err("the library that trains divides the batch itself".to_owned());
        }
        let mut small = plan.clone();
        small.levers.retain(|setting| levers.contains(&setting.lever));
        small.micro_batch = divides.then_some(PART);
        let makes_batches = divides && !plan.made_for.batch_names.is_empty();
        let (script, batch) = if makes_batches {
            let script = with_batch(text, &plan.made_for, OWN_BATCH)
                .ok_or("no line was found that sets the size of a batch")?;
            small.made_for.batch = Some(OWN_BATCH);
            (script, OWN_BATCH)
        } else {
            (text.to_owned(), BATCH)
        };
        let Patched { text: changed, done, .. } = patch(&script, &small);
        if done.len() != levers.len() {
            return Err("the change cannot be written for small batches".to_owned());
        }
        Ok(Self { script, changed, levers, batch, part: divides.then_some(PART) })
    }
}

/// `true` if a lever computes the same numbers on this machine's CPU, up to rounding.
fn computes_alike(lever: Lever) -> bool {
    // On a CPU, `torch.compile` uses another compiler backend.
    let compiles = matches!(lever, Lever::Compile | Lever::ActivationBudget);
    !compiles && matches!(lever.label(), Label::Exact | Label::Rounding)
}

/// Runs this source of the script on the host; returns the reason if there is nothing to compare.
fn on_host(
    tries: &mut Tries<'_>,
    script: &Script<'_>,
    source: &str,
    folder: &TempDir,
    part: HostPart,
) -> Result<Result<HostCompared, String>, CliError> {
    let request = tries.request_for_change();
    let timeout = Some(request.timeout.map_or(TIME_LIMIT, |limit| limit.min(TIME_LIMIT)));
    let request = Request { steps: STEPS, cover_full: false, output: None, timeout, ..request };
    let host = HostRun { folder: folder.path().to_owned(), samples: BATCH, part };
    let changes = Changes { seeded: true, host: Some(host), ..script.changes(source)? };
    let facts = tries.rehearsal.run_with(&request, &changes)?.facts;
    let result = facts.on_host.clone().filter(|result| result.steps > 0 && facts.exception.is_none());
    Ok(result.ok_or_else(|| why_not(&facts, part)))
}

/// Reason why a run on the host has no results to compare.
fn why_not(facts: &Facts, part: HostPart) -> String {
    let who = if part == HostPart::Changed { "the changed script" } else { "the script" };
    if facts.ended == Ended::TimedOut {
        let minutes = TIME_LIMIT.as_secs() / 60;
        return format!("{STEPS} steps of {who} take more than {minutes} minutes on this machine's CPU");
    }
    if facts.ended == Ended::Interrupted {
        return "it was interrupted".to_owned();
    }
    match failure::failure_reason(facts, None) {
        Some(result) => format!("{who} does not run there: {result}"),
        None => format!("{who} ends there before its optimizer has stepped"),
    }
}
