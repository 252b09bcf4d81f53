//! Tests of the search over several GPUs against all combinations in small worlds.

use std::collections::HashMap;
use std::fmt::Write as _;

use memfit_vocabulary::{Framework, Parallel};

use super::*;
use crate::search::spread::{Machines, search_spread};
use crate::trial::{Busy, RankTrial};

/// Share of the computing time that autocast leaves.
const HALF_TIME: f64 = 0.6;

/// Training on several GPUs whose memory and time follow from a few numbers.
#[derive(Clone, Debug)]
struct World {
    /// Bytes of parameters, of gradients, and of optimizer state.
    model: u64,
    /// Bytes of activations per sample in one block.
    kept: u64,
    blocks: u64,
    batch: u64,
    budget: u64,
    /// Milliseconds per sample, and per gigabyte within a machine and between machines.
    sample_ms: f64,
    near_ms: f64,
    far_ms: f64,
    gpus: u32,
    couples_samples: bool,
    /// Bytes that the last rank needs more than the first.
    last: u64,
    tensor: bool,
    framework: Option<Framework>,
    runs: HashMap<String, u64>,
}

impl World {
    fn new() -> Self {
        Self {
            model: 4 * GIB,
            kept: GIB / 64,
            blocks: 8,
            batch: 64,
            budget: 16 * GIB,
            sample_ms: 4.0,
            near_ms: 3.0,
            far_ms: 25.0,
            gpus: 8,
            couples_samples: false,
            last: 0,
            tensor: false,
            framework: None,
            runs: HashMap::new(),
        }
    }

    /// Peak and step time of a candidate.
    fn evaluate(&self, candidate: &Candidate) -> (u64, f64) {
        let parallel = candidate.parallel.unwrap_or_default();
        let share = parallel.share(self.batch);
        let samples = candidate.micro_batch.unwrap_or(share).min(share);
        let pieces = share.div_ceil(samples) as f64;
        let half = candidate.value(Lever::AutocastBf16).is_some();
        let again = match candidate.value(Lever::Checkpointing) {
            Some(Value::Names(names)) => names.len() as u64,
            _ => 0,
        };
        let divided = u64::from(parallel.shard * parallel.tensor);
        let gathered = if parallel.shard > 1 && parallel.reshard_after_forward {
            self.model / self.blocks
        } else {
            self.model
        };
        let states = if divided > 1 { 4 * self.model / divided + gathered } else { 4 * self.model };
        let kept = self.kept * samples / if half { 2 } else { 1 };
        let activations = kept * (self.blocks - again) + again * kept / 10 + if again > 0 { kept } else { 0 };
        let gib = self.model as f64 / GIB as f64;
        let group = |size: u32, inner: u32| {
            if size < 2 {
                0.0
            } else if size * inner <= self.gpus {
                self.near_ms
            } else {
                self.far_ms
            }
        };
        let gathers = if parallel.reshard_after_forward { 3.0 } else { 2.0 };
        let communication = gib
            * (group(parallel.shard, parallel.tensor) * gathers * pieces.max(1.0)
                + group(parallel.replicate, parallel.shard * parallel.tensor) * 2.0
                    / f64::from(parallel.shard * parallel.tensor)
                + group(parallel.tensor, 1) * 4.0);
        let compute = share as f64 * self.sample_ms / f64::from(parallel.tensor)
            * if half { HALF_TIME } else { 1.0 }
            * (1.0 + again as f64 / self.blocks as f64 / 3.0);
        (states + activations, compute + communication + pieces * 0.5)
    }

