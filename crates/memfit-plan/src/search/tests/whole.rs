//! The model compiled as a whole, and activation budgets.

use std::fmt::Write as _;

use super::*;

/// Training that a compiler makes faster, and whose activations it may reduce.
#[derive(Clone, Debug)]
struct Fused {
    budget: u64,
    /// Milliseconds of a step in one piece: uncompiled, with compiled blocks, compiled as a whole.
    times: [f64; 3],
    /// Additional milliseconds for each further micro-batch.
    each: f64,
    /// Additional milliseconds of full recomputation of a batch: of blocks, and of the whole model.
    again: [f64; 2],
    /// Hundredths that the compiler keeps beyond its budget.
    more: u64,
    /// `true` if the script compiles its model.
    own: bool,
    /// `true` if the whole model does not compile.
    breaks: bool,
    draws: bool,
    /// Activations of the whole model, in hundredths of those of its blocks.
    of_whole: u64,
    /// The script's variables for the batch size, if it creates its own batches.
    names: Vec<String>,
    batch: u64,
    tried: Vec<Candidate>,
}

const BATCH: u64 = 64;
/// Bytes that a sample keeps in each of eight blocks, and those of everything else.
const KEPT_BYTES: u64 = GIB / 64;
const FIXED_BYTES: u64 = GIB;

impl Fused {
    fn peak(&self, candidate: &Candidate) -> u64 {
        let samples = candidate.micro_batch.unwrap_or(self.batch);
        let again = match candidate.value(Lever::Checkpointing) {
            Some(Value::Names(names)) => names.len() as u64,
            _ => 0,
        };
        let kept = samples
            * (KEPT_BYTES * (8 - again) + again * KEPT_BYTES / 10 + if again > 0 { KEPT_BYTES } else { 0 });
        let is_whole = candidate.value(Lever::Compile) == Some(&Value::default());
        let kept = if is_whole { kept * self.of_whole / 100 } else { kept };
        match candidate.value(Lever::ActivationBudget) {
            Some(Value::Count(share)) => FIXED_BYTES + kept * (share + self.more).min(100) / 100,
            _ => FIXED_BYTES + kept,
        }
    }

    fn judge(&self, candidate: &Candidate) -> (u64, f64) {
        let time = match candidate.value(Lever::Compile) {
            None if self.own => self.times[2],
            None => self.times[0],
            Some(Value::Names(_)) => self.times[1],
            Some(_) => self.times[2],
        };
        let is_whole = !matches!(candidate.value(Lever::Compile), Some(Value::Names(_)));
        let shared = match candidate.value(Lever::ActivationBudget) {
            Some(Value::Count(share)) => (100 - share) as f64 / 100.0 * self.again[usize::from(is_whole)],
            _ => 0.0,
        };
        let recomputed = match candidate.value(Lever::Checkpointing) {
            Some(Value::Names(names)) => names.len() as f64 / 8.0 * self.times[0] / 3.0,
            _ => 0.0,
        };
        let time = time + shared + recomputed + (candidate.pieces - 1) as f64 * self.each;
        (self.peak(candidate), time)
    }
}

impl Trial for Fused {
    type Error = ();

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
        self.tried.push(candidate.clone());
        let samples = candidate.micro_batch.unwrap_or(self.batch);
        let (peak, time) = self.judge(candidate);
        let share = match candidate.value(Lever::ActivationBudget) {
            Some(Value::Count(share)) => (share + self.more).min(100),
            _ => 100,
        };
        let block = |index: u64| Measured {
            name: format!("h.{index}"),
            kept: KEPT_BYTES * samples * share / 100,
            busy_ns: (self.times[0] / 24.0 / self.batch as f64 * samples as f64 * 1e6) as u64,
            output: KEPT_BYTES * samples / 10,
        };
        let whole = candidate.value(Lever::Compile) == Some(&Value::default());
        let fails = self.breaks && whole;
        Ok(Some(Outcome {
            fits: !fails && (room == Room::Boundless || peak <= self.budget),
            problem: fails.then(|| "Unsupported: a graph break".to_owned()),
            peak: Expected { device_upper: peak, reserved: peak, step_ms: Some(time), ..Expected::default() },
            training: Some(Training {
                batch: self.batch,
                names: self.names.clone(),
                own_accumulation: 1,
                parts: Parts::TrainAsWhole,
                optimizes: true,
                parameters: FIXED_BYTES,
                compiled: self.own,
                draws: self.draws,
                blocks: (0..8).map(block).collect(),
                ..Training::default()
            }),
            ..Outcome::default()
        }))
    }
}

fn fused() -> Fused {
    Fused {
        budget: 6 * GIB,
        times: [1000.0, 800.0, 780.0],
        each: 30.0,
        again: [20.0, 20.0],
        more: 0,
        own: false,
        breaks: false,
        draws: false,
        of_whole: 100,
        names: Vec::new(),
        batch: BATCH,
        tried: Vec::new(),
    }
}

