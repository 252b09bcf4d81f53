//! Traces of the allocator's own making, replayed from their beginning.

mod support;

use memfit_allocator::{Edit, Given, Outcome, Program, Release, recording, rewind, track, verify};
use memfit_recording::{
    Limits, MomentKind, PickleLimits, Recording, SegmentBlock, SegmentBlockState, Snapshot, TraceAction,
    TraceEvent,
};
use proptest::prelude::*;
use support::{CAPACITY, MIB, Step, Which, conf, given, run, snapshot, step};

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn a_whole_trace_is_predicted(conf in conf(), steps in prop::collection::vec(step(), 1..150)) {
        let allocator = run(conf, steps);
        let snapshot = snapshot(&allocator, usize::MAX);
        let rewound = rewind(&snapshot, 0, &given(conf), 0);
        prop_assert!(rewound.segments.is_empty(), "everything is undone: {:?}", rewound);
        let found = verify(&snapshot, 0, &given(conf)).expect("the state is valid");
        prop_assert!(found.mismatches.is_empty(), "{:?}", found.mismatches);
        prop_assert_eq!(found.addresses.matching, found.addresses.predicted);
        prop_assert_eq!(found.segments.matching, found.segments.predicted);
        prop_assert_eq!(found.blocks.matching, found.blocks.predicted);
        prop_assert_eq!(found.resumed, 0);
    }

    #[test]
    fn a_track_has_the_allocators_own_totals(conf in conf(), steps in prop::collection::vec(step(), 1..100)) {
        let allocator = run(conf, steps);
        let snapshot = snapshot(&allocator, usize::MAX);
        let tracked = track(&snapshot, 0, &given(conf)).expect("the state is valid");
        let stats = allocator.stats();
        let peak = tracked.track.moments().iter().map(|moment| moment.allocated).max().unwrap_or(0);
        prop_assert_eq!(peak as i64, stats.allocated_bytes.all.peak);
        let live: u64 = tracked.track.blocks().iter().filter(|block| block.freed == u32::MAX).map(|block| block.bytes).sum();
        prop_assert_eq!(live as i64, stats.allocated_bytes.all.current);
        // What is reserved at the end is what the spans say that live then.
        let last = tracked.track.now();
        let reserved: u64 = tracked.track.spans.iter().filter(|span| span.is_live_at(last)).map(|span| span.bytes).sum();
        prop_assert_eq!(reserved as i64, stats.reserved_bytes.all.current);
        let failures = tracked.track.moments().iter().filter(|moment| matches!(moment.kind, MomentKind::Oom(_))).count();
        prop_assert_eq!(failures as u64, stats.num_ooms);
    }

    #[test]
    fn the_same_calls_on_a_card_without_end_have_the_same_peaks(
        conf in conf(),
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let calls = |step: &Step| !matches!(step, Step::Capture | Step::EmptyCache | Step::FinishEvents);
        let steps: Vec<Step> = steps.into_iter().filter(calls).collect();
        let allocator = run(conf, steps);
        prop_assume!(allocator.stats().num_alloc_retries == 0);
        let snapshot = snapshot(&allocator, usize::MAX);
        // Without a single completion a trace does not show that it would tell of them.
        let waits = allocator.stats().active_bytes.all.current != allocator.stats().allocated_bytes.all.current;
        prop_assume!(!waits || snapshot.events.iter().any(|event| event.action == TraceAction::FreeCompleted));
        let given = given(conf);
        let again = again(&snapshot, &given, &given, |_| Edit::Keep);
        let stats = allocator.stats();
        prop_assert_eq!(again.died, None);
        prop_assert_eq!(again.stats.allocated_bytes, stats.allocated_bytes);
        prop_assert_eq!(again.stats.requested_bytes, stats.requested_bytes);
        prop_assert_eq!(again.stats.reserved_bytes, stats.reserved_bytes);
        let nothing = self::again(&snapshot, &given, &given, |_| Edit::Drop);
        prop_assert_eq!(nothing.stats.reserved_bytes.all.peak, 0);
    }

    #[test]
    fn wrong_events_do_no_harm(
        conf in conf(),
        steps in prop::collection::vec(step(), 1..60),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), any::<u64>(), 0_u8..4), 1..6),
    ) {
        let allocator = run(conf, steps);
        let mut snapshot = snapshot(&allocator, usize::MAX);
        for (place, address, size, kind) in damage {
            if snapshot.events.is_empty() {
                continue;
            }
            let place = place.index(snapshot.events.len());
            let event = &mut snapshot.events[place];
            match kind {
                0 => event.address = address,
                1 => event.size = size,
                2 => event.action = TraceAction::FreeCompleted,
                _ => event.action = TraceAction::SegmentMap,
            }
        }
        let given = given(conf);
        let _ = rewind(&snapshot, 0, &given, 0);
        let _ = verify(&snapshot, 0, &given);
        let _ = recording(&snapshot, &given);
        if let Ok(tracked) = track(&snapshot, 0, &given) {
            let _ = Program::of(&tracked.track, 0).run(&given, |_| Edit::Keep);
        }
    }
}

