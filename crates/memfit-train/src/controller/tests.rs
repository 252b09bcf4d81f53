//! Decisions of the controller on a simulated device.

use proptest::prelude::*;

use super::*;
use crate::Library;

/// Device on which a micro-batch of `n` samples needs `base + n * each`, and fails above the capacity.
struct Device {
    base: u64,
    each: u64,
    capacity: u64,
    failures: u32,
}

impl Device {
    fn new(capacity: u64) -> Self {
        Self { base: 100, each: 10, capacity, failures: 0 }
    }

    /// Runs a step on a batch of one shape. Returns the final sizes, or the failure.
    fn step(&mut self, controller: &mut Controller, items: u32, known: bool) -> Result<Vec<usize>, Failure> {
        let space = known.then_some(space(self.capacity));
        controller.arrive("shape", 1, items, None, f64::from(items)).expect("a batch");
        let mut sizes = Vec::new();
        while let Some(Turn { part, watched, .. }) = controller.next(0, || space) {
            let size = u32::try_from(part.len()).expect("small");
            let need = self.base + self.each * u64::from(size);
            if need > self.capacity {
                self.failures += 1;
                match controller.failed(0, size, Fault::DeviceMemory(Library::Torch)) {
                    Decision::Again => controller.restart(),
                    Decision::GiveUp(why) => {
                        controller.abandon();
                        return Err(why);
                    }
                }
                sizes.clear();
                continue;
            }
            controller.passed(0, size, watched.then_some(need));
            controller.count(f64::from(size)).expect("a count");
            sizes.push(part.len());
        }
        assert_eq!(controller.window().correction(controller.window().counted()), Ok(1.0));
        controller.stepped(false);
        Ok(sizes)
    }
}

/// Space for a micro-batch with an empty cache.
fn space(room: u64) -> Space {
    Space { room, cached: 0 }
}

fn controller(settings: Settings) -> Controller {
    Controller::new(settings).expect("these are settings")
}

#[test]
fn gradients_are_no_part_of_what_grows() {
    let mut controller = controller(Settings { careful: true, ..Settings::default() });
    controller.gradients_take(1_000);
    controller.arrive("shape", 1, 64, None, 64.0).expect("a batch");
    // One sample needs a tenth of the gradients' bytes, so that eight fit in addition to them; the first peak
    // does not separate the two, the second does.
    let (mut sizes, mut parts) = (Vec::new(), 0);
    while let Some(Turn { part, watched, .. }) = controller.next(0, || Some(space(1_800))) {
        let size = u32::try_from(part.len()).expect("small");
        controller.passed(0, size, watched.then_some(1_000 + 100 * u64::from(size)));
        sizes.push(size);
        parts += size;
    }
    assert_eq!((sizes[..3].to_vec(), parts), (vec![1, 1, 8], 64));
}

#[test]
fn in_pairs_no_sample_is_left_alone() {
    let pairs = Settings { micro_batch: Some(8), pairs: true, ..Settings::default() };
    let mut device = Device::new(1 << 20);
    assert_eq!(device.step(&mut controller(pairs.clone()), 9, true), Ok(vec![7, 2]));
    // After an out-of-memory error, parts are even.
    device.capacity = 150;
    assert_eq!(device.step(&mut controller(pairs), 9, true), Ok(vec![3, 3, 3]));
    assert_eq!(device.failures, 1);
}

#[test]
fn in_pairs_the_careful_start_leaves_none_alone_either() {
    for items in 2..40 {
        for costs in [None, Some((0..u64::from(items)).map(|index| 1 + index % 3).collect())] {
            let mut controller = controller(Settings { careful: true, pairs: true, ..Settings::default() });
            controller.arrive("shape", 1, items, costs, f64::from(items)).expect("a batch");
            let mut sizes = Vec::new();
            while let Some(Turn { part, watched, .. }) = controller.next(0, || Some(space(1 << 20))) {
                let size = u32::try_from(part.len()).expect("small");
                controller.passed(0, size, watched.then_some(100 + 10 * u64::from(size)));
                sizes.push(size);
            }
            assert_eq!(sizes.iter().sum::<u32>(), items);
            assert!(sizes.iter().all(|size| *size > 1), "{items}: {sizes:?}");
        }
    }
}