fn answer(trial: &mut Fused) -> Answer {
    let limits = Limits { compiles: true, budget: trial.budget, most_runs: 60, ..Limits::default() };
    search(trial, &limits).unwrap().unwrap()
}

fn compiled(answer: &Answer) -> (Option<&Value>, Option<&Value>) {
    let candidate = &answer.chosen.as_ref().unwrap().candidate;
    (candidate.value(Lever::Compile), candidate.value(Lever::ActivationBudget))
}

fn why_not(answer: &Answer) -> &str {
    let name = "compile (the model as a whole)";
    answer.rejected.iter().find(|rejected| rejected.lever == name).map_or("", |rejected| &rejected.why)
}

/// Answers where blocks or the whole model are compiled, and where activation budgets are tried.
#[test]
fn compiled_plans() {
    let cheap = Fused { again: [5.0, 5.0], ..fused() };
    let mut all = String::new();
    for (name, mut trial) in [
        ("recomputation costs", Fused { again: [1000.0, 1000.0], ..fused() }),
        ("micro-batches cost", Fused { each: 200.0, ..cheap.clone() }),
        ("micro-batches cost, and the budget is exceeded", Fused { each: 200.0, more: 15, ..cheap.clone() }),
        ("the budget is exceeded by much", Fused { each: 200.0, more: 60, ..cheap.clone() }),
        ("little room", Fused { budget: 2 * GIB, ..cheap.clone() }),
        ("less room", Fused { budget: GIB + GIB / 4, ..cheap.clone() }),
        ("nothing for two samples", Fused { budget: GIB + GIB / 8, ..cheap.clone() }),
        ("fits", Fused { budget: 20 * GIB, ..cheap.clone() }),
        ("the whole keeps half", Fused { of_whole: 50, budget: 4 * GIB, ..cheap.clone() }),
        (
            "odd batch",
            Fused { batch: 15, budget: 2 * GIB, each: 200.0, names: vec!["batch".to_owned()], ..cheap },
        ),
    ] {
        let found = answer(&mut trial);
        let _ = writeln!(all, "== {name}\n{}", super::answers::text(&found));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn the_model_as_a_whole_is_taken_where_that_is_faster() {
    let mut trial = Fused { again: [1000.0, 1000.0], ..fused() };
    let found = answer(&mut trial);
    assert_eq!(compiled(&found).0, Some(&Value::default()));
    let chosen = found.chosen.unwrap();
    assert!(trial.peak(&chosen.candidate) <= trial.budget);
    // An expensive activation budget is not in the plan.
    assert_eq!(chosen.candidate.value(Lever::ActivationBudget), None);
}

#[test]
fn blocks_stay_compiled_by_themselves_where_the_whole_is_slower_and_it_is_told() {
    let mut trial = Fused { times: [1000.0, 700.0, 800.0], again: [1000.0, 1000.0], ..fused() };
    let found = answer(&mut trial);
    assert!(matches!(compiled(&found).0, Some(Value::Names(_))));
    assert!(why_not(&found).contains("with the plan"), "{}", why_not(&found));
    // One look was enough: on the GPU, and its need without a limit.
    let whole = |candidate: &&Candidate| candidate.value(Lever::Compile) == Some(&Value::default());
    assert!(trial.tried.iter().filter(whole).count() <= 2);
}

#[test]
fn a_model_that_cannot_be_compiled_as_a_whole_has_its_blocks_compiled() {
    let found = answer(&mut Fused { breaks: true, again: [1000.0, 1000.0], ..fused() });
    assert!(matches!(compiled(&found).0, Some(Value::Names(_))));
    assert!(why_not(&found).contains("a graph break"), "{}", why_not(&found));
}

#[test]
fn a_share_makes_room_for_more_samples_together() {
    // Recomputation costs almost nothing, and micro-batches cost much.
    for more in [0, 15] {
        let mut trial = Fused { more, each: 200.0, again: [5.0, 5.0], ..fused() };
        let found = answer(&mut trial);
        let (_, share) = compiled(&found);
        assert!(matches!(share, Some(Value::Count(5..=95))), "{share:?}");
        let chosen = found.chosen.unwrap();
        assert!(trial.peak(&chosen.candidate) <= trial.budget);
        assert_eq!(chosen.candidate.micro_batch, None, "{}", chosen.candidate.describe());
    }
}

#[test]
fn the_whole_model_is_divided_further_where_a_share_of_its_blocks_would_do() {
    // With half of their activations, compiled blocks fit the whole batch, and the model compiled as a whole
    // is faster in two micro-batches.
    let mut trial = Fused { times: [1000.0, 800.0, 780.0], each: 20.0, again: [10.0, 100.0], ..fused() };
    let found = answer(&mut trial);
    assert_eq!(compiled(&found), (Some(&Value::default()), None));
    let chosen = found.chosen.unwrap();
    assert_eq!(chosen.candidate.pieces, 2, "{}", chosen.candidate.describe());
    let blocks = |candidate: &&Candidate| matches!(candidate.value(Lever::Compile), Some(Value::Names(_)));
    let fits = |candidate: &&Candidate| trial.peak(candidate) <= trial.budget;
    let of_blocks = trial.tried.iter().filter(blocks).filter(fits);
    let fastest = of_blocks.min_by(|a, b| trial.judge(a).1.total_cmp(&trial.judge(b).1)).unwrap();
    assert!(
        fastest.pieces == 1 && fastest.value(Lever::ActivationBudget).is_some(),
        "{}",
        fastest.describe()
    );
}

#[test]
fn a_division_of_the_whole_model_that_did_not_fit_is_followed_by_the_next() {
    /// Training whose compiled model needs more memory than predicted, unless in three micro-batches.
    struct Rough(Fused);
    impl Trial for Rough {
        type Error = ();
        fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
            let whole = candidate.value(Lever::Compile) == Some(&Value::default());
            let mut outcome = self.0.run(candidate, room)?;
            if let Some(outcome) = &mut outcome {
                outcome.fits &= room == Room::Boundless || !whole || candidate.pieces > 2;
            }
            Ok(outcome)
        }
    }
    let script = Fused { times: [1000.0, 800.0, 780.0], each: 20.0, again: [10.0, 100.0], ..fused() };
    let limits = Limits { compiles: true, budget: script.budget, most_runs: 60, ..Limits::default() };
    let found = search(&mut Rough(script), &limits).unwrap().unwrap();
    let whole = found.tried.iter().filter(|tried| {
        tried.on_card
            && tried.candidate.value(Lever::Compile) == Some(&Value::default())
            && tried.candidate.value(Lever::ActivationBudget).is_none()
    });
    let pieces: Vec<u64> = whole.map(|tried| tried.candidate.pieces).collect();
    assert_eq!(pieces, [1, 2, 3]);
}

#[test]
fn no_share_where_random_numbers_would_be_drawn_anew() {
    let mut trial = Fused { draws: true, each: 200.0, again: [5.0, 5.0], ..fused() };
    let found = answer(&mut trial);
    assert_eq!(compiled(&found).1, None);
    assert!(trial.tried.iter().all(|candidate| candidate.value(Lever::ActivationBudget).is_none()));
    assert!(found.rejected.iter().any(|rejected| rejected.lever == "activation-budget"));
}

#[test]
fn a_script_that_compiles_its_model_itself_may_keep_a_share() {
    let mut trial = Fused { own: true, each: 200.0, again: [5.0, 5.0], ..fused() };
    let limits = Limits { budget: trial.budget, most_runs: 60, ..Limits::default() };
    let found = search(&mut trial, &limits).unwrap().unwrap();
    assert_eq!(compiled(&found).0, None);
    assert!(matches!(compiled(&found).1, Some(Value::Count(_))));
    assert!(trial.tried.iter().all(|candidate| candidate.value(Lever::Compile).is_none()));
}

#[test]
fn the_whole_model_goes_in_fewer_pieces_where_it_keeps_less() {
    // The same holds if random numbers forbid activation budgets, or if it is slightly slower with the same
    // number of micro-batches.
    for (draws, whole) in [(true, 780.0), (false, 805.0)] {
        let mut trial = Fused {
            budget: 4 * GIB,
            times: [1000.0, 800.0, whole],
            each: 40.0,
            again: [1000.0, 1000.0],
            of_whole: 50,
            draws,
            ..fused()
        };
        let found = answer(&mut trial);
        assert_eq!(compiled(&found), (Some(&Value::default()), None));
        let chosen = found.chosen.unwrap();
        assert_eq!(chosen.candidate.pieces, 2, "{}", chosen.candidate.describe());
    }
}

#[test]
fn scripts_with_batches_of_their_own_get_fewer_micro_batches_with_a_share_too() {
    // Fifteen samples can only form one, three, five or fifteen micro-batches.
    let names = vec!["batch_size".to_owned()];
    let mut trial = Fused { names, batch: 15, each: 200.0, again: [5.0, 5.0], budget: 2 * GIB, ..fused() };
    let found = answer(&mut trial);
    let chosen = found.chosen.as_ref().unwrap();
    assert_eq!(chosen.candidate.micro_batch, None, "{}", chosen.candidate.describe());
    assert!(matches!(compiled(&found).1, Some(Value::Count(_))));
}

#[test]
fn a_plan_that_is_the_whole_model_does_not_say_that_it_was_not_taken() {
    let mut trial = Fused { times: [1000.0, 990.0, 700.0], again: [10.0, 10.0], ..fused() };
    let found = answer(&mut trial);
    assert_eq!(compiled(&found).0, Some(&Value::default()));
    assert_eq!(why_not(&found), "");
}

#[test]
fn nothing_is_said_of_shares_where_nothing_is_compiled() {
    let mut trial = Fused { times: [1000.0, 2000.0, 2000.0], ..fused() };
    let found = answer(&mut trial);
    assert_eq!(compiled(&found), (None, None));
    let shares = |candidate: &&Candidate| {
        candidate.value(Lever::ActivationBudget).is_some() && candidate.value(Lever::Compile).is_none()
    };
    assert_eq!(trial.tried.iter().filter(shares).count(), 0);
}
