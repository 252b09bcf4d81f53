//! Tests of the search on simulated training scripts.

use memfit_vocabulary::{Harm, Measured, Parts, Value};
use proptest::prelude::*;

use super::divide::sizes;
use super::*;
use crate::plan::Expected;

mod answers;
mod levers;
mod limit;
mod optimum;
mod spread;
mod whole;

const GIB: u64 = 1 << 30;

/// Training that follows the model with an error.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
struct Pretended {
    batch: u64,
    blocks: u64,
    /// Bytes per sample in each block.
    kept: u64,
    fixed: u64,
    budget: u64,
    couples_samples: bool,
    /// `true` if the unchanged script shows that micro-batches train like the whole batch.
    verified: bool,
    /// Bytes unknown to the model, with recomputed blocks.
    surprise: u64,
    /// Bytes of the optimizer state, and of the parameters that it updates.
    state: u64,
    trained: u64,
    optimizes: bool,
    /// `true` if gradients appear as activations are freed, so that the larger of the two counts.
    in_turn: bool,
    runs: u64,
    patience: u64,
    /// Gradient accumulation of the script itself.
    own_accumulation: u64,
    /// `true` if two optimizers alternate.
    alternates: bool,
    /// Time of a sample in a block under autocast; 2 without.
    half_ms: f64,
}

impl Pretended {
    fn peak(&self, candidate: &Candidate) -> u64 {
        let samples = candidate.micro_batch.unwrap_or(self.batch);
        let half = candidate.settings.iter().any(|setting| setting.lever == Lever::AutocastBf16);
        let kept = self.kept * samples / if half { 2 } else { 1 };
        let again = candidate.settings.iter().find_map(|setting| match &setting.value {
            Value::Names(names) => Some(names.len() as u64),
            _ => None,
        });
        let again = again.unwrap_or(0);
        let surprise = if again > 0 { self.surprise } else { 0 };
        let moves = |lever: Lever| candidate.settings.iter().any(|setting| setting.lever == lever);
        let state = match () {
            () if moves(Lever::HostOptimizerState) => 0,
            () if moves(Lever::EightBitOptimizer) || moves(Lever::Adafactor) => self.state / 4,
            () if moves(Lever::Bf16OptimizerState) => self.state / 2,
            () => self.state,
        };
        let gradients = if moves(Lever::OptimizerInBackward) { 0 } else { self.trained };
        let activations =
            kept * (self.blocks - again) + again * kept / 10 + if again > 0 { kept } else { 0 } + surprise;
        let both = if self.in_turn { gradients.max(activations) } else { gradients + activations };
        self.fixed + state + both
    }
}

impl Trial for Pretended {
    type Error = ();

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
        if self.runs >= self.patience {
            return Ok(None);
        }
        self.runs += 1;
        let samples = candidate.micro_batch.unwrap_or(self.batch);
        let peak = self.peak(candidate);
        let half = candidate.settings.iter().any(|setting| setting.lever == Lever::AutocastBf16);
        let again = candidate.settings.iter().any(|setting| matches!(setting.value, Value::Names(_)));
        let time = (self.batch * self.blocks) as f64
            * if half { self.half_ms } else { 2.0 }
            * if again { 1.3 } else { 1.0 }
            + candidate.pieces as f64 * 3.0
            + if candidate.settings.iter().any(|setting| setting.lever == Lever::HostOptimizerState) {
                50.0
            } else {
                0.0
            };
        let kept = self.kept * samples / if half { 2 } else { 1 };
        let blocks = (0..self.blocks)
            .map(|index| Measured {
                name: format!("h.{index}"),
                kept,
                busy_ns: samples * 300_000,
                output: kept / 10,
            })
            .collect();
        Ok(Some(Outcome {
            fits: room == Room::Boundless || peak <= self.budget,
            peak: Expected { device_upper: peak, step_ms: Some(time), ..Expected::default() },
            training: Some(Training {
                batch: self.batch,
                own_accumulation: self.own_accumulation,
                alternates: self.alternates,
                couples_samples: self.couples_samples,
                parts: match self.verified {
                    _ if *candidate != Candidate::as_is() => Parts::Unseen,
                    true => Parts::TrainAsWhole,
                    false => Parts::Unverified("the loss is a sum over the samples".to_owned()),
                },
                optimizes: self.optimizes,
                fusible: self.optimizes,
                state: self.state,
                trained: self.trained,
                blocks: if self.optimizes { blocks } else { Vec::new() },
                ..Training::default()
            }),
            ..Outcome::default()
        }))
    }
}