#[test]
fn a_room_that_differs_by_little_changes_no_size() {
    let mut controller = controller(Settings { careful: true, ..Settings::default() });
    let mut device = Device::new(400);
    device.step(&mut controller, 64, true).expect("it fits");
    let mut sizes = Vec::new();
    for room in [300, 310, 295, 305, 320, 300, 360] {
        device.capacity = room;
        sizes.push(device.step(&mut controller, 64, true).expect("it fits")[0]);
    }
    // Smaller if necessary; larger only if the gain is worth it.
    assert_eq!(sizes, [20, 20, 19, 19, 19, 19, 26]);
    assert_eq!(device.failures, 0);
}

#[test]
fn the_cache_is_emptied_before_what_is_new_and_where_it_is_tight() {
    let mut controller = controller(Settings { careful: true, micro_batch: Some(8), ..Settings::default() });
    let mut run = |shape: &str, elements: u64, cached: u64, asked: bool| {
        let mut was_asked = false;
        controller.arrive(shape, elements, 8, None, 8.0).expect("a batch");
        let turn = controller
            .next(0, || {
                was_asked = true;
                Some(Space { room: 1_000, cached })
            })
            .expect("a part");
        controller.passed(0, 8, turn.watched.then_some(100 + 10 * elements));
        controller.stepped(false);
        assert_eq!(was_asked, asked, "{shape}");
        (turn.empties, turn.watched)
    };
    assert_eq!(run("int64[10]", 10, 500, true), (true, true), "nothing is known");
    assert_eq!(run("int64[40]", 40, 500, true), (true, true), "the square of the ratio is above the room");
    assert_eq!(run("int64[20]", 20, 0, true), (false, false), "between both, and far from the room");
    assert_eq!(run("int64[20]", 20, 0, true), (false, false));
    assert_eq!(run("int64[10]", 10, 900, true), (true, false), "known, and what is cached may be in the way");
    assert_eq!(run("int64[40]", 40, 300, true), (false, false));
}

#[test]
fn repeated_sizes_do_not_query_the_free_memory() {
    let mut controller = controller(Settings { careful: true, micro_batch: Some(8), ..Settings::default() });
    for step in 0..4 {
        controller.arrive("shape", 10, 20, None, 20.0).expect("a batch");
        let mut asked = 0;
        while let Some(turn) = controller.next(0, || {
            asked += 1;
            Some(Space { room: 1_000, cached: 990 })
        }) {
            assert!(step == 0 || !(turn.empties || turn.watched));
            let need = turn.watched.then_some(100 + 10 * turn.part.len() as u64);
            controller.passed(0, u32::try_from(turn.part.len()).expect("small"), need);
        }
        controller.stepped(false);
        // Available memory is queried to split a batch; its micro-batches have run before.
        assert!(step == 0 || asked == 1, "{asked} times in step {step}");
    }
}

#[test]
fn samples_of_different_sizes_are_known_by_the_largest() {
    let mut controller = controller(Settings { careful: true, ..Settings::default() });
    let mut run = |largest: u64| {
        let costs = vec![largest, 10, 10, 10];
        controller.arrive("samples", largest, 4, Some(costs), 4.0).expect("a batch");
        let mut parts = Vec::new();
        while let Some(turn) = controller.next(0, || Some(space(2_000))) {
            // As padded: the number of samples times the largest one.
            let need = 100 + turn.part.len() as u64 * if turn.part.start == 0 { largest } else { 10 };
            controller.passed(0, 1, turn.watched.then_some(need));
            parts.push(turn.part);
        }
        controller.stepped(false);
        parts
    };
    run(100);
    run(200);
    assert_eq!(run(150).len(), 1, "between two that were seen");
    assert_eq!(run(1_000)[0], 0..1, "one that may need 25 times as much is tried alone");
}