    fn outcome(&self, candidate: &Candidate, room: Room, extra: u64) -> Outcome {
        let parallel = candidate.parallel.unwrap_or_default();
        let (peak, time) = self.evaluate(candidate);
        let peak = peak + extra;
        let share = parallel.share(self.batch);
        let half = candidate.value(Lever::AutocastBf16).is_some();
        let samples = candidate.micro_batch.unwrap_or(share).min(share);
        let kept = self.kept * samples / if half { 2 } else { 1 };
        let sample_ms = self.sample_ms / f64::from(parallel.tensor) * if half { HALF_TIME } else { 1.0 };
        let refused = (parallel.tensor > 1 && !self.tensor)
            .then(|| ("shard".to_owned(), "the model has no two linear layers in one module".to_owned()));
        Outcome {
            fits: room == Room::Boundless || peak <= self.budget,
            peak: Expected { device_upper: peak, step_ms: Some(time), ..Expected::default() },
            busy: Busy { compute: time, ..Busy::default() },
            refused: refused.into_iter().collect(),
            training: Some(Training {
                batch: self.batch,
                own_accumulation: 1,
                couples_samples: self.couples_samples,
                parts: Parts::TrainAsWhole,
                optimizes: true,
                framework: self.framework,
                parameters: self.model,
                trained: self.model,
                state: 2 * self.model,
                processes: 1,
                blocks: (0..self.blocks)
                    .map(|index| Measured {
                        name: format!("h.{index}"),
                        kept,
                        busy_ns: (samples as f64 * sample_ms / self.blocks as f64 / 3.0 * 1e6) as u64,
                        output: kept / 10,
                    })
                    .collect(),
                ..Training::default()
            }),
            ..Outcome::default()
        }
    }
}

impl Trial for World {
    type Error = ();

    fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
        *self.runs.entry(candidate.describe()).or_default() += 1;
        Ok(Some(self.outcome(candidate, room, 0)))
    }
}

impl RankTrial for World {
    fn run_rank(&mut self, candidate: &Candidate, room: Room, rank: u32) -> Result<Option<Outcome>, ()> {
        let extra = if rank > 0 { self.last } else { 0 };
        Ok(Some(self.outcome(candidate, room, extra)))
    }
}

fn asked(world: &World, allow: Label) -> Limits {
    Limits { has_bf16: true, cards: world.gpus, most_runs: 240, ..limits(world.budget, allow) }
}

fn spread(world: &mut World, machines: u32) -> Answer {
    let limits = asked(world, Label::Precision);
    let gpus = world.gpus;
    search_spread(world, &limits, Machines { gpus, count: machines }).unwrap().unwrap()
}

fn chosen(answer: &Answer) -> (Parallel, f64) {
    let chosen = answer.chosen.as_ref().unwrap();
    (chosen.candidate.parallel.unwrap(), milliseconds(&chosen.outcome))
}

fn why(answer: &Answer) -> &str {
    &answer.rejected.iter().find(|rejected| rejected.lever == "parallel").unwrap().why
}

#[test]
fn a_library_replicates_or_shards_over_all_gpus_with_what_it_has_settings_for() {
    for (framework, model) in
        [(Framework::Accelerate, GIB), (Framework::Lightning, 12 * GIB), (Framework::Transformers, 20 * GIB)]
    {
        let mut world = World { framework: Some(framework), model, tensor: true, ..World::new() };
        let answer = spread(&mut world, 1);
        let (parallel, _) = chosen(&answer);
        assert!(parallel.replicate == 8 || parallel.shard == 8, "{parallel}");
        assert!(answer.advice.iter().any(|advice| advice.contains(framework.title())), "{:?}", answer.advice);
        let ways = answer.tried.iter().filter_map(|tried| tried.candidate.parallel);
        // The last tries ask whether fewer GPUs are enough.
        assert!(ways.clone().all(|way| way.tensor == 1));
        assert!(ways.filter(|way| way.world() == 8).all(|way| way.shard == 1 || way.shard == 8));
        for setting in &answer.chosen.as_ref().unwrap().candidate.settings {
            let keywords = setting.lever.declaration().keywords;
            let has_setting = keywords.iter().any(|keyword| keyword.framework == framework);
            assert!(has_setting || setting.lever.environment().is_some(), "{}", setting.lever);
        }
    }
    let mut own_loop = World { model: GIB, ..World::new() };
    assert!(spread(&mut own_loop, 1).advice.iter().any(|advice| advice.contains("memfit.Step")));
}

