//! Compares the search with every combination of micro-batches, recomputed blocks and levers.

use std::fmt::Write as _;

use super::*;
use crate::choose::{Block, Fate, peak};

/// Training that follows the model exactly, except that its time rises arbitrarily with the number of
/// micro-batches.
#[derive(Clone, Debug)]
struct Small {
    /// Bytes that a sample keeps in each block, and nanoseconds of its forward pass.
    blocks: Vec<(u64, u64)>,
    /// Milliseconds of a step by number of micro-batches.
    times: Vec<f64>,
    fixed: u64,
    budget: u64,
    /// Memory-saving levers with their savings in bytes and costs in milliseconds.
    paying: Vec<(Lever, u64, f64)>,
}

impl Small {
    fn batch(&self) -> u64 {
        self.times.len() as u64
    }

    fn blocks_of(&self, samples: u64) -> Vec<Block> {
        let of = |(bytes, ns): &(u64, u64)| Block {
            keep: bytes * samples,
            residue: bytes * samples / 10,
            recompute_ns: ns * samples,
            offload: None,
        };
        self.blocks.iter().map(of).collect()
    }

    fn judge(&self, candidate: &Candidate) -> (u64, f64) {
        let samples = candidate.micro_batch.unwrap_or(self.batch());
        let again = candidate.settings.iter().find_map(|setting| match &setting.value {
            Value::Names(names) => Some(names.clone()),
            _ => None,
        });
        let again = again.unwrap_or_default();
        let is_again = |index: usize| again.contains(&format!("h.{index}"));
        let fates: Vec<Fate> = (0..self.blocks.len())
            .map(|index| if is_again(index) { Fate::Recompute } else { Fate::Keep })
            .collect();
        let blocks = self.blocks_of(samples);
        let moved = |lever: Lever| candidate.settings.iter().any(|setting| setting.lever == lever);
        let paid: Vec<_> = self.paying.iter().filter(|(lever, ..)| moved(*lever)).collect();
        let saved: u64 = paid.iter().map(|(_, saved, _)| saved).sum();
        let extra: u64 =
            (0..blocks.len()).filter(|index| is_again(*index)).map(|index| blocks[index].recompute_ns).sum();
        let time = self.times[candidate.pieces as usize - 1]
            + paid.iter().map(|(.., cost)| cost).sum::<f64>()
            + (extra * candidate.pieces) as f64 / 1e6;
        (peak(&blocks, &fates, self.fixed - saved), time)
    }

    /// Minimum time of all combinations that fit, among those with the least effect on training results.
    fn best(&self) -> Option<f64> {
        let mut best: Option<(Harm, f64)> = None;
        for (samples, pieces) in super::super::divide::sizes(self.batch()) {
            for bits in 0_u32..1 << (self.blocks.len() + self.paying.len()) {
                let names: Vec<String> = (0..self.blocks.len())
                    .filter(|index| bits >> index & 1 == 1)
                    .map(|index| format!("h.{index}"))
                    .collect();
                let mut candidate = Candidate::as_is().with_lever(Lever::Checkpointing, Value::Names(names));
                (candidate.micro_batch, candidate.pieces) = (Some(samples), pieces);
                for (index, (lever, ..)) in self.paying.iter().enumerate() {
                    if bits >> (self.blocks.len() + index) & 1 == 1 {
                        candidate = candidate.with_lever(*lever, Value::default());
                    }
                }
                let levers: Vec<Lever> = candidate.settings.iter().map(|setting| setting.lever).collect();
                let (bytes, time) = self.judge(&candidate);
                if Lever::conflict(&levers).is_none() && bytes <= self.budget {
                    let this = (candidate.harm(), time);
                    best = Some(best.filter(|best| *best <= this).unwrap_or(this));
                }
            }
        }
        best.map(|(_, time)| time)
    }
}

