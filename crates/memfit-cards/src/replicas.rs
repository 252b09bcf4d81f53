//! N replicas of a single-process script: the memory and time that `DistributedDataParallel` would add.

use memfit_devices::Device;
use memfit_kernels::cost::Speeds;
use memfit_kernels::cost::collective::{Collective, Group, work};
use memfit_report::wire::{CardEvidence, CardRow, CardVerdict, Peak};

use crate::rows::command_for;
use crate::workload::Workload;

/// The share of a step that is assumed to overlap with communication: the backward pass.
const OVERLAP: f64 = 0.5;

/// Size of one DDP bucket (`bucket_cap_mb`); buckets are reduced one after the other.
const BUCKET: u64 = 25 << 20;

/// Milliseconds that the all-reduces of all gradients take.
fn exchange(gradients: u64, count: u32, speeds: &Speeds) -> f64 {
    let group = Group { ranks: count, per_machine: None };
    let of = |bytes: u64| work(Collective::AllReduce, bytes, group, speeds).length as f64 / 1e6;
    let (whole, rest) = (gradients / BUCKET, gradients % BUCKET);
    whole as f64 * of(BUCKET) + if rest > 0 { of(rest) } else { 0.0 }
}

/// Derives a row for `count` GPUs from the row for one GPU of the same kind. DDP holds a second copy of the
/// gradients in buckets, and a communicator has buffers; the all-reduces overlap with the backward pass.
///
/// No run was made: the verdict is `fits` only if it fits with all of that at its upper bound, and
/// `does-not-fit` only if one process alone does not fit.
#[must_use]
pub fn replicated(row: &CardRow, device: &Device, workload: &Workload, count: u32, cuda: u32) -> CardRow {
    let communicator = device.overhead(cuda).per_communicator;
    let (typical, upper) = (communicator.typical.get(), communicator.high.get());
    let gradients = workload.gradients;
    let peak = row.peak.map(|peak| Peak {
        allocated: peak.allocated + gradients,
        reserved: peak.reserved + gradients,
        device: peak.device + gradients + typical,
        device_upper: peak.device_upper + gradients + upper,
    });
    let headroom = peak.map(|peak| row.capacity as i64 - peak.device_upper as i64);
    let fits = headroom.is_some_and(|headroom| headroom >= 0) && gradients > 0;
    let verdict = match row.verdict {
        CardVerdict::FitsAsIs if fits => CardVerdict::FitsAsIs,
        CardVerdict::FitsAsIs | CardVerdict::FitsWithPlan | CardVerdict::Unknown => CardVerdict::Unknown,
        CardVerdict::DoesNotFit => CardVerdict::DoesNotFit,
    };
    let exchange_ms = exchange(gradients, count, &Speeds::from_device(device));
    let exposed = |step: f64| (exchange_ms - step * OVERLAP).max(0.0);
    let step = row.step_ms_estimate.filter(|_| verdict.fits());
    CardRow {
        count,
        verdict,
        peak,
        headroom,
        step_ms_estimate: step.map(|step| step + exposed(step)),
        step_ms_low: row.step_ms_low.filter(|_| verdict.fits()),
        step_ms_high: row.step_ms_high.filter(|_| verdict.fits()).map(|step| step + exchange_ms),
        evidence: CardEvidence::Replayed,
        command: command_for(&row.command, &row.gpu, count),
        note: Some(match verdict {
            CardVerdict::Unknown if row.verdict == CardVerdict::FitsAsIs => {
                "one process fits; with DistributedDataParallel's buckets and NCCL at their upper bound it may not".to_owned()
            }
            CardVerdict::Unknown => row.note.clone().unwrap_or_default(),
            _ => "since the script is a single process, one DistributedDataParallel replica per GPU is assumed, each with its own batch. DDP's buckets, NCCL's buffers and the time of the all-reduces are modelled".to_owned(),
        }),
        ..row.clone()
    }
}

#[cfg(test)]
mod tests {
    use memfit_devices::Catalogue;

    use super::*;

    fn speeds(card: &str) -> Speeds {
        Speeds::from_device(Catalogue::builtin().unwrap().find(card).unwrap())
    }

    #[test]
    fn an_exchange_is_never_faster_than_the_link_and_grows_with_buckets() {
        for card in ["rtx-4090", "a100-80gb", "t4"] {
            let speeds = speeds(card);
            for count in [2, 4, 8] {
                let gradients = 40 * BUCKET;
                let ring = 2.0 * f64::from(count - 1) / f64::from(count) * gradients as f64;
                let at_least = ring / speeds.peers / 1e6;
                let whole = exchange(gradients, count, &speeds);
                assert!(whole >= at_least && whole < 3.0 * at_least, "{card}, {count}: {whole} {at_least}");
                assert!(exchange(gradients + 1, count, &speeds) > whole);
            }
        }
        assert!(exchange(0, 8, &speeds("t4")).abs() < f64::EPSILON);
    }
}