#[test]
fn a_batch_that_fits_goes_whole() {
    let mut controller = controller(Settings::default());
    assert_eq!(Device::new(1 << 20).step(&mut controller, 32, false), Ok(vec![32]));
}

#[test]
fn the_size_asked_for_is_taken() {
    let mut controller = controller(Settings { micro_batch: Some(12), ..Settings::default() });
    assert_eq!(Device::new(1 << 20).step(&mut controller, 32, false), Ok(vec![12, 12, 8]));
}

#[test]
fn a_failure_is_run_again_in_smaller_parts_and_remembered() {
    let mut device = Device::new(200);
    let mut controller = controller(Settings::default());
    assert_eq!(device.step(&mut controller, 32, false), Ok(vec![8; 4]));
    assert_eq!(device.failures, 2);
    assert_eq!(controller.survived(), 2);
    assert_eq!(device.step(&mut controller, 32, false), Ok(vec![8; 4]));
    assert_eq!(device.failures, 2, "what failed is not tried again at once");
}

#[test]
fn a_careful_start_meets_no_failure_and_ends_at_what_fits() {
    let mut device = Device::new(200);
    let mut controller = controller(Settings { careful: true, ..Settings::default() });
    let first = device.step(&mut controller, 64, true).expect("it fits");
    assert_eq!(first[..4], [1, 2, 3, 10], "two sizes with existing gradients determine the rest");
    assert_eq!(device.step(&mut controller, 64, true), Ok(vec![10, 10, 10, 10, 10, 10, 4]));
    assert_eq!(device.failures, 0);
}

#[test]
fn one_sample_that_does_not_fit_ends_it() {
    let mut controller = controller(Settings::default());
    assert_eq!(Device::new(50).step(&mut controller, 8, false), Err(Failure::OneSample));
    assert!(controller.window().is_empty());
}

#[test]
fn one_sample_that_fails_where_more_fitted_is_tried_again() {
    let mut controller = controller(Settings { micro_batch: Some(4), ..Settings::default() });
    controller.arrive("shape", 1, 5, None, 5.0).expect("a batch");
    let mut failures = 0;
    loop {
        assert_eq!(
            controller.next(0, || None).map(|turn| turn.part.len()),
            Some(if failures == 0 { 4 } else { 1 })
        );
        controller.passed(0, 1, None);
        controller.next(0, || None);
        failures += 1;
        match controller.failed(0, 1, Fault::DeviceMemory(Library::Torch)) {
            Decision::Again => controller.restart(),
            Decision::GiveUp(why) => {
                break assert_eq!((why, failures), (Failure::OneSample, MAX_SINGLE_FAILURES));
            }
        }
    }
}

#[test]
fn errors_other_than_memory_are_not_retried() {
    let mut controller = controller(Settings::default());
    controller.arrive("shape", 1, 4, None, 4.0).expect("a batch");
    controller.next(0, || None);
    assert_eq!(controller.failed(0, 4, Fault::Sticky), Decision::GiveUp(Failure::Sticky));
    assert_eq!(controller.failed(0, 4, Fault::Other), Decision::GiveUp(Failure::NotMemory));
}

#[test]
fn thrashing_lowers_the_size_before_anything_fails() {
    let mut controller = controller(Settings::default());
    for flushed in [true, true] {
        controller.arrive("shape", 1, 16, None, 16.0).expect("a batch");
        assert_eq!(controller.next(0, || None).map(|turn| turn.part), Some(0..16));
        controller.stepped(flushed);
    }
    controller.arrive("shape", 1, 16, None, 16.0).expect("a batch");
    assert_eq!(controller.next(0, || None).map(|turn| turn.part), Some(0..8));
}

#[test]
fn samples_of_different_sizes_share_by_their_cost() {
    let mut controller = controller(Settings { micro_batch: Some(2), ..Settings::default() });
    controller.arrive("ragged", 100, 5, Some(vec![100, 100, 20, 20, 20]), 5.0).expect("a batch");
    let parts: Vec<Part> = std::iter::from_fn(|| controller.next(0, || None)).map(|turn| turn.part).collect();
    assert_eq!(parts, [0..2, 2..5]);
}

