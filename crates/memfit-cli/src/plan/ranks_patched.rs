//! A plan for several GPUs as a patch of the script, run as each of the ranks that differ.

use std::path::Path;

use memfit_patch::{spread, unified_diff};
use memfit_plan::{Expected, Plan};
use memfit_report::text::size;
use memfit_report::wire::{FixProof, PatchNumbers, PlanPatch, RejectedLever, Verdict};
use memfit_run::{LoneRank, Request};
use memfit_vocabulary::Lever;

use super::Tries;
use super::patched::{rejected, run_changed, shown};
use super::script::Script;
use crate::{CliError, Printer};

/// Maximum relative difference between a rank's peak and the plan's.
const MAX_APART: f64 = 0.02;

/// Applies a plan to the script's source, and runs the result with torchrun's environment variables as each
/// of the ranks that the plan was run as. A patch that fails, does not fit or has another peak than the plan
/// is not returned. `blocks` are the modules that are gathered one by one.
pub(crate) fn patched_for_ranks(
    tries: &mut Tries<'_>,
    plan: &Plan,
    ranks: &[(u32, Expected)],
    blocks: &[String],
    script: &Path,
    printer: &Printer,
) -> Result<PlanPatch, CliError> {
    let text = std::fs::read_to_string(script).map_err(CliError::io("read", script))?;
    let file = shown(script);
    let changed = spread(&text, plan, blocks);
    let mut written = PlanPatch {
        file: file.clone(),
        left: rejected(changed.left),
        remarks: changed.remarks,
        ..PlanPatch::default()
    };
    if changed.text == text {
        return Ok(written);
    }
    let script = Script { path: script, text: &text, divides_alike: false };
    let changes = script.changes(&changed.text)?;
    for (rank, expected) in ranks {
        printer.remark(&format!("running the changed script as rank {rank}"));
        let request = as_rank(tries, plan, *rank)?;
        let (proof, failure) = run_changed(tries, &request, &changes)?;
        let why = failure.or_else(|| refuted(proof.verdict, proof.peak.allocated, expected.allocated));
        let fullest = |known: &FixProof| known.peak.device_upper < proof.peak.device_upper;
        if why.is_some() || written.proof.as_ref().is_none_or(fullest) {
            written.proof = Some(proof);
        }
        if let Some(why) = why {
            let why = format!("no change is shown, because the changed script, as rank {rank}, {why}");
            written.left.push(RejectedLever { lever: Lever::Shard.name().to_owned(), why });
            return Ok(written);
        }
    }
    written.diff = unified_diff(&format!("a/{file}"), &format!("b/{file}"), &text, &changed.text);
    written.levers = changed.done.iter().map(|lever| lever.name().to_owned()).collect();
    written.numbers = Some(PatchNumbers {
        why: Some("the changed script trains in several processes".to_owned()),
        ..PatchNumbers::default()
    });
    Ok(written)
}

/// The request for a run of the changed script as one rank.
fn as_rank(tries: &Tries<'_>, plan: &Plan, rank: u32) -> Result<Request, CliError> {
    let world = plan.parallel.unwrap_or_default().world();
    let request = tries.request_for_change();
    let lone_rank = LoneRank::new(Some(rank), Some(world), &request.card)?;
    Ok(Request { lone_rank, ..request })
}

/// Reason why a run of the changed script contradicts the plan.
fn refuted(verdict: Verdict, found: u64, planned: u64) -> Option<String> {
    if verdict != Verdict::Fits {
        return Some("was not confirmed to fit".to_owned());
    }
    let apart = found.abs_diff(planned) as f64 / planned.max(1) as f64;
    (apart > MAX_APART).then(|| {
        format!(
            "takes {} at its peak where the plan, applied by memfit, takes {}",
            size(found),
            size(planned)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_takes_other_memory_than_the_plan_is_refused() {
        const GIB: u64 = 1 << 30;
        let why = |verdict, found, planned| refuted(verdict, found, planned).unwrap_or_default();
        assert_eq!(why(Verdict::Fits, 100 * GIB, 100 * GIB), "");
        assert_eq!(why(Verdict::Fits, 101 * GIB, 100 * GIB), "");
        assert!(why(Verdict::Fits, 97 * GIB, 100 * GIB).contains("97.00 GiB"), "less is another script, too");
        assert!(
            why(Verdict::Fits, 4 * GIB, 2 * GIB)
                .contains("where the plan, applied by memfit, takes 2.00 GiB")
        );
        assert_eq!(why(Verdict::Oom, GIB, GIB), "was not confirmed to fit");
        assert_eq!(why(Verdict::Unknown, GIB, GIB), "was not confirmed to fit");
    }
}
