//! Tests of the limit of a plan's micro-batch.

use super::*;

/// Training whose peak is a function of the micro-batch size.
struct Curve {
    peak: fn(u64) -> u64,
    budget: u64,
    patience: u64,
    /// Milliseconds of a step by number of micro-batches.
    time: fn(u64) -> f64,
}

const BATCH: u64 = 256;

impl Trial for Curve {
    type Error = ();

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
        let Some(left) = self.patience.checked_sub(1) else { return Ok(None) };
        self.patience = left;
        let peak = (self.peak)(candidate.micro_batch.unwrap_or(BATCH));
        Ok(Some(Outcome {
            fits: room == Room::Boundless || peak <= self.budget,
            peak: Expected {
                device_upper: peak,
                reserved: peak,
                step_ms: Some((self.time)(candidate.pieces)),
                ..Expected::default()
            },
            training: Some(Training {
                batch: BATCH,
                optimizes: true,
                parts: Parts::TrainAsWhole,
                ..Training::default()
            }),
            ..Outcome::default()
        }))
    }
}

/// Limit found from ten samples on, and the number of runs.
fn limit(trial: &mut Curve) -> (Option<Limit>, u64) {
    let limits = limits(trial.budget, Label::Rounding);
    let ten = Candidate { micro_batch: Some(10), pieces: 26, ..Candidate::as_is() };
    let outcome = trial.run(&ten, Room::Budget).unwrap().unwrap();
    let training = outcome.training.clone().unwrap();
    let best = Tried { candidate: ten, outcome, on_card: true };
    let mut search = Search::new(trial, &limits);
    let found = search.limit(&best, &training).unwrap();
    (found, search.runs)
}

fn check(peak: fn(u64) -> u64, budget: u64, most: u64) {
    let fits = |samples: u64| peak(samples) <= budget;
    let largest = (10..=BATCH).take_while(|samples| fits(*samples)).last().unwrap();
    let refuted = (largest < BATCH).then_some(largest + 1);
    let (found, runs) = limit(&mut Curve { peak, budget, patience: u64::MAX, time: |_| 1.0 });
    assert_eq!(found, Some(Limit { largest, refuted }));
    assert!(runs <= most, "{runs} runs to {largest}");
}

#[test]
fn how_far_it_goes_takes_few_runs() {
    // Linear with a large constant part, and in steps like the allocator's segments.
    check(|samples| 100 * samples, 20_050, 2);
    check(|samples| 90_000 + 100 * samples, 110_020, 4);
    check(|samples| (100 * samples).div_ceil(2048) * 2048, 14_000, 7);
    // Faster than linear.
    check(|samples| 20 * samples * samples, 6_000, 7);
    check(|samples| samples * samples * samples, 1_000_000, 11);
    check(|samples| 100 * samples, 100 * BATCH, 1);
    // A jump right after the plan's size.
    check(|samples| if samples > 16 { 1_000_000 } else { 100 * samples }, 20_000, 10);
}

#[test]
fn nothing_is_said_of_what_was_not_seen() {
    for patience in 1..=3 {
        let peak = |samples| 20 * samples * samples;
        let (found, _) = limit(&mut Curve { peak, budget: 6_000, patience, time: |_| 1.0 });
        assert_eq!(found, None, "{patience}");
    }
}

#[test]
fn more_samples_are_taken_where_that_turns_out_to_be_faster() {
    for (time, taken) in [(faster as fn(u64) -> f64, 60), (hardly, 10)] {
        let mut trial = Curve { peak: |samples| 100 * samples, budget: 6_000, patience: 9, time };
        let limits = limits(trial.budget, Label::Rounding);
        let ten = Candidate { micro_batch: Some(10), pieces: 26, ..Candidate::as_is() };
        let mut search = Search::new(&mut trial, &limits);
        let outcome = search.run(&ten, Room::Budget).unwrap().unwrap();
        let training = outcome.training.clone().unwrap();
        let best = Tried { candidate: ten, outcome, on_card: true };
        search.limit(&best, &training).unwrap();
        assert_eq!(search.with_more_samples(best).candidate.micro_batch, Some(taken));
    }
}

fn faster(pieces: u64) -> f64 {
    100.0 + pieces as f64
}

fn hardly(pieces: u64) -> f64 {
    10_000.0 + pieces as f64
}

#[test]
fn a_batch_is_divided_evenly_where_that_costs_next_to_nothing() {
    let check = |time: fn(u64) -> f64, expected: u64| {
        let mut trial = Curve { peak: |samples| samples, budget: 100, patience: u64::MAX, time };
        let limits = limits(100, Label::Rounding);
        let uneven = Candidate { micro_batch: Some(100), pieces: 3, ..Candidate::as_is() };
        let outcome = trial.run(&uneven, Room::Budget).unwrap().unwrap();
        let best = Tried { candidate: uneven, outcome, on_card: true };
        let even = Search::new(&mut trial, &limits).divide_evenly(best, BATCH).unwrap();
        assert_eq!(even.candidate.micro_batch, Some(expected));
        assert_eq!(even.candidate.pieces, BATCH.div_ceil(expected));
    };
    // 256 as 4 times 64; with a cost for each micro-batch, as 86 + 86 + 84.
    check(|pieces| 100.0 + 0.5 * pieces as f64, 64);
    check(|pieces| 100.0 + 5.0 * pieces as f64, 86);
}