#[test]
fn it_is_remembered_in_the_next_process() {
    let mut device = Device::new(200);
    let mut first = controller(Settings::default());
    device.step(&mut first, 32, false).expect("it fits in the end");
    let text = serde_json::to_string(&first.memory()).expect("it can be written");
    let mut second = controller(Settings::default());
    second.remember(&mut serde_json::Deserializer::from_str(&text)).expect("it can be read");
    device.failures = 0;
    assert_eq!(device.step(&mut second, 32, false), Ok(vec![8; 4]));
    assert_eq!((device.failures, second.windows(), second.survived()), (0, 2, 2));
}

/// A controller that saw micro-batches of these samples, each with a need of 100 and 10 a sample: as a
/// window's first, or after another, whose gradients exist.
fn knowing(settings: Settings, first: &[u32], later: &[u32]) -> Controller {
    let mut controller = controller(settings);
    controller.gradients_take(1_000);
    for (sizes, gradients) in [(first, None), (later, Some(1_000))] {
        for &size in sizes {
            // With gradients: the second batch of a window.
            let index = usize::from(gradients.is_some());
            for _ in 0..=index {
                controller.arrive("shape", 1, size, None, f64::from(size)).expect("a batch");
            }
            controller.next(index, || None).expect("a part");
            let need = 100 + 10 * u64::from(size) + gradients.unwrap_or(0);
            controller.passed(index, size, Some(need));
            controller.abandon();
        }
    }
    controller
}

#[test]
fn needs_are_foreseen_with_and_without_gradients() {
    let nothing = controller(Settings::default());
    assert_eq!(nothing.foreseen("shape", 1, 8, true), None);
    assert_eq!(nothing.largest("shape", 1, 8, 1 << 30), None);
    let first = knowing(Settings::default(), &[2, 4], &[]);
    assert_eq!(first.foreseen("shape", 1, 8, true), Some(180));
    assert_eq!(first.foreseen("shape", 1, 8, false), Some(1_180), "as the first, and all gradients");
    let later = knowing(Settings::default(), &[], &[2, 4]);
    assert_eq!(later.foreseen("shape", 1, 8, true), None);
    assert_eq!(later.foreseen("shape", 1, 8, false), Some(1_180));
    // The whole batch runs before there are gradients; in parts, there are some from the second on.
    assert_eq!(first.largest("shape", 1, 8, 180), Some(8));
    assert_eq!(first.largest("shape", 1, 8, 179), None);
    assert_eq!(first.largest("shape", 1, 200, 1_179), Some(7));
    assert_eq!(first.largest("shape", 1, 200, 1_180), Some(8));
}

#[test]
fn one_more_sample_is_tried_only_where_it_may_fit() {
    // The bound from one sample forbids a second in both rooms; a sample that takes two thirds leaves none.
    for (room, second) in [(165, Some(0..2)), (164, Some(0..1))] {
        let mut controller = controller(Settings { careful: true, ..Settings::default() });
        let mut parts = Vec::new();
        for _ in 0..2 {
            controller.arrive("shape", 1, 9, None, 9.0).expect("a batch");
            let turn = controller.next(0, || Some(space(room))).expect("a part");
            controller.passed(0, 1, turn.watched.then_some(110));
            parts.push(turn.part);
            controller.abandon();
        }
        assert_eq!((parts[0].clone(), parts.pop()), (0..1, second), "room for {room}");
    }
}

#[test]
fn small_samples_count_as_fewer_large_ones() {
    let mut controller = controller(Settings { careful: true, micro_batch: Some(2), ..Settings::default() });
    controller.arrive("ragged", 100, 6, Some(vec![50, 50, 50, 50, 100, 20]), 6.0).expect("a batch");
    while let Some(turn) = controller.next(0, || Some(space(10_000))) {
        // The first part has four samples of 50 elements each, which are worth two of 100.
        controller.passed(0, u32::try_from(turn.part.len()).expect("small"), turn.watched.then_some(700));
    }
    controller.abandon();
    let first = controller.foreseen("ragged", 100, 2, true);
    assert_eq!((first, controller.foreseen("ragged", 100, 4, true)), (Some(700), Some(1_400)));
}