/// The calls of a snapshot once more.
fn again(snapshot: &Snapshot, recorded: &Given, given: &Given, edit: impl Fn(u32) -> Edit) -> Outcome {
    let tracked = track(snapshot, 0, recorded).expect("the state is valid");
    Program::of(&tracked.track, 0).run(given, edit)
}

#[test]
fn under_other_settings_a_trace_is_not_predicted() {
    let steps: Vec<Step> = (1..40).map(|count| Step::Alloc { size: count * MIB / 3, stream: 0 }).collect();
    let allocator = run("", steps);
    let snapshot = snapshot(&allocator, usize::MAX);
    let right = verify(&snapshot, 0, &given("")).expect("the state is valid");
    assert_eq!((right.addresses.matching, right.resumed), (right.addresses.predicted, 0));
    let wrong = verify(&snapshot, 0, &given("large_segment_size_mb:64")).expect("the state is valid");
    assert!(wrong.segments.matching < wrong.segments.predicted);
    assert_eq!(wrong.segments.predicted, right.segments.predicted, "every event is counted once");
    assert_eq!(wrong.addresses.predicted, right.addresses.predicted);
    assert!(wrong.resumed > 0 && !wrong.mismatches.is_empty());
}

#[test]
fn a_block_that_moved_is_found_out() {
    let steps: Vec<Step> = (0..20).map(|_| Step::Alloc { size: 1000, stream: 0 }).collect();
    let allocator = run("", steps);
    let mut snapshot = snapshot(&allocator, usize::MAX);
    // The allocator would never leave a hole between the last two.
    let last = snapshot.events.len() - 1;
    let moved = snapshot.events[last].address + 4096;
    snapshot.events[last].address = moved;
    let found = verify(&snapshot, 0, &given("")).expect("the state is valid");
    assert_eq!((found.addresses.predicted, found.addresses.matching), (20, 19));
    assert_eq!(found.mismatches[0].event, last);
    assert_eq!(found.mismatches[0].recorded, (moved, 1000));
}

#[test]
fn expandable_segments_would_have_saved_it() {
    // By default each block has a segment of 12 MiB, of which nearly 2 MiB are of no use to another.
    let steps = (0..36).map(|_| Step::Alloc { size: 10 * MIB + 4096, stream: 0 }).collect();
    let allocator = run("", steps);
    assert!(allocator.stats().num_ooms > 0, "it runs out of memory by default");
    let snapshot = snapshot(&allocator, usize::MAX);
    let by_default = again(&snapshot, &given(""), &given(""), |_| Edit::Keep);
    let (moment, error) = by_default.died.expect("it dies again");
    let tracked = track(&snapshot, 0, &given("")).expect("the state is valid").track;
    let failed = tracked.moment(moment).expect("the moment is there");
    assert!(matches!(failed.kind, MomentKind::Oom(_)));
    assert_eq!((error.requested, error.segment), (10 * MIB + 4096, 12 * MIB));
    let expandable = again(&snapshot, &given(""), &given("expandable_segments:True"), |_| Edit::Keep);
    assert_eq!(expandable.died, None);
    assert!(expandable.stats.reserved_bytes.all.peak as u64 <= CAPACITY);
    let larger = Given { capacity: 2 * CAPACITY, ..given("") };
    let larger = again(&snapshot, &given(""), &larger, |_| Edit::Keep);
    assert_eq!(larger.died, None);
    assert!(larger.stats.reserved_bytes.all.peak as u64 > CAPACITY);
    let every_other = |than: Edit| move |block: u32| if block % 2 == 1 { than } else { Edit::Keep };
    for than in [Edit::Drop, Edit::Resize(MIB), Edit::FreeAt(0), Edit::ResizeUntil { bytes: MIB, until: 0 }] {
        let fewer = again(&snapshot, &given(""), &given(""), every_other(than));
        assert_eq!(fewer.died, None, "{than:?} of every other block would have saved it");
    }
}

