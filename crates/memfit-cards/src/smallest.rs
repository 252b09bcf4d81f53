//! Finds the smallest GPU on which the unmodified script fits.

use memfit_devices::Device;
use memfit_report::wire::{CardEvidence, SmallestCard, Verdict};
use memfit_run::{Rehearsal, RunError};

use crate::judge::Judge;

/// Maximum GPUs that are judged: each architecture among them costs a run.
const MAX_JUDGED: usize = 24;

/// The GPU with the least memory above `above` bytes on which a run of the script fits, and leaves this share
/// of the memory free.
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
        let fits = judged.report.verdict == Verdict::Fits && judged.report.peak.device_upper as f64 <= usable;
        if fits && (judged.evidence == CardEvidence::Run || judge.proves(rehearsal, device)?) {
            return Ok(Some(SmallestCard { name: device.name.clone(), capacity: device.memory.get() }));
        }
    }
    Ok(None)
}