fn limits(budget: u64, allow: Label) -> Limits {
    Limits { allow, budget, has_bf16: true, most_runs: 60, ..Limits::default() }
}

fn pretended() -> Pretended {
    Pretended {
        batch: 64,
        blocks: 12,
        kept: GIB / 64,
        fixed: GIB,
        budget: 6 * GIB,
        couples_samples: false,
        verified: true,
        surprise: 0,
        state: 0,
        trained: 0,
        optimizes: true,
        in_turn: false,
        runs: 0,
        patience: u64::MAX,
        own_accumulation: 1,
        alternates: false,
        half_ms: 1.0,
    }
}

#[test]
fn fitting_trainings_need_no_plan() {
    let mut trial = Pretended { budget: 100 * GIB, ..pretended() };
    let answer = search(&mut trial, &limits(100 * GIB, Label::Precision)).unwrap().unwrap();
    assert_eq!(answer.verdict, Verdict::FitsAsIs);
    assert_eq!(answer.chosen.unwrap().candidate, Candidate::as_is());
}

#[test]
fn the_global_batch_stays_and_one_sample_more_is_refuted() {
    let mut trial = pretended();
    let budget = trial.budget;
    let answer = search(&mut trial, &limits(budget, Label::Precision)).unwrap().unwrap();
    let chosen = answer.chosen.clone().unwrap();
    assert_eq!(answer.verdict, Verdict::FitsWithPlan);
    assert!(chosen.fits() && trial.peak(&chosen.candidate) <= trial.budget);
    if let Some(micro_batch) = chosen.candidate.micro_batch {
        assert!(chosen.candidate.pieces * micro_batch >= 64);
        let limit = answer.limit.unwrap();
        assert!(limit.largest >= micro_batch);
        assert_eq!(limit.refuted.map(|refuted| refuted - 1), Some(limit.largest));
    }
    assert!(answer.evaluations < 30, "{} runs", answer.evaluations);
    let fused = answer.rejected.iter().find(|rejected| rejected.lever == "fused-optimizer").unwrap();
    assert!(fused.why.contains("no gain"), "{}", fused.why);
}

#[test]
fn nothing_is_done_that_is_not_allowed() {
    let mut trial = Pretended { couples_samples: true, ..pretended() };
    let budget = trial.budget;
    let answer = search(&mut trial, &limits(budget, Label::Exact)).unwrap().unwrap();
    let chosen = answer.chosen.clone().unwrap();
    assert_eq!(chosen.candidate.micro_batch, None);
    assert!(chosen.candidate.settings.iter().all(|setting| setting.label == Label::Exact));
    for lever in ["micro-batch", "autocast-bf16", "fused-optimizer"] {
        assert!(answer.rejected.iter().any(|rejected| rejected.lever == lever), "{lever}");
    }
}

#[test]
fn a_batch_of_which_nothing_is_shown_stays_whole() {
    let divided = |allow: Label| {
        let mut trial = Pretended { verified: false, ..pretended() };
        let answer = search(&mut trial, &limits(6 * GIB, allow)).unwrap().unwrap();
        let why = answer.rejected.iter().find(|rejected| rejected.lever == "micro-batch");
        (answer.chosen.unwrap().candidate.micro_batch.is_some(), why.map(|rejected| rejected.why.clone()))
    };
    let (is_divided, why) = divided(Label::Precision);
    assert!(!is_divided);
    assert!(why.is_some_and(
        |why| why.contains("not verified, because the loss is a sum") && why.contains("--allow")
    ));
    assert!(divided(Label::ChangesTraining).0);
}