#[test]
fn a_window_counts_the_micro_batches_it_started() {
    let mut controller = controller(Settings { micro_batch: Some(4), accumulate: 2, ..Settings::default() });
    for batch in 0..2 {
        controller.arrive("shape", 1, 10, None, 10.0).expect("a batch");
        while controller.next(batch, || None).is_some() {}
    }
    assert_eq!((controller.held(), controller.parts()), (2, 6));
    controller.restart();
    assert_eq!((controller.held(), controller.parts()), (2, 0), "its batches stay");
}

#[test]
fn the_divisor_that_all_ranks_know_replaces_the_expected_one() {
    let mut controller = controller(Settings::default());
    controller.arrive("shape", 1, 4, None, 4.0).expect("a batch");
    controller.divide_by(9.0).expect("a weight");
    assert_eq!(controller.window().correction(9.0), Ok(1.0));
    controller.divide_by(0.0).expect("a weight");
    assert_eq!(controller.window().correction(9.0), Ok(1.0), "zero divides nothing");
    assert!(matches!(controller.divide_by(f64::NAN), Err(TrainError::Count { .. })));
    controller.restart();
    assert_eq!(controller.window().correction(4.0), Ok(1.0), "an attempt begins with the expected one");
}

#[test]
fn a_window_that_began_in_another_process_has_gradients_already() {
    let careful = Settings { careful: true, accumulate: 2, ..Settings::default() };
    let mut before = knowing(Settings { accumulate: 2, ..Settings::default() }, &[2, 4], &[]);
    let resumed = |before: &Controller| {
        let text = serde_json::to_string(&before.memory()).expect("it can be written");
        let mut after = controller(careful.clone());
        after.remember(&mut serde_json::Deserializer::from_str(&text)).expect("it can be read");
        after.gradients_take(1_000);
        after.arrive("shape", 1, 8, None, 8.0).expect("a batch");
        after.passed(0, 1, None);
        after.next(0, || Some(space(500))).expect("a part");
        after.passed(0, 8, Some(1_500));
        after.abandon();
        // A need that was measured beside gradients is known as such.
        (after.foreseen("shape", 1, 8, true), after.foreseen("shape", 1, 8, false))
    };
    assert_eq!(resumed(&before), (Some(1_500), Some(2_500)), "between two windows");
    before.arrive("shape", 1, 8, None, 8.0).expect("a batch");
    assert_eq!(resumed(&before), (Some(180), Some(1_180)), "within one");
}

proptest! {
    /// On any device: every sample is run once in the successful attempt, and a device that fits one sample
    /// suffices.
    #[test]
    fn no_sample_is_lost(
        steps in prop::collection::vec((1u32..70, 0u64..900), 1..40), careful: bool, known: bool,
        micro in prop::option::of(1u32..20),
    ) {
        let mut controller = controller(Settings { careful, micro_batch: micro, ..Settings::default() });
        let mut device = Device::new(0);
        for (items, room) in steps {
            device.capacity = 110 + room;
            let sizes = device.step(&mut controller, items, known).expect("one sample always fits");
            prop_assert_eq!(sizes.iter().sum::<usize>(), items as usize);
        }
    }

    /// On a device that does not change, failures stop.
    #[test]
    fn failures_end(items in 1u32..200, room in 0u64..3000, careful: bool, known: bool) {
        let mut controller = controller(Settings { careful, ..Settings::default() });
        let mut device = Device::new(110 + room);
        for _ in 0..300 {
            device.step(&mut controller, items, known).expect("one sample always fits");
        }
        prop_assert!(device.failures <= 20, "{} failures", device.failures);
        // A line needs two sizes: even if only one sample fits, two must be tried.
        if careful && known && room >= 10 {
            prop_assert_eq!(device.failures, 0);
        }
    }
}