/// The fastest of all combinations that fit: every kind of parallelism, every micro-batch size, every number
/// of recomputed blocks, with and without autocast.
fn exhaustive(world: &World, machines: u32, levers: bool) -> Option<f64> {
    let all = world.gpus * machines;
    let mut best: Option<f64> = None;
    for shard in (1..=all).filter(|shard| all.is_multiple_of(*shard)) {
        for reshard_after_forward in [true, false] {
            let parallel =
                Parallel { shard, replicate: all / shard, reshard_after_forward, ..Parallel::default() };
            let share = world.batch / u64::from(all);
            for micro_batch in 1..=if levers { share } else { 1 } {
                for again in 0..=if levers { world.blocks } else { 0 } {
                    for half in [false, true] {
                        if half && !levers {
                            continue;
                        }
                        let mut candidate = Candidate { parallel: Some(parallel), ..Candidate::as_is() };
                        if levers && micro_batch < share {
                            candidate.micro_batch = Some(micro_batch);
                            candidate.pieces = share.div_ceil(micro_batch);
                        }
                        if again > 0 {
                            let names = (0..again).map(|index| format!("h.{index}")).collect();
                            candidate = candidate.with_lever(Lever::Checkpointing, Value::Names(names));
                        }
                        if half {
                            candidate = candidate.with_lever(Lever::AutocastBf16, Value::default());
                        }
                        let (peak, time) = world.evaluate(&candidate);
                        if peak <= world.budget && best.is_none_or(|best| time < best) {
                            best = Some(time);
                        }
                    }
                }
            }
        }
    }
    best
}

#[test]
fn replicas_win_where_the_model_fits() {
    let mut world = World { model: GIB, ..World::new() };
    let answer = spread(&mut world, 1);
    let (parallel, _) = chosen(&answer);
    assert_eq!((parallel.replicate, parallel.shard), (8, 1), "{parallel}");
    assert_eq!(answer.verdict, Verdict::FitsWithPlan);
    assert!(answer.chosen.as_ref().unwrap().candidate.settings.is_empty(), "no lever is needed");
    // The model and the whole batch fit on one of them.
    assert_eq!(answer.fewest, Some(1), "{:?}", answer.advice);
    assert!(answer.evaluations < 20, "{} runs", answer.evaluations);
}

#[test]
fn another_global_batch_is_accumulated_on_all_gpus() {
    for (wanted, accumulate) in [(None, 1), (Some(64), 1), (Some(128), 2), (Some(512), 8)] {
        let mut world = World { model: GIB, ..World::new() };
        let limits = Limits { global_batch: wanted, ..asked(&world, Label::Precision) };
        let answer = search_spread(&mut world, &limits, Machines { gpus: 8, count: 1 }).unwrap().unwrap();
        let chosen = answer.chosen.unwrap().candidate;
        assert_eq!((chosen.accumulate, chosen.parallel.unwrap().world()), (accumulate, 8), "{wanted:?}");
    }
}

/// Plans for several GPUs as text.
#[test]
fn plans_for_several_gpus() {
    let world = World { model: GIB, ..World::new() };
    let mut all = String::new();
    for (name, mut world, machines) in [
        ("replicas", world.clone(), 1),
        ("shards", World { model: 5 * GIB, budget: 10 * GIB, ..World::new() }, 1),
        ("a slow network", World { model: 5 * GIB, budget: 12 * GIB, batch: 256, ..World::new() }, 4),
        ("with levers", World { kept: GIB / 4, budget: 9 * GIB, ..World::new() }, 1),
        ("slower than one", World { near_ms: 3_000.0, ..world.clone() }, 1),
        ("a batch that cannot be shared", World { batch: 12, ..world.clone() }, 1),
        ("by tensors", World { batch: 12, tensor: true, ..world.clone() }, 1),
        ("nothing fits", World { model: 40 * GIB, ..world }, 1),
    ] {
        let answer = spread(&mut world, machines);
        let _ = writeln!(all, "== {name}\n{}", super::answers::text(&answer));
        let _ = writeln!(
            all,
            "ranks: {:?}, fewest: {:?}",
            answer.ranks.iter().map(|(rank, _)| rank).collect::<Vec<_>>(),
            answer.fewest
        );
    }
    insta::assert_snapshot!(all);
}

#[test]
fn that_one_gpu_is_faster_than_all_is_said() {
    let faster = |near_ms: f64| {
        let mut world = World { model: GIB, near_ms, ..World::new() };
        let answer = spread(&mut world, 1);
        answer.advice.iter().any(|advice| advice.contains("one of these GPUs is faster"))
    };
    assert!(!faster(3.0) && faster(3_000.0));
}