#[test]
fn address_space_that_a_failed_request_reserved_serves_the_next() {
    let conf = "expandable_segments:True";
    let mut steps: Vec<Step> = (0..4).map(|_| Step::Alloc { size: 90 * MIB, stream: 0 }).collect();
    // The first of its stream: address space is reserved, and mapping it fails.
    steps.push(Step::Alloc { size: 60 * MIB, stream: 1 });
    steps.push(Step::Alloc { size: 4 * MIB, stream: 1 });
    let allocator = run(conf, steps);
    assert_eq!(allocator.stats().num_ooms, 1);
    let snapshot = snapshot(&allocator, usize::MAX);
    let found = verify(&snapshot, 0, &given(conf)).expect("the state is valid");
    assert_eq!(found.mismatches, []);
    assert_eq!((found.addresses.predicted, found.addresses.matching), (5, 5));
}

#[test]
fn a_snapshot_that_names_no_pools_is_of_an_older_release() {
    let allocator = run("", vec![Step::Alloc { size: 1, stream: 0 }]);
    let mut snapshot = snapshot(&allocator, usize::MAX);
    assert_eq!(Given::from_snapshot(&snapshot).release, Release::NEWEST);
    snapshot.events.iter_mut().for_each(|event| event.pool = None);
    assert_eq!(Given::from_snapshot(&snapshot).release, Release::new(2, 11));
}

/// A snapshot that was made a recording, written to a file, read from it and made a snapshot again; and
/// whether the blocks at its end were foretold, which of a trace that begins in the middle not all may be.
fn there_and_back(snapshot: &Snapshot, given: &Given) -> (Snapshot, bool) {
    let recorded = recording(snapshot, given).expect("the snapshot is consistent");
    let mut file = Vec::new();
    recorded.recording.write(&mut file).expect("memory can be written to");
    let read = Recording::read(&file[..], Limits::default()).expect("it was just written");
    assert_eq!(read, recorded.recording);
    let mut pickle = Vec::new();
    Snapshot::from_track(&read.tracks[0]).write(&mut pickle).expect("memory can be written to");
    let (again, problems) =
        Snapshot::read(&pickle[..], PickleLimits::default()).expect("it was just written");
    assert!(problems.is_empty(), "{problems:?}");
    let found = &recorded.verifications[0];
    // A replay that began anew knows the blocks of the end from there on, and not what they were when they
    // were handed out.
    (again, found.blocks.matching == found.blocks.predicted && found.resumed == 0)
}

/// What a snapshot says of an event: address, size and stream, and the pool.
type Said = (TraceAction, [u64; 3], (u64, u64));
/// What it says of a segment: address, size and stream, whether it can grow, its pool and its blocks.
type Laid = ([u64; 3], bool, (u64, u64), Vec<[u64; 3]>);

/// The events, without the snapshot's own numbers for streams and pools.
fn events_of(snapshot: &Snapshot) -> Vec<Said> {
    let said = |event: &TraceEvent| {
        let pool = event.pool_index().map(|pool| snapshot.pools[pool]).unwrap_or_default();
        (event.action, [event.address, event.size, snapshot.streams[usize::from(event.stream)]], pool)
    };
    snapshot.events.iter().map(said).collect()
}

