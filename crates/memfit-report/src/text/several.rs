//! The GPUs of a process that sees several.

use super::size;
use crate::wire::{GpuPeak, RunReport};

fn used(report: &RunReport) -> impl Iterator<Item = &GpuPeak> {
    report.gpus.iter().filter(|gpu| gpu.was_used())
}

/// Returns `true` if a single process used one of several GPUs.
pub(super) fn is_one_used(report: &RunReport) -> bool {
    report.ranks.len() == 1 && used(report).count() == 1
}

/// The fullest GPU, after a size that was used, if there are several.
pub(super) fn on_fullest(report: &RunReport) -> String {
    let fullest = used(report).max_by_key(|gpu| gpu.device_upper);
    match fullest.filter(|_| report.ranks.len() == 1 && used(report).count() > 1) {
        Some(fullest) => format!(" on GPU {}", fullest.gpu),
        None => String::new(),
    }
}

/// The peak of each GPU at its upper bound, if a single process sees several.
pub(super) fn peaks(report: &RunReport) -> Option<Vec<String>> {
    let several = report.ranks.len() == 1 && report.gpus.len() > 1;
    let peak = |gpu: &GpuPeak| {
        let used = if gpu.was_used() { size(gpu.device_upper) } else { "not used".to_owned() };
        format!("{}: {used}", gpu.gpu)
    };
    several.then(|| report.gpus.iter().map(peak).collect())
}
