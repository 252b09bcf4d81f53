//! Rows of the table: verdict, speed, price, and the command that tries the GPU.

use memfit_devices::ComputeCapability;
use memfit_report::wire::{CardPrice, CardRow, CardVerdict, PricedWork, ProblemKind, RunReport, Verdict};

use crate::judge::Judged;
use crate::prices::Prices;
use crate::workload::Workload;

const MS_PER_HOUR: f64 = 3_600_000.0;

/// The row of a judged GPU; `count` of these GPUs run the command's processes, with these options of
/// `memfit run`.
pub fn row(
    judged: &Judged,
    count: u32,
    workload: &Workload,
    options: &[String],
    command: &[String],
) -> CardRow {
    let Judged { device, report, needed, evidence, reduced_batch } = judged;
    let verdict = match report.verdict {
        Verdict::Fits => CardVerdict::FitsAsIs,
        Verdict::Oom => CardVerdict::DoesNotFit,
        Verdict::Unknown | Verdict::Error => CardVerdict::Unknown,
    };
    let failed = report.verdict == Verdict::Error;
    let peak = match verdict {
        CardVerdict::DoesNotFit => *needed,
        _ => Some(report.peak),
    }
    .filter(|_| !failed);
    // The batch in relation to the command's own: a model may get several views of a sample.
    let reduced = reduced_batch
        .and_then(|(before, after)| (workload.batch? * after).checked_div(before).filter(|batch| *batch > 0));
    let capacity = device.memory.get();
    let time = report.time.clone();
    let timed = |milliseconds: Option<f64>| milliseconds.filter(|_| verdict == CardVerdict::FitsAsIs);
    let own = ["memfit", "run", "--gpu", &device.id].map(str::to_owned);
    let command: Vec<String> =
        own.iter().chain(options).chain([&"--".to_owned()]).chain(command).cloned().collect();
    CardRow {
        gpu: device.id.clone(),
        name: device.name.clone(),
        architecture: device.architecture.clone(),
        capacity,
        count,
        batch: reduced.or(workload.batch),
        verdict,
        headroom: peak.map(|peak| capacity as i64 - peak.device_upper as i64),
        peak,
        chosen: None,
        step_ms_estimate: timed(time.step_ms_estimate),
        step_ms_low: timed(time.step_ms_low),
        step_ms_high: timed(time.step_ms_high),
        samples_per_s: None,
        price: None,
        pareto: false,
        evidence: *evidence,
        command: command_for(&command, &device.id, count),
        note: note(report, device.compute_capability).or_else(|| reduced.map(went_on)),
    }
}

/// Reason why a report has no verdict, or the assumptions of its verdict.
fn note(report: &RunReport, capability: ComputeCapability) -> Option<String> {
    let problem = report.problem.as_ref()?;
    if problem.kind == ProblemKind::NoKernelsForCard {
        let torch =
            report.torch.as_deref().map_or("this PyTorch".to_owned(), |torch| format!("PyTorch {torch}"));
        return Some(format!(
            "{torch}, or an extension of it, has no kernels for compute capability {capability}: a real GPU would fail in the same way"
        ));
    }
    Some(problem.message.trim_end_matches('.').to_owned())
}

fn went_on(batch: u64) -> String {
    format!("memory ran out; the script caught the error and went on with a batch of {batch}")
}

/// The `memfit run` command for `count` of these GPUs.
pub(crate) fn command_for(command: &[String], gpu: &str, count: u32) -> Vec<String> {
    let mut command = command.to_vec();
    if let Some(place) = command.iter().position(|word| word == "--gpu")
        && let Some(name) = command.get_mut(place + 1)
    {
        *name = if count > 1 { format!("{gpu}:{count}") } else { gpu.to_owned() };
    }
    command
}

/// Adds samples per second to each row that fits and, if there are prices, the cost of the work.
pub fn price_rows(
    rows: &mut [CardRow],
    samples_per_step: impl Fn(&CardRow) -> Option<u64>,
    prices: Option<(&Prices, &PricedWork)>,
) {
    for row in rows {
        let per_step = samples_per_step(row).map(|samples| samples as f64);
        row.samples_per_s = per_step.zip(row.step_ms_estimate).map(|(samples, ms)| round(samples / ms * 1e3));
        row.price = prices.zip(per_step).and_then(|((prices, work), per_step)| {
            let offer = prices.cheapest(&row.gpu, row.count)?;
            let steps = work.samples as f64 / per_step;
            let hours = |ms: f64| steps * ms / MS_PER_HOUR;
            let estimate = hours(row.step_ms_estimate?);
            Some(CardPrice {
                amount: round(estimate * offer.per_hour),
                low: round(hours(row.step_ms_low?) * offer.per_hour),
                high: round(hours(row.step_ms_high?) * offer.per_hour),
                per_hour: offer.per_hour,
                hours: round(estimate),
                vendor: offer.vendor.clone(),
                instance: offer.instance.clone(),
                cards: offer.cards,
            })
        });
    }
}

/// Rounds to four significant digits, since no estimate here is more precise.
fn round(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return number;
    }
    let scale = 10_f64.powi(3 - number.abs().log10().floor() as i32);
    (number * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_keeps_four_digits() {
        for (number, expected) in [(1234.5, 1235.0), (0.012_345_6, 0.012_35), (9.999_96, 10.0), (0.0, 0.0)] {
            assert!((round(number) - expected).abs() < 1e-12, "{number}");
        }
    }

    #[test]
    fn the_command_names_the_cards() {
        let command: Vec<String> =
            ["memfit", "run", "--gpu", "t4", "--", "python"].map(str::to_owned).to_vec();
        assert_eq!(command_for(&command, "t4", 4)[3], "t4:4");
        assert_eq!(command_for(&command, "l4", 1)[3], "l4");
    }
}
