//! Sample comparisons of GPUs.

use memfit_report::wire::{
    CardEvidence, CardPrice, CardRow, CardSort, CardVerdict, CardsReport, Peak, PricedWork, Problem,
    ProblemKind, schema,
};

const GIB: u64 = 1 << 30;

fn row(gpu: &str, gib: u64, verdict: CardVerdict) -> CardRow {
    let timed = |ms: f64| verdict.fits().then_some((ms / gib as f64).round());
    let needed = 9 * GIB;
    CardRow {
        gpu: gpu.to_owned(),
        name: format!("NVIDIA {gpu}"),
        architecture: "Ada Lovelace".to_owned(),
        capacity: gib * GIB,
        count: 1,
        batch: Some(32),
        verdict,
        peak: Some(Peak { allocated: 7 * GIB, reserved: 8 * GIB, device: needed, device_upper: needed }),
        headroom: Some((gib * GIB) as i64 - needed as i64),
        chosen: None,
        step_ms_estimate: timed(2_400.0),
        step_ms_low: timed(2_000.0),
        step_ms_high: timed(3_600.0),
        samples_per_s: timed(2_400.0).map(|ms| (32e3 / ms).round()),
        price: None,
        pareto: false,
        evidence: CardEvidence::Replayed,
        command: ["memfit", "run", "--gpu", gpu, "--", "python", "</script>train.py"]
            .map(str::to_owned)
            .to_vec(),
        note: None,
    }
}

fn report(rows: Vec<CardRow>, priced: Option<PricedWork>) -> CardsReport {
    CardsReport {
        schema: schema::CARDS.to_owned(),
        rows,
        sort: if priced.is_some() { CardSort::Price } else { CardSort::Memory },
        priced,
        runs: 4,
        first_run_s: Some(5.5),
        wall_s: 12.25,
        steps: 3,
        torch: Some("2.15.0+cu132".to_owned()),
        command: ["python", "</script>train.py"].map(str::to_owned).to_vec(),
        notes: Vec::new(),
        problem: None,
    }
}

/// One with prices, one of two GPUs each with a plan, one where it fits nowhere, one without an answer, and
/// one where no GPU has a verdict.
pub(crate) fn each() -> Vec<CardsReport> {
    use CardVerdict::{DoesNotFit, FitsAsIs, FitsWithPlan, Unknown};
    let price = |amount: f64| CardPrice {
        amount,
        low: (amount * 0.8).round(),
        high: (amount * 1.5).round(),
        per_hour: 1.5,
        hours: (amount / 1.5).round(),
        vendor: "A Vendor".to_owned(),
        instance: "large-1".to_owned(),
        cards: 1,
    };
    let priced = |amount, row: CardRow| CardRow { price: Some(price(amount)), pareto: true, ..row };
    let unknown = |gpu| {
        CardRow {
        peak: None,
        headroom: None,
        note: Some("PyTorch 2.15.0+cu132, or an extension of it, has no kernels for compute capability 7.0: a real GPU would fail in the same way".to_owned()),
        evidence: CardEvidence::Run,
        ..row(gpu, 16, Unknown)
    }
    };
    let work = PricedWork { samples: 2_562_334, epochs: Some(2), currency: "EUR".to_owned() };
    let mixed = vec![
        priced(3.217, row("rtx-4090", 24, FitsAsIs)),
        priced(15.5, row("l40s", 48, FitsAsIs)),
        row("rtx-4060-ti-16gb", 16, FitsAsIs),
        unknown("v100-16gb"),
        unknown("titan-v"),
        CardRow { evidence: CardEvidence::Run, ..row("rtx-4060", 8, DoesNotFit) },
    ];
    let two = vec![CardRow { count: 2, ..row("rtx-4070", 12, FitsAsIs) }, row("rtx-4060", 8, FitsWithPlan)];
    let none = (0..9).map(|index| row(&format!("card-{index}"), 4, DoesNotFit)).collect();
    let failed = CardsReport {
        problem: Some(Problem {
            kind: ProblemKind::Exception,
            message: "The script itself failed: ValueError: no data.".to_owned(),
            hint: Some("`memfit run` shows how it fails".to_owned()),
        }),
        ..report(vec![unknown("t4")], None)
    };
    let unclear = report(vec![unknown("v100-16gb"), unknown("titan-v")], None);
    vec![report(mixed, Some(work)), report(two, None), report(none, None), failed, unclear]
}
