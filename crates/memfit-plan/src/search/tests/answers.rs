//! Whole answers of the search on simulated scripts: what is chosen, rejected and advised, and how many runs
//! that takes.

use std::fmt::Write as _;

use super::*;

#[test]
fn what_would_be_faster_is_said_of_a_script_that_fits() {
    let mut trial = Pretended { budget: 40 * GIB, ..pretended() };
    let answer = search(&mut trial, &limits(40 * GIB, Label::Precision)).unwrap().unwrap();
    assert_eq!(answer.verdict, Verdict::FitsAsIs);
    assert_eq!(answer.chosen.unwrap().candidate, Candidate::as_is());
    let told = answer.advice.iter().find(|advice| advice.contains("a faster step")).unwrap();
    // 64 samples in twelve blocks, half as long under autocast, and 3 ms for the micro-batch.
    assert!(told.contains("771 ms instead of 1.54 s, with 7.00 GiB"), "{told}");
    // With exact levers alone, nothing is faster.
    let answer = search(&mut trial, &limits(40 * GIB, Label::Exact)).unwrap().unwrap();
    assert!(!answer.advice.iter().any(|advice| advice.contains("a faster step")), "{:?}", answer.advice);
}

#[test]
fn why_nothing_is_offloaded_is_said_in_times() {
    let mut trial = Pretended { couples_samples: true, ..pretended() };
    let asked = |link: f64| Limits { link: Some(link), ..limits(6 * GIB, Label::Exact) };
    let answer = search(&mut trial, &asked(1e9)).unwrap().unwrap();
    let told = answer.rejected.iter().find(|one| one.lever == Lever::ActivationOffload.name()).unwrap();
    assert!(
        told.why
            .contains("copying the 1.00 GiB of `h.11` takes 1.07 s each way; 2.09 s of both ways would not overlap with computing, and recomputing takes 19.2 ms"),
        "{}",
        told.why
    );
}

#[test]
fn a_candidate_that_fits_is_the_plan_though_the_search_was_after_another() {
    let training =
        || Training { batch: 64, parts: Parts::TrainAsWhole, optimizes: true, ..Training::default() };
    let ran = |training| Outcome {
        fits: true,
        peak: Expected { device_upper: GIB, step_ms: Some(5.0), ..Expected::default() },
        training: Some(training),
        ..Outcome::default()
    };
    let divided = || Candidate { micro_batch: Some(8), pieces: 8, ..Candidate::as_is() };
    let with = |lever| Candidate::as_is().with_lever(lever, Value::default());
    for (candidate, on_card, rejects, expected) in [
        (divided(), true, false, Verdict::FitsWithPlan),
        (with(Lever::AutocastBf16), true, false, Verdict::FitsWithPlan),
        // A smaller batch, since this one cannot be divided.
        (divided(), true, true, Verdict::DoesNotFit),
        (divided(), false, false, Verdict::DoesNotFit),
        (with(Lever::Adafactor), true, false, Verdict::DoesNotFit),
    ] {
        let (mut trial, limits) = (pretended(), limits(2 * GIB, Label::Precision));
        let mut search = Search::new(&mut trial, &limits);
        search.tried.push(Tried { candidate: candidate.clone(), outcome: ran(training()), on_card });
        if rejects {
            search.reject(Lever::MicroBatch.name(), "");
        }
        let answer = search.answer(ran(training()), None, None, Vec::new());
        assert_eq!(answer.verdict, expected, "{} {on_card} {rejects}", candidate.describe());
    }
}

/// An answer as text.
pub(super) fn text(answer: &Answer) -> String {
    let mut text = format!("{:?} after {} runs", answer.verdict, answer.evaluations);
    if answer.interrupted {
        text += ", interrupted";
    }
    if let Some(chosen) = &answer.chosen {
        let (peak, ms) = (chosen.outcome.peak.device_upper, milliseconds(&chosen.outcome));
        let candidate = &chosen.candidate;
        let _ = write!(
            text,
            "\nchosen: {}, {}, {}",
            candidate.describe(),
            format_size(peak),
            format_milliseconds(ms)
        );
        let _ = write!(text, "; {} pieces, accumulate {}", candidate.pieces, candidate.accumulate);
    }
    if let Some(limit) = answer.limit {
        let _ = write!(text, "\nlimit: {limit:?}");
    }
    for rejected in &answer.rejected {
        let _ = write!(text, "\nrejected {}: {}", rejected.lever, rejected.why);
    }
    for advice in &answer.advice {
        let _ = write!(text, "\nadvice: {advice}");
    }
    text += "\nfront:";
    for tried in answer.front() {
        let (peak, ms) = (tried.outcome.peak.device_upper, milliseconds(&tried.outcome));
        let _ = write!(text, " {} {};", format_size(peak), format_milliseconds(ms));
    }
    text += "\ntried:";
    for tried in &answer.tried {
        let _ = write!(
            text,
            "\n  {}{}",
            tried.candidate.describe(),
            if tried.on_card { "" } else { ", without a limit" }
        );
    }
    text
}