impl Trial for Small {
    type Error = ();

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
        let (bytes, time) = self.judge(candidate);
        let samples = candidate.micro_batch.unwrap_or(self.batch());
        let blocks = self.blocks_of(samples).into_iter().enumerate();
        let training = Training {
            batch: self.batch(),
            own_accumulation: 1,
            parts: Parts::TrainAsWhole,
            optimizes: true,
            // Enough for any memory-saving lever to be tried.
            state: self.fixed,
            trained: self.fixed,
            blocks: blocks
                .map(|(index, block)| Measured {
                    name: format!("h.{index}"),
                    kept: block.keep,
                    busy_ns: block.recompute_ns,
                    output: block.residue,
                })
                .collect(),
            ..Training::default()
        };
        let refused = candidate
            .settings
            .iter()
            .filter(|setting| {
                setting.lever != Lever::Checkpointing
                    && !self.paying.iter().any(|(lever, ..)| *lever == setting.lever)
            })
            .map(|setting| (setting.lever.name().to_owned(), "not in this space".to_owned()))
            .collect();
        Ok(Some(Outcome {
            fits: room == Room::Boundless || bytes <= self.budget,
            peak: Expected { device_upper: bytes, step_ms: Some(time), ..Expected::default() },
            refused,
            training: Some(training),
            ..Outcome::default()
        }))
    }
}

fn asked(budget: u64) -> Limits {
    Limits { link: Some(1e-6), has_bf16: false, ..limits(budget, Label::ChangesTraining) }
}

/// Maximum ratio of the found time to the best of all combinations.
const MAX_RATIO: f64 = 1.011;
/// Maximum ratio of a simpler plan's time to the fastest one's.
const MAX_SIMPLER_RATIO: f64 = 1.01;

#[test]
fn a_habit_that_is_faster_than_recomputation_is_found() {
    // Four micro-batches are much slower than one, and sixteen little slower than four: extrapolated from the
    // first two, the smallest micro-batches seem the slowest, and only a run shows that they are not.
    let mut times: Vec<f64> = (0..4).map(|pieces| 1465.0 + 47.0 * f64::from(pieces)).collect();
    times.extend((4..32).map(|pieces| 1607.0 + 17.0 * f64::from(pieces - 3)));
    let budget = 6_500 + 8 * 324 * 2;
    let mut trial =
        Small { blocks: vec![(324, 1_900_000); 8], times, fixed: 6_500, budget, paying: Vec::new() };
    let best = trial.best().unwrap();
    let answer = search(&mut trial, &asked(budget)).unwrap().unwrap();
    let chosen = answer.chosen.unwrap();
    assert!(chosen.candidate.pieces > 4, "{}", chosen.candidate.describe());
    assert!(
        milliseconds(&chosen.outcome) <= best * MAX_RATIO,
        "{} instead of {best}",
        milliseconds(&chosen.outcome)
    );
    assert!(answer.evaluations < 30, "{} runs", answer.evaluations);
}

#[test]
fn two_levers_that_pay_for_memory_are_put_together_where_one_is_not_enough() {
    let mut trial = Small {
        blocks: vec![(10, 1_000_000)],
        times: vec![100.0, 101.0],
        fixed: 1_000,
        budget: 520,
        paying: vec![(Lever::HostOptimizerState, 300, 40.0), (Lever::OptimizerInBackward, 200, 1.0)],
    };
    let best = trial.best().unwrap();
    let answer = search(&mut trial, &asked(520)).unwrap().unwrap();
    let chosen = answer.chosen.unwrap();
    assert!((milliseconds(&chosen.outcome) - best).abs() < 1e-9, "{}", chosen.candidate.describe());
    assert_eq!(
        chosen.candidate.settings.iter().filter(|setting| setting.lever != Lever::Checkpointing).count(),
        2
    );
}

