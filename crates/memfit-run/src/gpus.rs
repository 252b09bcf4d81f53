//! Remark on a process that sees several GPUs and uses them unevenly.

use memfit_report::remarks::Note;
use memfit_report::text::size;
use memfit_report::wire::GpuPeak;
use memfit_vocabulary::Remark;

use crate::facts::Facts;
use crate::{Card, Request};

/// Minimum difference between the fullest GPU and the mean, as a share of the fullest, that is remarked on.
const MIN_UNEVEN_SHARE: f64 = 0.1;

/// The peak of each GPU; without those that are for other ranks, which do not run.
pub(crate) fn peaks(request: &Request, facts: &Facts) -> Vec<GpuPeak> {
    let is_shown = |gpu: &&GpuPeak| request.lone_rank.is_none() || gpu.was_used();
    facts.gpus.iter().filter(is_shown).copied().collect()
}

/// Remark on GPUs that a single process left unused, or used unevenly.
pub(crate) fn note(request: &Request, facts: &Facts) -> Option<Note> {
    let Card::Virtual(device, count @ 2..) = &request.card else { return None };
    // The other ranks would use the other GPUs.
    if facts.ranks.len() != 1 || request.lone_rank.is_some() {
        return None;
    }
    let used: Vec<GpuPeak> = facts.gpus.iter().copied().filter(GpuPeak::was_used).collect();
    let fullest = used.iter().max_by_key(|gpu| gpu.device_upper)?;
    let all = format!("{}:{count}", device.id);
    if used.len() == 1 {
        let note = Note::new(Remark::OneGpuUsed);
        return Some(
            note.with_value("gpu", fullest.gpu.to_string())
                .with_value("count", count.to_string())
                .with_value("all", all),
        );
    }
    let is_replicated = |note: &Note| note.remark() == Some(Remark::DataParallel);
    if facts.notes.iter().chain(&facts.tally.notes).any(is_replicated) {
        return None;
    }
    let mean = used.iter().map(|gpu| gpu.device_upper).sum::<u64>() / used.len() as u64;
    let too_much = fullest.device_upper - mean;
    if (too_much as f64) < fullest.device_upper as f64 * MIN_UNEVEN_SHARE {
        return None;
    }
    let listed: Vec<String> =
        used.iter().map(|gpu| format!("{} on GPU {}", size(gpu.device_upper), gpu.gpu)).collect();
    Some(
        Note::new(Remark::UnevenGpus)
            .with_value("listed", listed.join(", "))
            .with_value("gpu", fullest.gpu.to_string())
            .with_value("move", size(too_much))
            .with_value("all", all),
    )
}
