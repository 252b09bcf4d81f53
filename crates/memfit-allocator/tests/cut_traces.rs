//! Traces that begin in the middle: events that depend on the time before are taken from the trace, and the
//! rest is predicted.

mod support;

use memfit_allocator::{PoolId, Verification, rewind, verify};
use memfit_recording::{Snapshot, TraceAction, TraceEvent};
use proptest::prelude::*;
use support::{MIB, Step, Which, alloc, conf, free, given, run, snapshot, step};

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn the_end_of_a_trace_is_predicted_from_its_middle(
        conf in conf(),
        steps in prop::collection::vec(step(), 1..150),
        share in 1_usize..100,
    ) {
        let allocator = run(conf, steps);
        let kept = allocator.device().trace.len() * share / 100;
        let snapshot = snapshot(&allocator, kept);
        let rewound = rewind(&snapshot, 0, &given(conf), 0);
        prop_assert_eq!(rewound.inconsistent, 0);
        let found = verify(&snapshot, 0, &given(conf)).expect("the state is valid");
        // A trace may hide the remainder after a large block from before its beginning.
        if rewound.uncertain == 0 {
            all_is_predicted_or_told(&snapshot, &found)?;
        }
    }
}

/// No prediction is wrong, and each event is counted once, as predicted or as given.
fn all_is_predicted_or_told(snapshot: &Snapshot, found: &Verification) -> Result<(), TestCaseError> {
    prop_assert!(found.mismatches.is_empty(), "{:?}", found.mismatches);
    for tally in [found.addresses, found.segments, found.blocks] {
        prop_assert_eq!(tally.matching, tally.predicted);
    }
    let free = |event: &&TraceEvent| {
        matches!(event.action, TraceAction::FreeRequested | TraceAction::FreeCompleted | TraceAction::Oom)
    };
    let events = snapshot.events.len() - snapshot.events.iter().filter(free).count();
    prop_assert_eq!(found.addresses.predicted + found.segments.predicted + found.told, events as u64);
    prop_assert_eq!(found.resumed, 0);
    Ok(())
}

/// Three segments of 2 MiB, of which the lowest is the youngest, followed by the calls.
fn lowest_is_youngest(calls: impl IntoIterator<Item = Step>) -> (Vec<Step>, usize) {
    let mut steps =
        vec![alloc(MIB, 0), alloc(MIB, 0), alloc(MIB, 0), alloc(MIB, 0), alloc(MIB, 0), alloc(MIB, 0)];
    // Frees the two blocks of the lowest segment, and allocates it again.
    steps.extend([free(0), free(0), Step::EmptyCache, alloc(MIB, 0), alloc(MIB, 0)]);
    let before = run("", steps.clone()).device().trace.len();
    steps.extend(calls);
    (steps, before)
}

#[test]
fn earlier_segments_are_reported_as_unknown_until_they_appear() {
    // All blocks are freed and allocated again, twice.
    let round = || [vec![free(0); 6], vec![alloc(MIB / 2 + 512, 0); 6]].concat();
    let (steps, before) = lowest_is_youngest([round(), round()].concat());
    let allocator = run("", steps);
    let snapshot = snapshot(&allocator, allocator.device().trace.len() - before);
    let found = verify(&snapshot, 0, &given("")).expect("the state is valid");
    all_is_predicted_or_told(&snapshot, &found).expect("nothing is wrong");
    assert_eq!(found.told, 2, "the first of three and the first of the two that are left");
    // Without its beginning, the trace does not show that the lowest segment is not the oldest; with it,
    // there is no doubt.
    let whole = verify(&self::snapshot(&allocator, usize::MAX), 0, &given("")).expect("the state is valid");
    assert_eq!((whole.told, whole.mismatches), (0, vec![]));
}

#[test]
fn reported_segments_are_not_reported_differently_later() {
    let round = || [vec![free(0); 6], vec![alloc(MIB / 2 + 512, 0); 6]].concat();
    let (steps, before) = lowest_is_youngest([round(), round()].concat());
    let allocator = run("", steps);
    let mut snapshot = snapshot(&allocator, allocator.device().trace.len() - before);
    // In the second round, the first segment differs from that of the first round.
    let asked: Vec<usize> =
        (0..snapshot.events.len()).filter(|at| snapshot.events[*at].action == TraceAction::Alloc).collect();
    let (first, second) = (asked[6], asked[7]);
    assert_ne!(snapshot.events[first].address, snapshot.events[second].address);
    let address = snapshot.events[first].address;
    snapshot.events[first].address = snapshot.events[second].address;
    snapshot.events[second].address = address;
    let found = verify(&snapshot, 0, &given("")).expect("the state is valid");
    assert_eq!(found.mismatches[0].event, first);
}

#[test]
fn the_order_in_which_segments_from_before_are_given_back_is_told() {
    let (steps, before) = lowest_is_youngest([vec![free(0); 6], vec![Step::EmptyCache]].concat());
    let allocator = run("", steps);
    let snapshot = snapshot(&allocator, allocator.device().trace.len() - before);
    let found = verify(&snapshot, 0, &given("")).expect("the state is valid");
    all_is_predicted_or_told(&snapshot, &found).expect("nothing is wrong");
    assert_eq!((found.told, found.segments.predicted), (2, 1));
}

