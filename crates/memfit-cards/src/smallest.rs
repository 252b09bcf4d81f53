//! Finds the smallest GPU on which the unmodified script fits.

use memfit_devices::Device;
use memfit_report::wire::{CardEvidence, ProblemKind, SmallestCard, Verdict};
use memfit_run::{Rehearsal, RunError};

use crate::judge::Judge;

/// Maximum GPUs that are judged: each architecture among them costs a run.
const MAX_JUDGED: usize = 24;

/// The GPU with the least memory above `above` bytes on which a run of the script fits, and leaves this share
/// of the memory free. `None` if a smaller GPU gave no answer: the script may fit there.
pub fn smallest_fitting(
    judge: &mut Judge,
    rehearsal: &Rehearsal<'_>,
    devices: &[Device],
    above: u64,
    margin: f64,
) -> Result<Option<SmallestCard>, RunError> {
    let mut larger: Vec<&Device> = devices.iter().filter(|device| device.memory.get() > above).collect();
    larger.sort_by_key(|device| device.memory);
    for device in larger.into_iter().take(MAX_JUDGED) {
        let judged = judge.judge(rehearsal, device)?;
        let usable = device.memory.get() as f64 * (1.0 - margin);
        let report = &judged.report;
        let fits = report.verdict == Verdict::Fits && report.peak.device_upper as f64 <= usable;
        if fits && (judged.evidence == CardEvidence::Run || judge.proves(rehearsal, device)?) {
            return Ok(Some(SmallestCard { name: device.name.clone(), capacity: device.memory.get() }));
        }
        if is_open(report.verdict, report.problem.as_ref().map(|problem| problem.kind)) {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Returns `true` if a verdict leaves open whether the script fits. PyTorch does not run on a GPU for which
/// it has no kernels, so that is an answer.
fn is_open(verdict: Verdict, problem: Option<ProblemKind>) -> bool {
    match verdict {
        Verdict::Fits | Verdict::Oom => false,
        Verdict::Unknown => true,
        Verdict::Error => problem != Some(ProblemKind::NoKernelsForCard),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_fails_or_has_no_verdict_leaves_a_gpu_open() {
        for (verdict, problem, open) in [
            (Verdict::Oom, None, false),
            (Verdict::Fits, None, false),
            (Verdict::Error, Some(ProblemKind::NoKernelsForCard), false),
            (Verdict::Error, Some(ProblemKind::Signal), true),
            (Verdict::Error, None, true),
            (Verdict::Unknown, None, true),
        ] {
            assert_eq!(is_open(verdict, problem), open, "{verdict:?} {problem:?}");
        }
    }
}