#[test]
fn a_lever_that_is_not_wanted_is_neither_moved_nor_advised() {
    let levers = [Lever::MicroBatch, Lever::Checkpointing, Lever::AutocastBf16];
    for (budget, wanted) in [(6 * GIB, Some(Lever::Checkpointing)), (GIB, None)] {
        for unwanted in levers {
            let mut trial = Pretended { budget, ..pretended() };
            let asked = Limits { without: vec![unwanted], ..limits(budget, Label::Precision) };
            let answer = search(&mut trial, &asked).unwrap().unwrap();
            let moved = |candidate: &Candidate, lever: Lever| match lever {
                Lever::MicroBatch => candidate.micro_batch.is_some(),
                lever => candidate.value(lever).is_some(),
            };
            // If nothing fits, the largest fitting batch is searched nevertheless.
            let may_be_smaller = unwanted == Lever::MicroBatch && answer.chosen.is_none();
            let tried = answer.tried.iter().any(|tried| moved(&tried.candidate, unwanted));
            assert!(!tried || may_be_smaller, "{unwanted}");
            let told = format!("excluded by `--without {unwanted}`");
            assert!(answer.rejected.iter().any(|rejected| rejected.why == told), "{unwanted}");
            // The same for a lever that a change of the script cannot contain, with its own reason.
            let unwritable = vec![(unwanted, "it has no lines".to_owned())];
            let asked = Limits { without: Vec::new(), unwritable, ..asked };
            let same = search(&mut Pretended { budget, ..pretended() }, &asked).unwrap().unwrap();
            assert_eq!(same.chosen, answer.chosen);
            let told = "it cannot be written as a change of the script: it has no lines";
            assert!(same.rejected.iter().any(|rejected| rejected.why == told), "{unwanted}");
            if let (Some(wanted), Lever::MicroBatch) = (wanted, unwanted) {
                let chosen = answer.chosen.unwrap();
                assert!(chosen.fits() && moved(&chosen.candidate, wanted), "{:?}", chosen.candidate);
            }
        }
    }
}

#[test]
fn a_change_gets_the_best_plan_that_it_can_carry() {
    let levers = |answer: &Answer| {
        let chosen = &answer.chosen.as_ref().unwrap().candidate;
        chosen.settings.iter().map(|setting| setting.lever).collect::<Vec<_>>()
    };
    let limits = limits(6 * GIB, Label::Precision);
    let mut trial = pretended();
    let best = search(&mut trial, &limits).unwrap().unwrap();
    assert!(levers(&best).contains(&Lever::AutocastBf16));
    let mut carried = |unwritable: &'static [Lever]| {
        let left_out = |answer: &Answer| {
            let left = levers(answer).into_iter().filter(|lever| unwritable.contains(lever));
            left.map(|lever| (lever, "it has no lines".to_owned())).collect()
        };
        search_carried(&mut trial, &limits, &best, left_out).unwrap()
    };
    assert_eq!(carried(&[]).as_ref(), Some(&best));
    let next = carried(&[Lever::AutocastBf16]).unwrap();
    assert_eq!(next.verdict, Verdict::FitsWithPlan);
    assert!(!levers(&next).contains(&Lever::AutocastBf16));
    let slower =
        milliseconds(&next.chosen.unwrap().outcome) > milliseconds(&best.chosen.clone().unwrap().outcome);
    assert!(slower);
    // A search that was ended early has a plan nevertheless, and no further one.
    let early = Answer { interrupted: true, ..best.clone() };
    let carried = |left_out: &dyn Fn(&Answer) -> Vec<(Lever, String)>| {
        search_carried(&mut pretended(), &limits, &early, left_out).unwrap()
    };
    assert!(carried(&|_| Vec::new()).is_some());
    assert!(carried(&|_| vec![(Lever::AutocastBf16, String::new())]).is_none());
    // A lever that cannot be excluded ends the search.
    let always = |_: &Answer| vec![(Lever::AutocastBf16, String::new())];
    assert!(search_carried(&mut pretended(), &limits, &best, always).unwrap().is_none());
}

#[test]
fn savings_that_show_only_after_checkpointing_are_found() {
    // With the whole batch, activations determine the peak; with recomputation, gradients do.
    let mut trial = Pretended {
        in_turn: true,
        couples_samples: true,
        state: 4 * GIB,
        trained: 4 * GIB,
        budget: 7 * GIB + GIB / 2,
        ..pretended()
    };
    let asked = Limits { link: Some(1e10), ..limits(trial.budget, Label::Exact) };
    let answer = search(&mut trial, &asked).unwrap().unwrap();
    let chosen = answer.chosen.unwrap();
    assert!(chosen.fits() && chosen.candidate.value(Lever::OptimizerInBackward).is_some(), "{chosen:?}");
    assert!(chosen.candidate.value(Lever::HostOptimizerState).is_none(), "{chosen:?}");
    assert!(answer.evaluations < 30, "{} runs", answer.evaluations);
}

