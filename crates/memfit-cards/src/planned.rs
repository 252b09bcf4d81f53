//! Chooses the rows for which a plan is searched, and applies the results.

use std::cmp::Ordering;

use memfit_report::wire::{CardEvidence, CardRow, CardSort, CardVerdict, PlanReport, PlanVerdict};
use memfit_vocabulary::Parallel;

use crate::prices::Prices;

/// The name under which the search reports why it did not spread the script over several GPUs.
const PARALLEL: &str = "parallel";

/// Indices of the rows for which a plan is searched: the first `most` of those that do not fit (cheapest
/// first if prices are known, else in the table's order), then of those with assumed replicas of one process.
/// `launches` is `true` if the command starts a process for each GPU.
pub fn to_plan(
    rows: &[CardRow],
    sort: CardSort,
    prices: Option<&Prices>,
    launches: bool,
    most: usize,
) -> Vec<usize> {
    let is_assumed = |row: &CardRow| row.count > 1 && !launches;
    let class = |row: &CardRow| match row.verdict {
        CardVerdict::DoesNotFit => Some(0),
        // One process fits, but its replicas may not.
        CardVerdict::Unknown if is_assumed(row) && row.headroom.is_some_and(|bytes| bytes < 0) => Some(0),
        CardVerdict::FitsAsIs if is_assumed(row) => Some(1),
        _ => None,
    };
    let per_hour = |row: &CardRow| {
        let offer = prices.filter(|_| sort == CardSort::Price)?.cheapest(&row.gpu, row.count)?;
        Some(offer.per_hour)
    };
    let mut wanted: Vec<(u8, Option<f64>, usize)> =
        (0..).zip(rows).filter_map(|(place, row)| Some((class(row)?, per_hour(row), place))).collect();
    wanted.sort_by(|a, b| {
        let cheaper = match (a.1, b.1) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        a.0.cmp(&b.0).then(if a.0 == 0 { cheaper } else { Ordering::Equal }).then(a.2.cmp(&b.2))
    });
    wanted.into_iter().map(|(_, _, place)| place).take(most).collect()
}

/// Applies the result of a search to its row.
pub fn apply_plan(row: &mut CardRow, plan: PlanReport, launches: bool) {
    let spreads = row.count > 1 && !launches;
    let why_not = plan.rejected.iter().find(|rejected| rejected.lever == PARALLEL);
    let why_not = why_not.map(|rejected| rejected.why.trim_end_matches('.').to_owned());
    match (plan.verdict, plan.chosen) {
        (Some(PlanVerdict::FitsWithPlan), Some(chosen)) => {
            let parallel = chosen.parallel.filter(Parallel::is_spread);
            if spreads && parallel.is_none() && row.verdict.fits() {
                // A plan for one GPU does not apply to several.
                row.note = alone(row, why_not);
                return;
            }
            row.note = match parallel {
                _ if !spreads => None,
                Some(parallel) => Some(format!("the GPUs share each batch of the script: {parallel}")),
                None => Some(format!(
                    "the plan uses one of the {} GPUs{}",
                    row.count,
                    why_not.map_or(String::new(), |why| format!(": {why}"))
                )),
            };
            row.verdict = CardVerdict::FitsWithPlan;
            row.evidence = CardEvidence::Run;
            row.peak = Some(chosen.peak);
            row.headroom = Some(row.capacity as i64 - chosen.peak.device_upper as i64);
            (row.step_ms_estimate, row.step_ms_low, row.step_ms_high) =
                (chosen.step_ms_estimate, chosen.step_ms_low, chosen.step_ms_high);
            row.command = row.plan_command();
            row.chosen = Some(chosen);
        }
        (Some(PlanVerdict::DoesNotFit), _) if row.verdict == CardVerdict::DoesNotFit => {
            row.evidence = CardEvidence::Run;
            row.note = Some(match why_not.filter(|_| spreads) {
                Some(why) => format!("no plan was found that fits: {why}"),
                None => "no plan was found that fits".to_owned(),
            });
        }
        _ if spreads => row.note = alone(row, why_not),
        _ => {}
    }
}

/// The note of a row with assumed replicas that the search could not spread.
fn alone(row: &CardRow, why_not: Option<String>) -> Option<String> {
    let why = why_not.map(|why| format!("memfit cannot spread the script over GPUs itself ({why})"));
    match (row.note.clone(), why) {
        (Some(note), Some(why)) => Some(format!("{note}; {why}")),
        (note, why) => note.or(why),
    }
}

#[cfg(test)]
mod tests {
    use memfit_devices::Catalogue;
    use memfit_report::wire::{CardKind, DeviceInfo, Peak, PlanRun, RejectedLever, schema};
    use memfit_vocabulary::{Label, Parallel};

    use super::*;
    use crate::order::tests::row;

    fn rows() -> Vec<CardRow> {
        let of = |gpu: &str, count, verdict, headroom| CardRow {
            gpu: gpu.to_owned(),
            count,
            headroom: Some(headroom),
            command: ["memfit", "run", "--gpu", gpu].map(str::to_owned).to_vec(),
            ..row(24, verdict, None, None)
        };
        vec![
            of("l4", 1, CardVerdict::FitsAsIs, 5),
            of("l4", 2, CardVerdict::FitsAsIs, 5),
            of("rtx-4090", 2, CardVerdict::Unknown, -5),
            of("rtx-4090", 1, CardVerdict::Unknown, 5),
            of("t4", 1, CardVerdict::DoesNotFit, -5),
            of("t4", 2, CardVerdict::DoesNotFit, -5),
        ]
    }

