//! Peak of each GPU, from the ledger.

use memfit_channel::ledger::LedgerView;
use memfit_report::wire::GpuPeak;

/// Peaks of all GPUs, in the order of their numbers.
pub(super) fn gpu_peaks(ledger: &LedgerView) -> Vec<GpuPeak> {
    (0_u32..)
        .zip(&ledger.cards)
        .map(|(gpu, card)| GpuPeak {
            gpu,
            device: card.peak_device,
            device_upper: card.peak_device_upper.max(card.peak_device),
        })
        .collect()
}