/// Fine-tuning on images: trainable parameters and image size could both be reduced.
struct Tuned(Pretended);

impl Trial for Tuned {
    type Error = ();

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
        let Some(mut outcome) = self.0.run(candidate, room)? else { return Ok(None) };
        let peak = &mut outcome.peak;
        if candidate.value(Lever::Lora).is_some() {
            peak.device_upper -= self.0.state + self.0.trained;
        }
        if candidate.value(Lever::ResizeBeforeUpload).is_some() {
            peak.device_upper = self.0.fixed + (peak.device_upper - self.0.fixed) / 4;
            peak.step_ms = peak.step_ms.map(|step_ms| step_ms / 4.0);
        }
        outcome.fits = room == Room::Boundless || peak.device_upper <= self.0.budget;
        if let Some(training) = &mut outcome.training {
            training.pictures = (512, 512);
            training.pretrained = true;
            training.processes = 1;
            training.parameters = training.trained;
            training.linears = training.trained;
        }
        Ok(Some(outcome))
    }
}

#[test]
fn harmful_levers_are_used_only_if_nothing_milder_fits() {
    let levers = [Lever::EightBitOptimizer, Lever::Adafactor, Lever::Lora, Lever::ResizeBeforeUpload];
    let tuned = |budget: u64, without: &[Lever]| {
        // One sample, one block: nothing can be divided or recomputed.
        let mut trial = Tuned(Pretended {
            batch: 1,
            blocks: 1,
            kept: 16 * GIB,
            state: 2 * GIB,
            trained: GIB,
            budget,
            ..pretended()
        });
        let asked = Limits { without: without.to_vec(), ..limits(budget, Label::ChangesTraining) };
        search(&mut trial, &asked).unwrap().unwrap()
    };
    let harm = |answer: &Answer| answer.chosen.as_ref().unwrap().candidate.harm();
    let why = |answer: &Answer, lever: Lever| {
        let of_it = answer.rejected.iter().find(|rejected| rejected.lever == lever.name());
        of_it.map(|rejected| rejected.why.clone()).unwrap_or_default()
    };
    // With half of the activations, an optimizer state in fewer bits fits: smaller images would be faster.
    let mild = tuned(11 * GIB, &[]);
    assert_eq!(harm(&mild), Harm::Digits, "{}", mild.chosen.unwrap().candidate.describe());
    let resized = why(&mild, Lever::ResizeBeforeUpload);
    assert!(
        resized.contains("a plan that changes the training less fits") && resized.contains("GiB"),
        "{resized}"
    );
    assert!(mild.advice.iter().all(|advice| !advice.contains("harm")), "{:?}", mild.advice);
    // Without the mild lever, the next one that helps is used, and the answer says so.
    let rest =
        [Lever::Bf16OptimizerState, Lever::PureBf16, Lever::HostOptimizerState, Lever::OptimizerInBackward];
    let mut without = rest.to_vec();
    for (gone, wanted) in levers.iter().zip([Harm::Rule, Harm::Model, Harm::Samples]) {
        without.push(*gone);
        let answer = tuned(11 * GIB, &without);
        assert_eq!(harm(&answer), wanted, "{}", answer.chosen.unwrap().candidate.describe());
        assert!(
            answer.advice.iter().any(|advice| advice.contains("changes the training less")),
            "{:?}",
            answer.advice
        );
    }
    // A forbidden lever is reported as such and not tried.
    let limits = limits(11 * GIB, Label::Precision);
    let mut strict = Tuned(Pretended { batch: 1, blocks: 1, kept: 16 * GIB, state: 3 * GIB, ..pretended() });
    strict.0.budget = 11 * GIB;
    let answer = search(&mut strict, &limits).unwrap().unwrap();
    assert_eq!(answer.verdict, Verdict::DoesNotFit);
    assert!(why(&answer, Lever::ResizeBeforeUpload).contains("not allowed"), "{:?}", answer.rejected);
}