fn said(script: &Pretended, limits: &Limits) -> String {
    let mut script = Pretended { budget: limits.budget, ..script.clone() };
    search(&mut script, limits).unwrap().map_or_else(|| "no answer".to_owned(), |answer| text(&answer))
}

#[test]
fn plans_within_memory() {
    let coupled = Pretended { couples_samples: true, ..pretended() };
    let heavy = Pretended { state: 4 * GIB, trained: 2 * GIB, ..pretended() };
    let linked =
        |bytes_per_s: f64, budget: u64, allow| Limits { link: Some(bytes_per_s), ..limits(budget, allow) };
    let mut all = String::new();
    for (name, script, limits) in [
        ("roomy", pretended(), limits(40 * GIB, Label::Precision)),
        ("short, by precision", pretended(), limits(6 * GIB, Label::Precision)),
        ("short, by rounding", pretended(), limits(6 * GIB, Label::Rounding)),
        (
            "hardly slower without autocast",
            Pretended { half_ms: 1.99, ..pretended() },
            limits(6 * GIB, Label::Precision),
        ),
        ("samples are coupled", coupled.clone(), limits(6 * GIB, Label::Rounding)),
        ("coupled, a slow link", coupled.clone(), linked(1e9, 6 * GIB, Label::Rounding)),
        ("coupled, a fast link", coupled, linked(1e12, 6 * GIB, Label::Rounding)),
        ("much state, exact", heavy.clone(), linked(1e10, 6 * GIB, Label::Exact)),
        ("much state, anything", heavy, linked(1e10, 6 * GIB, Label::ChangesTraining)),
        (
            "slightly slower with autocast",
            Pretended {
                batch: 1,
                blocks: 9,
                kept: GIB / 8,
                fixed: 5 * GIB / 2,
                trained: GIB / 2,
                surprise: 3 * GIB / 4,
                couples_samples: true,
                half_ms: 2.02,
                ..pretended()
            },
            limits(4 * GIB, Label::ChangesTraining),
        ),
        (
            "more than the model knows",
            Pretended { surprise: GIB, ..pretended() },
            limits(3 * GIB, Label::Precision),
        ),
    ] {
        let _ = writeln!(all, "== {name}\n{}", said(&script, &limits));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn where_nothing_fits() {
    let coupled = Pretended { couples_samples: true, ..pretended() };
    let tight = |allow| limits(GIB + GIB / 2, allow);
    let heavy = Pretended { state: 4 * GIB, trained: 2 * GIB, couples_samples: true, ..pretended() };
    let mut all = String::new();
    for (name, script, limits) in [
        ("exact", coupled.clone(), tight(Label::Exact)),
        ("without bf16", coupled.clone(), Limits { has_bf16: false, ..tight(Label::Exact) }),
        ("by precision", coupled.clone(), tight(Label::Precision)),
        ("optimizers alternate", Pretended { alternates: true, ..pretended() }, tight(Label::Rounding)),
        (
            "without an optimizer",
            Pretended { optimizes: false, fixed: 2 * GIB, ..pretended() },
            tight(Label::Rounding),
        ),
        ("one block", Pretended { blocks: 1, kept: GIB, ..coupled }, limits(6 * GIB, Label::Rounding)),
        (
            "too much of everything",
            Pretended { fixed: 2 * GIB, ..pretended() },
            tight(Label::ChangesTraining),
        ),
        ("much state", heavy, Limits { link: Some(1e10), ..limits(3 * GIB, Label::Exact) }),
    ] {
        let _ = writeln!(all, "== {name}\n{}", said(&script, &limits));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn another_global_batch_is_accumulated() {
    let script = Pretended { own_accumulation: 4, ..pretended() };
    let mut all = String::new();
    for wanted in [64, 256, 300, 512] {
        let limits = Limits { global_batch: Some(wanted), ..limits(40 * GIB, Label::Rounding) };
        let _ = writeln!(all, "== {wanted}\n{}", said(&script, &limits));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn a_lever_that_gains_less_than_a_hundredth_is_left_out() {
    let mut all = String::new();
    for half_ms in [2.1, 1.995, 1.97] {
        let script = Pretended { half_ms, ..pretended() };
        let limits = Limits { global_batch: Some(128), ..limits(40 * GIB, Label::Precision) };
        let _ = writeln!(all, "== {half_ms} ms instead of 2\n{}", said(&script, &limits));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn an_interrupted_search_answers_with_what_it_has() {
    let mut all = String::new();
    for patience in [1, 2, 3, 4, 6, 9] {
        let script = Pretended { patience, ..pretended() };
        let limits = limits(6 * GIB, Label::Rounding);
        let _ = writeln!(all, "== after {patience} runs\n{}", said(&script, &limits));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn a_search_that_reaches_its_limit_of_runs_says_so() {
    for (most_runs, patience, limit) in
        [(3, u64::MAX, Some(3)), (u64::MAX, 3, None), (u64::MAX, u64::MAX, None)]
    {
        let mut script = Pretended { patience, ..pretended() };
        let limits = Limits { most_runs, ..limits(6 * GIB, Label::Rounding) };
        let answer = search(&mut script, &limits).unwrap().unwrap();
        assert_eq!(answer.run_limit, limit);
        assert_eq!(answer.interrupted, most_runs == 3 || patience == 3);
    }
}

#[test]
fn the_front_prefers_a_run_on_the_gpu_to_one_without_a_limit() {
    let mut answer = search(&mut pretended(), &limits(6 * GIB, Label::Exact)).unwrap().unwrap();
    let tried = |on_card: bool, fits: bool, device_upper: u64| Tried {
        candidate: Candidate::as_is(),
        outcome: Outcome {
            fits,
            peak: Expected { device_upper, step_ms: Some(10.0), ..Expected::default() },
            ..Outcome::default()
        },
        on_card,
    };
    for (runs, shown) in [
        ([tried(false, true, 5), tried(true, true, 4)], 4),
        ([tried(true, true, 4), tried(false, true, 5)], 4),
        ([tried(false, true, 5), tried(true, false, 3)], 5),
        ([tried(true, false, 3), tried(false, true, 5)], 5),
    ] {
        answer.tried = runs.to_vec();
        let front: Vec<u64> = answer.front().iter().map(|tried| tried.outcome.peak.device_upper).collect();
        assert_eq!(front, [shown], "{runs:?}");
    }
}

/// Training in which some candidates end differently.
struct Altered<F>(Pretended, F);

impl<F: Fn(&Candidate, Room, &mut Outcome)> Trial for Altered<F> {
    type Error = ();

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
        let mut outcome = self.0.run(candidate, room)?;
        if let Some(outcome) = &mut outcome {
            (self.1)(candidate, room, outcome);
        }
        Ok(outcome)
    }
}

#[test]
fn an_interrupted_search_does_not_choose_a_lever_that_was_refused() {
    let refuse = |candidate: &Candidate, _: Room, outcome: &mut Outcome| {
        if candidate.value(Lever::AutocastBf16).is_some() {
            outcome.refused.push((Lever::AutocastBf16.name().to_owned(), "no bf16 here".to_owned()));
        }
    };
    for patience in 3..9 {
        // With autocast, the whole batch would fit and be the fastest.
        let mut trial = Altered(Pretended { budget: 8 * GIB, patience, ..pretended() }, refuse);
        let answer = search(&mut trial, &limits(8 * GIB, Label::Precision)).unwrap().unwrap();
        let chosen = answer.chosen.map(|chosen| chosen.candidate);
        assert!(
            chosen.as_ref().is_none_or(|chosen| chosen.value(Lever::AutocastBf16).is_none()),
            "after {patience} runs: {chosen:?}"
        );
    }
}

#[test]
fn no_smaller_batch_is_advised_if_the_script_refuses_micro_batches() {
    let refuse = |candidate: &Candidate, _: Room, outcome: &mut Outcome| {
        if candidate.micro_batch.is_some() {
            outcome.refused.push((Lever::MicroBatch.name().to_owned(), "no loader was found".to_owned()));
        }
    };
    let script = Pretended { couples_samples: true, blocks: 1, kept: GIB, ..pretended() };
    let answer = search(&mut Altered(script, refuse), &limits(6 * GIB, Label::Rounding)).unwrap().unwrap();
    assert_eq!(answer.verdict, Verdict::DoesNotFit);
    assert!(!answer.advice.iter().any(|advice| advice.contains("samples fit")), "{:?}", answer.advice);
}

#[test]
fn memory_is_short_only_if_the_whole_batch_exceeds_the_budget() {
    // 1 GiB, 12 of activations, 4 of optimizer state, and 2 of gradients.
    let script = Pretended { state: 4 * GIB, trained: 2 * GIB, own_accumulation: 1, ..pretended() };
    for (budget, short) in [(19 * GIB, false), (19 * GIB - 1, true)] {
        let mut script = Pretended { budget, ..script.clone() };
        let limits = Limits { global_batch: Some(128), link: Some(1e10), ..limits(budget, Label::Exact) };
        let answer = search(&mut script, &limits).unwrap().unwrap();
        let tried =
            answer.tried.iter().any(|tried| tried.candidate.value(Lever::HostOptimizerState).is_some());
        assert_eq!(tried, short, "{budget}: {}", text(&answer));
    }
}