    fn prices() -> Prices {
        let text = "currency = \"EUR\"\n[[offer]]\ngpu = \"t4\"\ncards = 2\nper_hour = 1.0\n[[offer]]\ngpu = \"rtx-4090\"\ncards = 4\nper_hour = 0.5\n";
        Prices::parse(text, std::path::Path::new("prices.toml"), &Catalogue::builtin().unwrap()).unwrap()
    }

    #[test]
    fn rows_that_do_not_fit_come_before_assumed_replicas() {
        assert_eq!(to_plan(&rows(), CardSort::Memory, None, false, 9), [2, 4, 5, 1]);
        assert_eq!(to_plan(&rows(), CardSort::Memory, None, false, 2), [2, 4]);
        assert_eq!(
            to_plan(&rows(), CardSort::Memory, None, true, 9),
            [4, 5],
            "a launcher is not an assumption"
        );
        let priced = to_plan(&rows(), CardSort::Price, Some(&prices()), false, 9);
        assert_eq!(priced, [2, 4, 5, 1], "equal offers keep the table's order");
        let mut unpriced = rows();
        unpriced[2].gpu = "a100-80gb".to_owned();
        assert_eq!(to_plan(&unpriced, CardSort::Price, Some(&prices()), false, 9), [4, 5, 2, 1]);
    }

    fn plan(verdict: PlanVerdict, parallel: Option<Parallel>, why: Option<&str>) -> PlanReport {
        let peak = Peak { allocated: 1, reserved: 2, device: 3, device_upper: 4 };
        let chosen = PlanRun {
            levers: Vec::new(),
            micro_batch: None,
            micro_batches_per_step: 1,
            accumulate: 1,
            parallel,
            parallel_label: parallel.map(|_| Label::Rounding),
            library: None,
            ranks: Vec::new(),
            gpus_used: 1,
            bound_by: None,
            peak,
            step_ms_estimate: Some(7.0),
            step_ms_low: None,
            step_ms_high: None,
            fits: true,
            refuted: false,
            at_peak: None,
        };
        PlanReport {
            schema: schema::PLAN.to_owned(),
            verdict: Some(verdict),
            device: DeviceInfo { name: String::new(), capacity: 0, count: 2, kind: CardKind::Virtual },
            budget: 0,
            margin: 0.0,
            allow: Label::Precision,
            baseline: None,
            chosen: (verdict != PlanVerdict::DoesNotFit).then_some(chosen),
            limit: None,
            pareto: Vec::new(),
            rejected: why
                .map(|why| RejectedLever { lever: PARALLEL.to_owned(), why: why.to_owned() })
                .into_iter()
                .collect(),
            advice: Vec::new(),
            smallest_card: None,
            fewest_gpus: None,
            nodes: 1,
            links: Vec::new(),
            coverage: None,
            evaluations: 3,
            wall_s: 0.0,
            interrupted: false,
            notes: Vec::new(),
            torch: None,
            command: Vec::new(),
            plan: None,
            patch: None,
            problem: None,
        }
    }

    #[test]
    fn a_row_says_how_its_gpus_share_the_work() {
        let two = Parallel { shard: 2, ..Parallel::default() };
        let mut row = rows().remove(5);
        apply_plan(&mut row, plan(PlanVerdict::FitsWithPlan, Some(two), None), false);
        assert_eq!((row.verdict, row.evidence), (CardVerdict::FitsWithPlan, CardEvidence::Run));
        assert_eq!(row.step_ms_estimate, Some(7.0));
        assert_eq!(row.note.as_deref(), Some("the GPUs share each batch of the script: shard 2"));
        assert_eq!(row.command[1], "plan");

        let mut row = rows().remove(5);
        apply_plan(&mut row, plan(PlanVerdict::FitsWithPlan, None, Some("one batch.")), false);
        assert_eq!(row.verdict, CardVerdict::FitsWithPlan);
        assert_eq!(row.note.as_deref(), Some("the plan uses one of the 2 GPUs: one batch"));

        let mut row = rows().remove(5);
        apply_plan(&mut row, plan(PlanVerdict::DoesNotFit, None, Some("too large")), false);
        assert_eq!((row.verdict, row.evidence), (CardVerdict::DoesNotFit, CardEvidence::Run));
        assert_eq!(row.note.as_deref(), Some("no plan was found that fits: too large"));
    }

    #[test]
    fn replicas_stay_assumed_where_the_search_spreads_nothing() {
        let mut row = rows().remove(1);
        row.note = Some("assumed".to_owned());
        let before = row.clone();
        apply_plan(&mut row, plan(PlanVerdict::FitsWithPlan, None, Some("it trains several models")), false);
        assert_eq!(row.verdict, before.verdict);
        assert_eq!(
            row.note.as_deref(),
            Some("assumed; memfit cannot spread the script over GPUs itself (it trains several models)")
        );
        assert!(row.chosen.is_none());
    }
}