#[test]
fn a_script_that_helps_itself_is_planned_for_and_kept_where_nothing_is_faster() {
    /// Training that handles running out of memory itself, by reducing its batch.
    struct Helps(Pretended, f64);
    impl Trial for Helps {
        type Error = ();
        fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
            let mut outcome = self.0.run(candidate, room)?;
            if let Some(outcome) =
                outcome.as_mut().filter(|outcome| !outcome.fits && *candidate == Candidate::as_is())
            {
                outcome.fits = true;
                outcome.recovered = true;
                outcome.peak =
                    Expected { device_upper: self.0.budget, step_ms: Some(self.1), ..Expected::default() };
            }
            Ok(outcome)
        }
    }
    for (own_ms, verdict) in [(1e9, Verdict::FitsWithPlan), (1.0, Verdict::FitsAsIs)] {
        let mut trial = Helps(pretended(), own_ms);
        let budget = trial.0.budget;
        let answer = search(&mut trial, &limits(budget, Label::Precision)).unwrap().unwrap();
        assert_eq!(answer.verdict, verdict);
        let chosen = answer.chosen.unwrap();
        assert!(chosen.fits() && milliseconds(&chosen.outcome) <= own_ms);
        assert_eq!(chosen.outcome.recovered, verdict == Verdict::FitsAsIs);
        // The baseline is the script without a memory limit, or with its own recovery.
        assert_eq!(answer.baseline.on_card, verdict == Verdict::FitsAsIs);
    }
}

#[test]
fn the_search_learns_from_runs_that_contradict_the_model() {
    let mut trial = Pretended { surprise: GIB, couples_samples: true, ..pretended() };
    let budget = trial.budget;
    let answer = search(&mut trial, &limits(budget, Label::Rounding)).unwrap().unwrap();
    assert_eq!(answer.verdict, Verdict::FitsWithPlan);
}

#[test]
fn where_nothing_fits_it_says_what_would() {
    let mut trial = Pretended { budget: GIB + GIB / 2, couples_samples: true, ..pretended() };
    let budget = trial.budget;
    let answer = search(&mut trial, &limits(budget, Label::Exact)).unwrap().unwrap();
    assert_eq!(answer.verdict, Verdict::DoesNotFit);
    assert!(
        answer.advice.iter().any(|advice| advice.contains("--allow changes-training")),
        "{:?}",
        answer.advice
    );
}

#[test]
fn costly_levers_are_tried_if_memory_is_short_and_their_price_is_reported() {
    // The weights' gradients and the optimizer state alone exceed the GPU.
    let short = Pretended { state: 4 * GIB, trained: 2 * GIB, budget: 6 * GIB, ..pretended() };
    let mut trial = short.clone();
    let asked = Limits { link: Some(1e10), ..limits(trial.budget, Label::Exact) };
    let answer = search(&mut trial, &asked).unwrap().unwrap();
    let chosen = answer.chosen.clone().unwrap();
    let levers: Vec<Lever> = chosen.candidate.settings.iter().map(|setting| setting.lever).collect();
    assert!(
        levers.contains(&Lever::HostOptimizerState) || levers.contains(&Lever::OptimizerInBackward),
        "{levers:?}"
    );
    assert!(!(levers.contains(&Lever::OptimizerInBackward) && chosen.candidate.micro_batch.is_some()));
    for lever in
        [Lever::HostOptimizerState, Lever::OptimizerInBackward].iter().filter(|lever| !levers.contains(lever))
    {
        let why = answer.rejected.iter().find(|rejected| rejected.lever == lever.name());
        assert!(why.is_some_and(|rejected| rejected.why.contains("GiB")), "{lever}");
    }
    assert!(
        answer
            .rejected
            .iter()
            .any(|rejected| rejected.lever == "8-bit-optimizer" && rejected.why.contains("not allowed"))
    );
    // If the GPU has enough memory, they are not tried.
    let mut roomy = Pretended { budget: 40 * GIB, ..short };
    let asked = Limits { link: Some(1e10), ..limits(roomy.budget, Label::Exact) };
    let answer = search(&mut roomy, &asked).unwrap().unwrap();
    let tried = |lever: Lever| {
        answer.tried.iter().any(|tried| tried.candidate.settings.iter().any(|setting| setting.lever == lever))
    };
    assert!(!tried(Lever::HostOptimizerState) && !tried(Lever::OptimizerInBackward));
}