#[test]
fn segments_that_the_trace_saw_got_keep_their_order_where_it_is_taken_up_anew() {
    // The trace is complete, except for a block in the middle with a changed address: from there on, the
    // state is restored.
    let (mut steps, before) = lowest_is_youngest([alloc(1, 1)]);
    steps.extend([vec![free(0); 6], vec![alloc(MIB / 2 + 512, 0); 3]].concat());
    let allocator = run("", steps);
    let mut snapshot = snapshot(&allocator, usize::MAX);
    let moved = (before..snapshot.events.len())
        .find(|at| snapshot.events[*at].action == TraceAction::Alloc)
        .expect("it was asked for");
    snapshot.events[moved].address += 512;
    let found = verify(&snapshot, 0, &given("")).expect("the state is valid");
    assert_eq!((found.resumed, found.told), (1, 0));
    assert_eq!(found.mismatches.len(), 1, "{:?}", found.mismatches);
}

/// Found by the property above: of two segments of one size, the lower one was allocated after the higher
/// one.
#[test]
fn a_lower_segment_may_be_younger() {
    let mut steps = vec![alloc(1, 0), alloc(1, 0), alloc(1, 1), free(0), free(0), Step::Capture, alloc(1, 1)];
    steps.extend([Step::EndCapture, Step::EmptyCache, Step::Capture]);
    steps.extend([752_641, 579_585, 763_393].map(|size| alloc(size, 1)));
    steps.extend([0, 0, 0, 0, 58_191_999_503_514_813].map(free));
    steps.extend([alloc(2849, 0), free(16_264_456_365_463_682_900), alloc(127_228, 1)]);
    let allocator = run("", steps);
    let snapshot = snapshot(&allocator, allocator.device().trace.len() * 14 / 100);
    assert_eq!(rewind(&snapshot, 0, &given(""), 0).uncertain, 0);
    let found = verify(&snapshot, 0, &given("")).expect("the state is valid");
    all_is_predicted_or_told(&snapshot, &found).expect("nothing is wrong");
    assert_eq!(found.told, 1);
}

#[test]
fn a_trace_may_begin_in_the_middle_of_a_call() {
    // The GPU is full. The free of a block that waits for another stream completes during a request, its
    // whole pages and those of another stream are unmapped, and the request is served from the remainder of
    // the page before them, although the remainder of the page after them fits better.
    let conf = "expandable_segments:True";
    let sizes = [(5, 0), (68, 0), (27, 0), (100, 1), (190, 0)];
    let mut steps: Vec<Step> = sizes.map(|(size, stream)| alloc(size * MIB, stream)).to_vec();
    let second_of_five = Which(3 * (u64::MAX / 10));
    steps.push(Step::RecordStream { which: second_of_five, stream: 2 });
    steps.extend([Step::Free { which: second_of_five }, free(u64::MAX), alloc(12 * MIB, 0), alloc(1, 0)]);
    let allocator = run(conf, steps);
    assert_eq!(allocator.stats().num_alloc_retries, 1);
    for kept in 1..allocator.device().trace.len() {
        let snapshot = snapshot(&allocator, kept);
        let found = verify(&snapshot, 0, &given(conf)).expect("the state is valid");
        all_is_predicted_or_told(&snapshot, &found).expect("nothing is wrong");
    }
}

#[test]
fn expandable_segments_are_told_apart_by_what_they_are_mapped_for() {
    // The large segment has grown so far that its end is nearer to the start of the small one.
    let conf = "expandable_segments:True";
    let sizes = [79 * MIB, MIB / 2, 79 * MIB, 79 * MIB, 19 * MIB, 19 * MIB, MIB / 2, MIB, MIB];
    let allocator = run(conf, sizes.map(|size| alloc(size, 0)).to_vec());
    for kept in 1..allocator.device().trace.len() {
        let snapshot = snapshot(&allocator, kept);
        let found = verify(&snapshot, 0, &given(conf)).expect("the state is valid");
        all_is_predicted_or_told(&snapshot, &found).expect("nothing is wrong");
        assert_eq!(found.told, 0);
    }
}

#[test]
fn a_small_page_is_known_by_what_it_served_although_the_range_is_as_large_as_a_large_page() {
    let conf = "expandable_segments:True";
    let mut steps = vec![alloc(MIB, 0); 20];
    steps.extend(vec![free(0); 20]);
    steps.push(Step::EmptyCache);
    let snapshot = snapshot(&run(conf, steps), usize::MAX);
    let last = snapshot.events.len() - 1;
    let unmapped = &snapshot.events[last];
    assert_eq!((unmapped.action, unmapped.size), (TraceAction::SegmentUnmap, 20 * MIB));
    let before = rewind(&snapshot, 0, &given(conf), last);
    let kinds: Vec<(bool, u64)> =
        before.segments.iter().map(|segment| (segment.small, segment.size)).collect();
    assert_eq!(kinds, [(true, 20 * MIB)]);
}

#[test]
fn an_unmapped_page_is_of_the_pool_that_keeps_the_rest_of_its_segment() {
    let conf = "expandable_segments:True";
    let steps = vec![Step::Capture, alloc(30 * MIB, 1), alloc(30 * MIB, 1), Step::EndCapture, free(0)];
    let mut allocator = run(conf, steps);
    allocator.release_pool(PoolId(0, 1)).expect("the graph uses it");
    allocator.empty_cache();
    // As PyTorch up to 2.11 writes it: only segments contain their pools.
    let mut snapshot = snapshot(&allocator, usize::MAX);
    snapshot.events.iter_mut().for_each(|event| event.pool = None);
    let last = snapshot.events.len() - 1;
    assert_eq!(snapshot.events[last].action, TraceAction::SegmentUnmap);
    let before = rewind(&snapshot, 0, &given(conf), last);
    let pools: Vec<PoolId> = before.segments.iter().map(|segment| segment.pool).collect();
    assert_eq!(pools, [PoolId(0, 1)]);
}