#[test]
fn shards_win_where_it_does_not_and_stay_within_a_machine() {
    let mut world = World { model: 5 * GIB, budget: 10 * GIB, ..World::new() };
    let answer = spread(&mut world, 1);
    let (parallel, _) = chosen(&answer);
    assert!(parallel.shard >= 4, "{parallel}");
    assert!(answer.ranks.iter().map(|(rank, _)| *rank).eq([0, 7]), "{:?}", answer.ranks);
    // Over a slow network, replicas of a machine's shards exchange the least.
    let mut world = World { model: 5 * GIB, budget: 12 * GIB, batch: 256, ..World::new() };
    let (parallel, _) = chosen(&spread(&mut world, 4));
    assert_eq!((parallel.replicate, parallel.shard), (4, 8), "{parallel}");
}

#[test]
fn levers_are_added_where_no_spread_fits() {
    let mut world = World { kept: GIB / 4, budget: 9 * GIB, ..World::new() };
    let answer = spread(&mut world, 1);
    let chosen = answer.chosen.as_ref().unwrap();
    assert!(chosen.fits() && !chosen.candidate.describe().is_empty(), "{chosen:?}");
    assert!(chosen.candidate.micro_batch.is_some() || !chosen.candidate.settings.is_empty());
    assert!(answer.training.batch == 64, "the batch is the script's, not a rank's");
}

#[test]
fn trainings_that_cannot_be_spread_are_planned_for_one_gpu_with_the_reason() {
    let mut world = World { couples_samples: true, model: GIB, ..World::new() };
    let answer = spread(&mut world, 1);
    assert!(why(&answer).contains("batch normalisation"), "{}", why(&answer));
    let mut world = World { batch: 12, model: GIB, ..World::new() };
    let answer = spread(&mut world, 1);
    assert!(why(&answer).contains("cannot share the 12 samples"), "{}", why(&answer));
    // Ranks of tensor parallelism see the same samples.
    let mut world = World { batch: 12, model: GIB, tensor: true, ..World::new() };
    let (parallel, _) = chosen(&spread(&mut world, 1));
    assert!(parallel.tensor > 1 && 12 % parallel.batches() == 0, "{parallel}");
}

#[test]
fn a_last_rank_that_never_fits_refutes_the_plan() {
    let mut world = World { model: 5 * GIB, budget: 10 * GIB, last: 10 * GIB, ..World::new() };
    let answer = spread(&mut world, 1);
    assert!(answer.chosen.is_none() && why(&answer).contains("not on the last"), "{answer:?}");
}

#[test]
fn plans_that_do_not_fit_on_the_last_rank_are_replaced_by_the_next() {
    // Replicas just fit, and shards would leave room for the last rank's additional bytes.
    let mut world = World { model: 3 * GIB, budget: 13 * GIB, last: GIB, ..World::new() };
    let answer = spread(&mut world, 1);
    let (parallel, _) = chosen(&answer);
    assert!(parallel.shard > 1 && why(&answer).contains("not on the last"), "{answer:?}");
    assert!(answer.ranks.iter().all(|(_, peak)| peak.device_upper <= 13 * GIB), "{:?}", answer.ranks);
    assert_eq!(answer.ranks.len(), 2);
    // Nothing fits without levers; the last rank needs more levers.
    for last in [GIB / 4, GIB, 2 * GIB] {
        let mut world = World { kept: GIB / 4, budget: 9 * GIB, last, ..World::new() };
        let answer = spread(&mut world, 1);
        assert!(answer.chosen.is_some(), "{last}: {answer:?}");
        assert!(answer.ranks.iter().all(|(_, peak)| peak.device_upper <= 9 * GIB), "{:?}", answer.ranks);
        assert!(answer.ranks.iter().map(|(rank, _)| *rank).eq([0, 7]), "{:?}", answer.ranks);
    }
}

#[test]
fn a_model_too_large_for_any_way_to_spread_it_is_searched_on_one_gpu() {
    let mut world = World { model: 400 * GIB, batch: 8, ..World::new() };
    let answer = spread(&mut world, 1);
    assert_eq!(answer.verdict, Verdict::DoesNotFit);
    assert!(
        why(&answer).contains("shard 8: parameters and gradients alone take 50.00 GiB"),
        "{}",
        why(&answer)
    );
    // The levers were searched for nevertheless.
    let considered = |rejected: &Rejected| rejected.why.contains("it is not enough");
    assert!(answer.rejected.iter().any(considered), "{:?}", answer.rejected);
}