/// Answers with several levers that pay for memory, and with times that only runs show.
#[test]
fn combinations_of_levers_and_micro_batches() {
    let three = vec![
        (Lever::HostOptimizerState, 300, 40.0),
        (Lever::OptimizerInBackward, 200, 1.0),
        (Lever::Adafactor, 250, -2.0),
    ];
    let rising: Vec<f64> = (0..8).map(|pieces| 100.0 + 3.0 * f64::from(pieces)).collect();
    let uneven = vec![100.0, 150.0, 151.0, 152.0, 120.0, 121.0, 122.0, 123.0];
    let blocks = vec![(10, 1_000_000), (20, 500_000), (5, 3_000_000)];
    let mut all = String::new();
    for (name, times, budget, paying) in [
        ("three levers, much room", rising.clone(), 1_200, three.clone()),
        ("three levers, some room", rising.clone(), 950, three.clone()),
        ("three levers, little room", rising.clone(), 620, three.clone()),
        ("two levers, little room", rising.clone(), 560, three[..2].to_vec()),
        ("no lever", rising, 1_050, Vec::new()),
        ("more pieces are faster", uneven.clone(), 1_080, Vec::new()),
        ("more pieces are faster, with levers", uneven, 850, three),
    ] {
        let mut trial = Small { blocks: blocks.clone(), times, fixed: 1_000, budget, paying };
        let answer = search(&mut trial, &asked(budget)).unwrap().unwrap();
        let _ = writeln!(all, "== {name}\n{}", super::answers::text(&answer));
    }
    insta::assert_snapshot!(all);
}

