//! Replays of calls that release cached memory: which events belong to a request, and which to a call of its
//! own.

mod support;

use memfit_allocator::{PoolId, verify};
use memfit_recording::TraceAction;
use support::{MIB, Step, Which, alloc, free, given, run, snapshot};

#[test]
fn a_private_pool_without_users_is_emptied_with_the_cache() {
    let steps = vec![
        Step::Capture,
        alloc(30 * MIB, 1),
        Step::EndCapture,
        alloc(30 * MIB, 1),
        alloc(30 * MIB, 0),
        free(0),
        free(0),
    ];
    let mut allocator = run("", steps);
    allocator.release_pool(PoolId(0, 1)).expect("the graph uses it");
    allocator.empty_cache();
    let snapshot = snapshot(&allocator, usize::MAX);
    let last = snapshot.events.last().expect("there are events");
    assert_eq!(last.action, TraceAction::SegmentFree);
    let found = verify(&snapshot, 0, &given("")).expect("the state is valid");
    assert_eq!((found.mismatches, found.resumed), (vec![], 0));
}

#[test]
fn a_request_releases_oversize_blocks_first_and_then_waits_for_other_streams() {
    let conf = "max_split_size_mb:40";
    let steps = vec![
        // The first block stays in the cache, and the third waits for another stream.
        alloc(60 * MIB, 0),
        alloc(200 * MIB, 0),
        free(0),
        alloc(100 * MIB, 0),
        Step::RecordStream { which: Which(u64::MAX), stream: 2 },
        free(u64::MAX),
        alloc(90 * MIB, 0),
    ];
    let allocator = run(conf, steps);
    let snapshot = snapshot(&allocator, usize::MAX);
    let actions: Vec<TraceAction> = snapshot.events.iter().map(|event| event.action).collect();
    let end = [
        TraceAction::SegmentFree,
        TraceAction::FreeCompleted,
        TraceAction::SegmentFree,
        TraceAction::SegmentAlloc,
        TraceAction::Alloc,
    ];
    assert!(actions.ends_with(&end), "{actions:?}");
    let found = verify(&snapshot, 0, &given(conf)).expect("the state is valid");
    assert_eq!((found.mismatches, found.resumed), (vec![], 0));
}

#[test]
fn all_releases_of_a_call_are_skipped_after_a_wrong_one() {
    let steps = vec![alloc(30 * MIB, 0), alloc(40 * MIB, 0), alloc(50 * MIB, 0), free(0), free(0), free(0)];
    let allocator = run("", [steps, vec![Step::EmptyCache, alloc(1000, 0)]].concat());
    let mut snapshot = snapshot(&allocator, usize::MAX);
    let freed: Vec<usize> = (0..snapshot.events.len())
        .filter(|at| snapshot.events[*at].action == TraceAction::SegmentFree)
        .collect();
    let [first, second, third] = freed[..] else { panic!("{freed:?}") };
    assert_eq!((second, third), (first + 1, first + 2));
    snapshot.events.swap(first, second);
    let found = verify(&snapshot, 0, &given("")).expect("the state is valid");
    let missed: Vec<usize> = found.mismatches.iter().map(|mismatch| mismatch.event).collect();
    assert_eq!((missed, found.resumed), (vec![first], 1));
    // Three segments were allocated for them and one for the last request; no release was predicted.
    assert_eq!((found.segments.predicted, found.segments.matching), (7, 4));
}

#[test]
fn a_request_is_retried_only_where_the_cache_was_released_for_it() {
    // The cache is released, and 100 MiB are free; 200 MiB were requested.
    let fails = vec![alloc(50 * MIB, 0), alloc(300 * MIB, 0), free(0), alloc(200 * MIB, 0)];
    // Another stream is done with a part of a segment right before the request of a new segment.
    let waits = vec![
        alloc(2 * MIB, 0),
        alloc(2 * MIB, 0),
        Step::RecordStream { which: Which(0), stream: 2 },
        free(0),
        alloc(1000, 0),
        Step::FinishEvents,
        alloc(30 * MIB, 0),
    ];
    for (steps, retries, failures) in [(fails, 1, 1), (waits, 0, 0)] {
        let found =
            verify(&snapshot(&run("", steps), usize::MAX), 0, &given("")).expect("the state is valid");
        assert_eq!((found.mismatches, found.resumed), (vec![], 0));
        assert_eq!((found.stats.num_alloc_retries, found.stats.num_ooms), (retries, failures));
    }
}