#[test]
fn where_nothing_keeps_the_batch_the_largest_that_fits_is_told() {
    // Blocks cannot be recomputed, and micro-batches would change training results.
    let mut trial = Pretended { couples_samples: true, blocks: 1, kept: GIB, fixed: GIB, ..pretended() };
    let budget = trial.budget;
    let answer = search(&mut trial, &limits(budget, Label::Rounding)).unwrap().unwrap();
    assert_eq!(answer.verdict, Verdict::DoesNotFit);
    let told =
        answer.advice.iter().find(|advice| advice.contains("no allowed plan fits the batch of 64")).unwrap();
    // 1.1 GiB for each sample, plus one.
    assert!(told.contains("4 samples fit") && told.contains("and 5 do not"), "{told}");
    assert!(told.contains("memfit changes neither"));
}

#[test]
fn without_an_optimizer_pieces_are_exact_and_nothing_is_computed_again() {
    let mut trial = Pretended { optimizes: false, ..pretended() };
    let budget = trial.budget;
    let answer = search(&mut trial, &limits(budget, Label::Exact)).unwrap().unwrap();
    let chosen = answer.chosen.clone().unwrap();
    assert_eq!(answer.label_of_micro_batches(), Label::Exact);
    assert!(chosen.candidate.micro_batch.is_some() && chosen.candidate.settings.is_empty());
}

/// Training without measured times.
struct Timeless(Pretended);

impl Trial for Timeless {
    type Error = ();

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
        let mut outcome = self.0.run(candidate, room)?;
        if let Some(outcome) = &mut outcome {
            outcome.peak.step_ms = None;
        }
        Ok(outcome)
    }
}

#[test]
fn where_no_time_is_known_what_fits_is_found_all_the_same() {
    let mut trial = Timeless(pretended());
    let budget = trial.0.budget;
    let answer = search(&mut trial, &limits(budget, Label::Precision)).unwrap().unwrap();
    let chosen = answer.chosen.unwrap();
    assert!(chosen.fits() && trial.0.peak(&chosen.candidate) <= budget);
    assert!(answer.rejected.iter().all(|rejected| !rejected.why.contains("inf")), "{:?}", answer.rejected);
}

#[test]
fn a_levers_error_is_reported() {
    struct Fails(Pretended);
    impl Trial for Fails {
        type Error = ();
        fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
            let mut outcome = self.0.run(candidate, room)?;
            if let Some(outcome) = outcome.as_mut().filter(|_| candidate.value(Lever::AutocastBf16).is_some())
            {
                outcome.fits = false;
                outcome.problem = Some("TypeError: no bf16 here (train.py, line 7)".to_owned());
            }
            Ok(outcome)
        }
    }
    let mut trial = Fails(pretended());
    let budget = trial.0.budget;
    let answer = search(&mut trial, &limits(budget, Label::Precision)).unwrap().unwrap();
    let told = answer.rejected.iter().find(|rejected| rejected.lever == "autocast-bf16").unwrap();
    assert_eq!(told.why, "the script fails with it: TypeError: no bf16 here (train.py, line 7)");
    assert!(answer.chosen.unwrap().candidate.value(Lever::AutocastBf16).is_none());
}

#[test]
fn sizes_waste_no_sample() {
    assert_eq!(sizes(1), [(1, 1)]);
    assert_eq!(sizes(8), [(8, 1), (4, 2), (3, 3), (2, 4), (1, 8)]);
}

proptest! {
    #[test]
    fn a_plan_fits_whenever_there_is_one_and_the_search_ends(
        batch in 1..200_u64,
        blocks in 1..20_u64,
        fixed in 0..4_u64,
        budget in 1..20_u64,
        surprise in 0..2_u64,
        patience in 0..60_u64,
    ) {
        let budget = budget * GIB;
        let mut trial = Pretended {
            batch, blocks, fixed: fixed * GIB, budget, surprise: surprise * GIB / 2, patience, ..pretended()
        };
        if let Some(answer) = search(&mut trial, &limits(budget, Label::Precision)).unwrap() {
            if let Some(chosen) = &answer.chosen {
                prop_assert!(chosen.outcome.fits && (chosen.on_card || answer.interrupted));
                prop_assert!(trial.peak(&chosen.candidate) <= budget);
            }
            let front = answer.front();
            prop_assert!(front.iter().all(|tried| answer.tried.contains(*tried) && tried.outcome.fits));
            prop_assert!(front.is_sorted_by(|a, b| milliseconds(&a.outcome) <= milliseconds(&b.outcome)));
            prop_assert!(answer.evaluations <= 60);
        }
    }
}