#[test]
fn a_plan_for_one_gpu_is_found_where_the_batch_must_not_be_shared() {
    let mut world = World { couples_samples: true, model: GIB, budget: 9 * GIB, ..World::new() };
    let answer = spread(&mut world, 1);
    assert_eq!(answer.verdict, Verdict::FitsWithPlan, "{answer:?}");
    assert!(answer.chosen.as_ref().is_some_and(|chosen| chosen.candidate.parallel.is_none()), "{answer:?}");
    assert!(why(&answer).contains("batch normalisation"), "{}", why(&answer));
}

#[test]
fn an_interrupted_run_of_the_last_rank_ends_the_search() {
    struct Interrupted(World);
    impl Trial for Interrupted {
        type Error = ();
        fn run(&mut self, candidate: &Candidate, room: Room) -> Result<Option<Outcome>, ()> {
            self.0.run(candidate, room)
        }
    }
    impl RankTrial for Interrupted {
        fn run_rank(&mut self, _: &Candidate, _: Room, _: u32) -> Result<Option<Outcome>, ()> {
            Ok(None)
        }
    }
    let world = World { model: GIB, ..World::new() };
    let limits = asked(&world, Label::Precision);
    let machines = Machines { gpus: 8, count: 1 };
    let answer = search_spread(&mut Interrupted(world), &limits, machines).unwrap().unwrap();
    assert!(answer.interrupted && answer.chosen.is_none(), "{answer:?}");
    let on_card = answer.tried.iter().filter(|tried| tried.on_card && tried.candidate.parallel.is_some());
    assert_eq!(on_card.count(), 1, "nothing runs after the interrupt");
}

/// Why the answer is not the fastest of all combinations; `None` if it is.
fn missed(world: &mut World, machines: u32) -> Option<String> {
    let best = exhaustive(world, machines, false).or_else(|| exhaustive(world, machines, true));
    let answer = spread(world, machines);
    let found = answer.chosen.as_ref().map(|chosen| milliseconds(&chosen.outcome));
    match (found, best) {
        (Some(found), Some(best)) if found <= best * 1.01 + 1e-9 => None,
        (None, None) => None,
        _ => {
            let chosen = answer.chosen.map(|chosen| chosen.candidate.describe());
            Some(format!("found {found:?} ({chosen:?}, {} runs), best {best:?}", answer.evaluations))
        }
    }
}

/// A world of these sizes and times.
fn drawn(sizes: (u64, u64, u64), times: (u32, u32, u32), gpus: u32, machines: u32) -> World {
    let ((model, kept, budget), (near, far, sample)) = (sizes, times);
    World {
        model: model * GIB / 2,
        kept: kept * GIB / 256,
        budget: budget * GIB,
        near_ms: f64::from(near),
        far_ms: f64::from(far),
        sample_ms: f64::from(sample) / 4.0,
        batch: 8 * u64::from(gpus * machines),
        gpus,
        ..World::new()
    }
}

#[test]
fn rare_worlds_are_searched_as_well() {
    // Model, kept, budget, near, far, sample, GPUs.
    for numbers in [(3, 50, 4, 1, 5, 31, 4), (2, 49, 7, 1, 5, 4, 2)] {
        let (model, kept, budget, near, far, sample, gpus) = numbers;
        let mut world = drawn((model, kept, budget), (near, far, sample), gpus, 1);
        assert_eq!(missed(&mut world, 1), None, "{numbers:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_winner_is_that_of_all_combinations(
        model in 1_u64..24,
        kept in 1_u64..64,
        budget in 4_u64..40,
        near in 1_u32..20,
        far in 5_u32..200,
        sample in 1_u32..40,
        gpus in prop::sample::select(vec![2_u32, 4, 8]),
        machines in prop::sample::select(vec![1_u32, 2, 4]),
    ) {
        let mut world = drawn((model, kept, budget), (near, far, sample), gpus, machines);
        prop_assert_eq!(missed(&mut world, machines), None);
    }
}