/// The segments and blocks. What was asked for is stale where a block is free.
fn segments_of(snapshot: &Snapshot) -> Vec<Laid> {
    let block = |block: &SegmentBlock| {
        let requested = if block.state == SegmentBlockState::Inactive { 0 } else { block.requested };
        [block.address, block.size, requested + block.state as u64]
    };
    let mut segments: Vec<_> = snapshot
        .segments
        .iter()
        .map(|segment| {
            let blocks = snapshot.blocks_of(segment).iter().map(block).collect();
            let place = [segment.address, segment.size, segment.stream];
            (place, segment.expandable, segment.pool, blocks)
        })
        .collect();
    segments.sort_unstable();
    segments
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_snapshot_comes_back_from_a_recording_as_it_was(conf in conf(), steps in prop::collection::vec(step(), 0..200), kept in 0..400_usize) {
        let allocator = run(conf, steps);
        let before = snapshot(&allocator, kept);
        prop_assume!(!before.devices().is_empty());
        // A recording in which no block ever becomes free cannot tell those that wait for it from those that
        // are gone.
        let waits = before.blocks.iter().any(|block| block.state == SegmentBlockState::Pending);
        prop_assume!(!waits || before.events.iter().any(|event| event.action == TraceAction::FreeCompleted));
        let (after, foretold) = there_and_back(&before, &given(conf));
        // What was there before the trace began stands in front of it.
        let (told, again) = (events_of(&before), events_of(&after));
        let new = again.len() - told.len();
        prop_assert_eq!(&again[new..], &told[..]);
        if kept >= allocator.device().trace.len() {
            prop_assert_eq!(new, 0);
            prop_assert!(foretold);
        }
        if foretold {
            prop_assert_eq!(segments_of(&after), segments_of(&before));
        }
        // From there on, nothing changes any more.
        let (third, foretold) = there_and_back(&after, &given(conf));
        prop_assert_eq!(events_of(&third), again);
        if foretold {
            prop_assert_eq!(segments_of(&third), segments_of(&after));
        }
    }
}

/// What PyTorch up to 2.11 writes: events that name no pool, where segments do.
fn without_pools(mut snapshot: Snapshot) -> Snapshot {
    snapshot.events.iter_mut().for_each(|event| event.pool = None);
    snapshot
}

/// Blocks and spans of a snapshot's track with their pools, by where they are and when they came.
fn pools_of(snapshot: &Snapshot, conf: &str) -> Vec<(u64, u32, (u64, u64))> {
    let track = track(snapshot, 0, &given(conf)).expect("the state is valid").track;
    let blocks = track.blocks().iter().map(|block| (block.address, block.born, block.pool));
    let spans = track.spans.iter().map(|span| (span.address, span.born, span.pool));
    blocks
        .chain(spans)
        .map(|(address, born, pool)| (address, born, track.pools[usize::from(pool.0)]))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn segments_say_the_pools_that_events_do_not_name(
        conf in conf(),
        steps in prop::collection::vec(step(), 1..150),
        kept in 0..400_usize,
    ) {
        let allocator = run(conf, steps);
        let named = snapshot(&allocator, kept);
        prop_assume!(!named.devices().is_empty());
        prop_assert_eq!(pools_of(&without_pools(named.clone()), conf), pools_of(&named, conf));
    }
}

#[test]
fn a_private_pools_segment_says_nothing_of_what_was_at_its_address_before() {
    let steps = vec![
        Step::Alloc { size: 30 * MIB, stream: 1 },
        Step::Free { which: Which(0) },
        Step::EmptyCache,
        Step::Capture,
        Step::Alloc { size: 30 * MIB, stream: 1 },
        Step::EndCapture,
    ];
    let named = snapshot(&run("", steps), usize::MAX);
    let unnamed = without_pools(named.clone());
    let allocs: Vec<&TraceEvent> =
        named.events.iter().filter(|event| event.action == TraceAction::Alloc).collect();
    assert_eq!(allocs[0].address, allocs[1].address, "the address is used again");
    let blocks: Vec<(u64, u64)> = pools_of(&unnamed, "")[..2].iter().map(|(_, _, pool)| *pool).collect();
    assert_eq!(blocks, [(0, 0), (0, 1)]);
    let found = verify(&unnamed, 0, &given("")).expect("the state is valid");
    assert_eq!((found.mismatches, found.resumed), (vec![], 0));
}
