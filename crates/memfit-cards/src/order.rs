//! The order of the rows, and the Pareto front.

use std::cmp::Ordering;

use memfit_report::wire::{CardRow, CardSort, CardVerdict};

/// Sorts rows, those that fit first, and marks their Pareto front by price and speed. Without prices, memory
/// takes the place of the price.
pub fn arrange(rows: &mut [CardRow], sort: CardSort) {
    rows.sort_by(|a, b| {
        group(a)
            .cmp(&group(b))
            .then_with(|| by(sort, a, b))
            .then_with(|| memory(a).cmp(&memory(b)))
            .then_with(|| last_unknown(speed(b), speed(a)))
            .then_with(|| (&a.gpu, a.count, a.batch).cmp(&(&b.gpu, b.count, b.batch)))
    });
    let priced = rows.iter().any(|row| row.price.is_some());
    let points: Vec<Option<(f64, f64)>> = rows.iter().map(|row| point(row, priced)).collect();
    for (row, place) in rows.iter_mut().zip(&points) {
        row.pareto = place.is_some_and(|place| !points.iter().flatten().any(|other| beats(*other, place)));
    }
}

/// A row's cost and slowness; `None` if one of them is unknown.
fn point(row: &CardRow, priced: bool) -> Option<(f64, f64)> {
    let cost = if priced { row.price.as_ref()?.amount } else { memory(row) as f64 };
    Some((cost, 1.0 / speed(row)?)).filter(|_| row.verdict.fits())
}

/// Returns `true` if one point dominates another: no worse in both values, and better in one.
fn beats(one: (f64, f64), other: (f64, f64)) -> bool {
    one.0 <= other.0 && one.1 <= other.1 && one != other
}

const fn group(row: &CardRow) -> u8 {
    match row.verdict {
        CardVerdict::FitsAsIs | CardVerdict::FitsWithPlan => 0,
        CardVerdict::Unknown => 1,
        CardVerdict::DoesNotFit => 2,
    }
}

fn by(sort: CardSort, a: &CardRow, b: &CardRow) -> Ordering {
    match sort {
        CardSort::Price => last_unknown(
            a.price.as_ref().map(|price| price.amount),
            b.price.as_ref().map(|price| price.amount),
        ),
        CardSort::Time => last_unknown(speed(a).map(|speed| -speed), speed(b).map(|speed| -speed)),
        CardSort::Memory => memory(a).cmp(&memory(b)),
    }
}

/// Ascending order, with unknown values last.
fn last_unknown(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

/// Samples per second; if the samples are unknown, steps per second times GPUs.
fn speed(row: &CardRow) -> Option<f64> {
    row.samples_per_s.or_else(|| Some(f64::from(row.count) * 1e3 / row.step_ms_estimate?))
}

/// Memory of all GPUs.
fn memory(row: &CardRow) -> u64 {
    row.capacity * u64::from(row.count)
}

#[cfg(test)]
pub(crate) mod tests {
    use memfit_report::wire::{CardEvidence, CardPrice};
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn row(gib: u64, verdict: CardVerdict, ms: Option<f64>, amount: Option<f64>) -> CardRow {
        CardRow {
            gpu: format!("card-{gib}"),
            name: String::new(),
            architecture: "Ada Lovelace".to_owned(),
            capacity: gib << 30,
            count: 1,
            batch: Some(8),
            verdict,
            peak: None,
            headroom: None,
            chosen: None,
            step_ms_estimate: ms,
            step_ms_low: ms,
            step_ms_high: ms,
            samples_per_s: ms.map(|ms| 8e3 / ms),
            price: amount.map(|amount| CardPrice {
                amount,
                low: amount,
                high: amount,
                per_hour: 1.0,
                hours: amount,
                vendor: String::new(),
                instance: String::new(),
                cards: 1,
            }),
            pareto: false,
            evidence: CardEvidence::Run,
            command: Vec::new(),
            note: None,
        }
    }

    #[test]
    fn fitting_cards_come_first_and_unknown_ones_last() {
        use CardVerdict::{DoesNotFit, FitsAsIs, Unknown};
        let mut rows = [
            row(8, DoesNotFit, None, None),
            row(80, FitsAsIs, Some(1.0), Some(9.0)),
            row(24, FitsAsIs, Some(3.0), Some(2.0)),
            row(16, Unknown, None, None),
            row(48, FitsAsIs, Some(2.0), None),
        ];
        let mut order = |sort| {
            arrange(&mut rows, sort);
            rows.iter().map(|row| row.capacity >> 30).collect::<Vec<_>>()
        };
        assert_eq!(order(CardSort::Memory), [24, 48, 80, 16, 8]);
        assert_eq!(order(CardSort::Time), [80, 48, 24, 16, 8]);
        assert_eq!(order(CardSort::Price), [24, 80, 48, 16, 8]);
        let front: Vec<u64> = rows.iter().filter(|row| row.pareto).map(|row| row.capacity >> 30).collect();
        assert_eq!(front, [24, 80], "one without a price is on no front");
    }

    proptest! {
        #[test]
        fn nothing_beats_the_front_and_the_front_beats_the_rest(
            found in proptest::collection::vec((1..30_u64, 1..20_u32, 0..3_u8), 0..25)
        ) {
            let mut rows: Vec<CardRow> = found
                .into_iter()
                .map(|(gib, ms, verdict)| {
                    let fits = verdict > 0;
                    let verdict = if fits { CardVerdict::FitsAsIs } else { CardVerdict::DoesNotFit };
                    row(gib, verdict, fits.then(|| f64::from(ms)), None)
                })
                .collect();
            let before = rows.len();
            arrange(&mut rows, CardSort::Time);
            prop_assert_eq!(rows.len(), before);
            for row in &rows {
                prop_assert!(!row.pareto || row.verdict.fits());
                if row.verdict.fits() && !row.pareto {
                    let mine = point(row, false).unwrap();
                    let beaten = rows.iter().filter(|other| other.pareto).any(|other| beats(point(other, false).unwrap(), mine));
                    prop_assert!(beaten);
                }
            }
        }
    }
}