/// Plans in which a combination of levers makes room for a number of micro-batches that was never run.
#[test]
fn combinations_whose_time_only_a_run_shows() {
    let mut all = String::new();
    for (name, max_ratio, mut trial) in [
        (
            "two micro-batches are faster than predicted",
            MAX_RATIO,
            Small {
                blocks: vec![(50, 1_344_658), (4, 3_604_441)],
                times: vec![100.0, 101.2, 130.2],
                fixed: 349,
                budget: 335,
                paying: vec![
                    (Lever::Adafactor, 4, 4.0),
                    (Lever::PureBf16, 9, 2.0),
                    (Lever::Bf16OptimizerState, 33, 1.0),
                    (Lever::EightBitOptimizer, 34, 1.0),
                ],
            },
        ),
        (
            "a lever saves more with recomputation, and another one before",
            // The smallest micro-batches with less recomputation would be faster, and are never run.
            1.05,
            Small {
                blocks: vec![(36, 2_173_701)],
                times: vec![100.0, 101.3, 101.7, 151.7, 152.1, 152.4, 152.5, 153.0],
                fixed: 353,
                budget: 338,
                paying: vec![
                    (Lever::HostOptimizerState, 6, 6.0),
                    (Lever::OptimizerInBackward, 34, 0.0),
                    (Lever::PureBf16, 27, 2.0),
                    (Lever::Bf16OptimizerState, 39, 7.0),
                ],
            },
        ),
        (
            "no combination could be faster",
            MAX_RATIO,
            Small {
                blocks: vec![(36, 2_794_374), (45, 6_387_207)],
                times: vec![100.0, 100.4, 101.0],
                fixed: 313,
                budget: 463,
                paying: vec![(Lever::HostOptimizerState, 27, 3.0), (Lever::PureBf16, 3, 7.0)],
            },
        ),
        (
            "the first and the third lever fit together",
            MAX_RATIO,
            Small {
                blocks: vec![(13, 2_348_700)],
                times: vec![135.0, 136.0],
                fixed: 952,
                budget: 727,
                paying: vec![
                    (Lever::HostOptimizerState, 144, 21.0),
                    (Lever::OptimizerInBackward, 127, -5.0),
                    (Lever::EightBitOptimizer, 130, 7.0),
                ],
            },
        ),
    ] {
        let best = trial.best().unwrap();
        let limits = asked(trial.budget);
        let answer = search(&mut trial, &limits).unwrap().unwrap();
        let found = milliseconds(&answer.chosen.as_ref().unwrap().outcome);
        assert!(found <= best * max_ratio, "{name}: {found} instead of {best}");
        let _ = writeln!(all, "== {name}\n{}", super::answers::text(&answer));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn combinations_that_do_not_add_up_are_given_up_after_a_few_runs() {
    /// Training in which two levers save no more than none.
    struct Alone(Small);
    impl Trial for Alone {
        type Error = ();
        fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
            let mut outcome = self.0.run(candidate, room)?;
            if let Some(outcome) = outcome.as_mut().filter(|_| combined(&self.0, candidate).len() > 1) {
                outcome.peak.device_upper = self.0.fixed * 2;
                outcome.fits = room == Room::Boundless;
            }
            Ok(outcome)
        }
    }
    fn combined(script: &Small, candidate: &Candidate) -> Vec<Lever> {
        let levers = script.paying.iter().map(|(lever, ..)| *lever);
        levers.filter(|lever| candidate.value(*lever).is_some()).collect()
    }
    let script = Small {
        blocks: vec![(100, 50_000_000); 4],
        times: vec![100.0],
        fixed: 1_000,
        budget: 1_290,
        paying: vec![
            (Lever::HostOptimizerState, 80, 5.0),
            (Lever::OptimizerInBackward, 75, 4.0),
            (Lever::PureBf16, 70, 3.0),
            (Lever::Bf16OptimizerState, 65, 2.0),
            (Lever::EightBitOptimizer, 60, 1.0),
        ],
    };
    let limits = Limits { has_bf16: true, ..asked(script.budget) };
    let answer = search(&mut Alone(script.clone()), &limits).unwrap().unwrap();
    assert_eq!(answer.verdict, Verdict::FitsWithPlan);
    let sets = answer.tried.iter().map(|tried| combined(&script, &tried.candidate));
    let sets: std::collections::BTreeSet<Vec<Lever>> = sets.filter(|set| set.len() > 1).collect();
    assert_eq!(sets.len(), 4, "{sets:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn no_combination_is_noticeably_faster(
        blocks in proptest::collection::vec((1..50_u64, 0..3_000_000_u64), 1..4),
        first in 50.0..100.0_f64,
        rises in proptest::collection::vec(0.0..20.0_f64, 0..9),
        fixed in 2_000..6_000_u64,
        share in 0.0..1.2_f64,
        paying in proptest::collection::vec((10..600_u64, -5.0..40.0_f64), 0..3),
    ) {
        // A tenth remains of a recomputed block, so that whole tens follow the model to the byte.
        let blocks: Vec<(u64, u64)> = blocks.into_iter().map(|(tens, ns)| (tens * 10, ns)).collect();
        let mut times = vec![first];
        for rise in rises {
            times.push(times.last().unwrap() + rise);
        }
        let which = [Lever::HostOptimizerState, Lever::Adafactor, Lever::PureBf16];
        let paying = paying.into_iter().zip(which);
        let paying = paying.map(|((saved, cost), lever)| (lever, saved, cost)).collect();
        let kept: u64 = blocks.iter().map(|(bytes, _)| bytes * times.len() as u64).sum();
        let budget = fixed / 2 + (share * (kept + fixed / 2) as f64) as u64;
        let mut trial = Small { blocks, times, fixed, budget, paying };
        let answer = search(&mut trial, &asked(budget)).unwrap().unwrap();
        if answer.verdict == Verdict::FitsAsIs {
            return Ok(());
        }
        let best = trial.best();
        let fitting = answer.tried.iter().filter(|tried| tried.fits() && tried.outcome.refused.is_empty());
        let least = fitting.clone().map(|tried| tried.candidate.harm()).min();
        let fastest = fitting
            .filter(|tried| Some(tried.candidate.harm()) == least)
            .map(|tried| milliseconds(&tried.outcome))
            .min_by(f64::total_cmp);
        let chosen = answer.chosen.map(|chosen| milliseconds(&chosen.outcome));
        // A candidate with fewer changes is chosen if it is almost as fast.
        prop_assert!(chosen.zip(fastest).is_none_or(|(chosen, fastest)| chosen <= fastest * MAX_SIMPLER_RATIO));
        let found = chosen.and(fastest);
        prop_assert_eq!(found.is_some(), best.is_some(), "{:?} instead of {:?}", found, best);
        if let (Some(found), Some(best)) = (found, best) {
            prop_assert!(found <= best * MAX_RATIO, "{found} instead of {best} in {} runs", answer.evaluations);
        }
    }
}
