//! Traces of the allocator's own making, replayed from their beginning and from the middle.

use std::num::NonZeroU16;

use memfit_allocator::{
    Action, Address, Allocator, BlockState, CaptureFilter, Device, Edit, Entry, Given, Outcome, PoolId,
    Program, Release, Settings, SimulatedDevice, Stream, Ticket, Verification, recording, rewind, track,
    verify,
};
use memfit_recording::{
    Limits, MomentKind, PickleLimits, Recording, Segment, SegmentBlock, SegmentBlockState, Snapshot, StackId,
    TextId, TraceAction, TraceEvent,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 400 * MIB;

/// A device that keeps the trace.
#[derive(Clone)]
struct Traced {
    device: SimulatedDevice,
    /// Address space is reserved further and further up: one expandable segment in the place of another that was given up
    /// before is what a trace that begins in between cannot tell apart.
    reserved: u64,
    trace: Vec<Entry>,
}

impl Device for Traced {
    fn malloc(&mut self, size: u64) -> Option<Address> {
        self.device.malloc(size)
    }
    fn free(&mut self, address: Address, size: u64) {
        self.device.free(address, size);
    }
    fn reserve(&mut self, size: u64) -> Address {
        self.reserved += size;
        Address(0x5000_0000_0000 + self.reserved - size)
    }
    fn unreserve(&mut self, _address: Address, _size: u64) {}
    fn map(&mut self, address: Address, size: u64) -> bool {
        self.device.map(address, size)
    }
    fn unmap(&mut self, address: Address, size: u64) {
        self.device.unmap(address, size);
    }
    fn total(&self) -> u64 {
        self.device.total()
    }
    fn available(&self) -> u64 {
        self.device.available()
    }
    fn record_event(&mut self, stream: Stream) -> Ticket {
        self.device.record_event(stream)
    }
    fn is_done(&mut self, ticket: Ticket) -> bool {
        self.device.is_done(ticket)
    }
    fn synchronize(&mut self, ticket: Ticket) {
        self.device.synchronize(ticket);
    }
    fn traced(&mut self, entry: Entry) {
        self.trace.push(entry);
    }
}

/// One of several: how far down the list, in parts of 2^64.
#[derive(Clone, Copy, Debug)]
struct Which(u64);

impl Which {
    fn of(self, count: usize) -> usize {
        ((u128::from(self.0) * count as u128) >> 64) as usize
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { size: u64, stream: u64 },
    Free { which: Which },
    RecordStream { which: Which, stream: u64 },
    FinishEvents,
    EmptyCache,
    Capture,
    EndCapture,
}

fn step() -> impl Strategy<Value = Step> {
    let which = || any::<u64>().prop_map(Which);
    let size = prop_oneof![
        4 => 1_u64..4096,
        3 => 1_u64..=MIB,
        4 => MIB..10 * MIB,
        2 => 10 * MIB..80 * MIB,
    ];
    prop_oneof![
        24 => (size, 0_u64..2).prop_map(|(size, stream)| Step::Alloc { size, stream }),
        20 => which().prop_map(|which| Step::Free { which }),
        2 => (which(), 2_u64..4).prop_map(|(which, stream)| Step::RecordStream { which, stream }),
        2 => Just(Step::FinishEvents),
        1 => Just(Step::EmptyCache),
        1 => Just(Step::Capture),
        1 => Just(Step::EndCapture),
    ]
}

fn run(conf: &str, steps: Vec<Step>) -> Allocator<Traced> {
    let settings = Settings::parse(conf, Release::NEWEST).expect("the settings are valid");
    let mut device = Traced { device: SimulatedDevice::new(CAPACITY), reserved: 0, trace: Vec::new() };
    device.device.hold_events();
    let mut allocator = Allocator::new(device, settings, Release::NEWEST);
    let mut live: Vec<Address> = Vec::new();
    for step in steps {
        match step {
            Step::Alloc { size, stream } => live.extend(allocator.malloc(size, Stream(stream))),
            Step::Free { which } if !live.is_empty() => {
                let address = live.swap_remove(which.of(live.len()));
                allocator.free(address).expect("it was handed out");
            }
            Step::RecordStream { which, stream } if !live.is_empty() => {
                allocator
                    .record_stream(live[which.of(live.len())], Stream(stream))
                    .expect("it was handed out");
            }
            Step::FinishEvents => allocator.device_mut().device.finish_events(),
            Step::EmptyCache => allocator.empty_cache(),
            Step::Capture => {
                let _ = allocator.begin_capture(PoolId(0, 1), CaptureFilter::Stream(Stream(1)));
            }
            Step::EndCapture => {
                let _ = allocator.end_capture(PoolId(0, 1));
            }
            _ => {}
        }
    }
    allocator
}

fn action(action: Action) -> TraceAction {
    match action {
        Action::Alloc => TraceAction::Alloc,
        Action::FreeRequested => TraceAction::FreeRequested,
        Action::FreeCompleted => TraceAction::FreeCompleted,
        Action::SegmentAlloc => TraceAction::SegmentAlloc,
        Action::SegmentFree => TraceAction::SegmentFree,
        Action::SegmentMap => TraceAction::SegmentMap,
        Action::SegmentUnmap => TraceAction::SegmentUnmap,
        Action::OutOfMemory => TraceAction::Oom,
    }
}

/// What PyTorch would have written at the end, with a ring buffer that had dropped all but the last events.
fn snapshot(allocator: &Allocator<Traced>, kept: usize) -> Snapshot {
    let trace = &allocator.device().trace;
    let mut snapshot =
        Snapshot { streams: (0..4).collect(), pools: vec![(0, 0), (0, 1)], ..Snapshot::default() };
    for entry in &trace[trace.len() - kept.min(trace.len())..] {
        snapshot.events.push(TraceEvent {
            category: None,
            address: entry.address.0,
            size: entry.size,
            time_us: 0,
            stack: StackId::NONE,
            metadata: TextId::NONE,
            stream: entry.stream.0 as u16,
            pool: NonZeroU16::new(1 + entry.pool.1 as u16),
            action: action(entry.action),
        });
    }
    snapshot.traces.push(0..snapshot.events.len());
    for segment in allocator.segments() {
        let start = snapshot.blocks.len();
        snapshot.blocks.extend(segment.blocks.iter().map(|block| SegmentBlock {
            address: block.address.0,
            size: block.size,
            requested: block.requested,
            state: match block.state {
                BlockState::Allocated => SegmentBlockState::Allocated,
                BlockState::Pending => SegmentBlockState::Pending,
                BlockState::Free => SegmentBlockState::Inactive,
            },
            stack: StackId::NONE,
        }));
        snapshot.segments.push(Segment {
            device: 0,
            address: segment.address.0,
            size: segment.size,
            stream: segment.stream.0,
            small: segment.small,
            pool: (segment.pool.0, segment.pool.1),
            expandable: segment.expandable,
            blocks: start..snapshot.blocks.len(),
        });
    }
    snapshot
}

fn given(conf: &str) -> Given {
    let settings = Settings::parse(conf, Release::NEWEST).expect("the settings are valid");
    Given { settings, release: Release::NEWEST, capacity: CAPACITY }
}

fn conf() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "roundup_power2_divisions:4",
        "expandable_segments:True",
        "large_segment_size_mb:32",
        "expandable_segments:True,large_segment_size_mb:32",
    ])
}

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
        // What a trace may hide is the rest behind a large block from before its beginning.
        if rewound.uncertain == 0 {
            all_is_predicted_or_told(&snapshot, &found)?;
        }
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

/// No prediction is wrong, and each event is predicted or told, and counted once.
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

fn alloc(size: u64, stream: u64) -> Step {
    Step::Alloc { size, stream }
}

fn free(which: u64) -> Step {
    Step::Free { which: Which(which) }
}

/// Three segments of 2 MiB, of which the lowest is the youngest, and then the calls.
fn lowest_is_youngest(calls: impl IntoIterator<Item = Step>) -> (Vec<Step>, usize) {
    let mut steps =
        vec![alloc(MIB, 0), alloc(MIB, 0), alloc(MIB, 0), alloc(MIB, 0), alloc(MIB, 0), alloc(MIB, 0)];
    // Frees the two blocks of the lowest, and gets it again.
    steps.extend([free(0), free(0), Step::EmptyCache, alloc(MIB, 0), alloc(MIB, 0)]);
    let before = run("", steps.clone()).device().trace.len();
    steps.extend(calls);
    (steps, before)
}

#[test]
fn what_nobody_can_know_of_the_segments_from_before_is_told_and_then_known() {
    // All are given back, asked for again, given back and asked for again.
    let round = || [vec![free(0); 6], vec![alloc(MIB / 2 + 512, 0); 6]].concat();
    let (steps, before) = lowest_is_youngest([round(), round()].concat());
    let allocator = run("", steps);
    let snapshot = snapshot(&allocator, allocator.device().trace.len() - before);
    let found = verify(&snapshot, 0, &given("")).expect("the state is valid");
    all_is_predicted_or_told(&snapshot, &found).expect("nothing is wrong");
    assert_eq!(found.told, 2, "the first of three and the first of the two that are left");
    // Without its beginning the trace cannot say that the lowest segment is not the oldest; with it there is no doubt.
    let whole = verify(&self::snapshot(&allocator, usize::MAX), 0, &given("")).expect("the state is valid");
    assert_eq!((whole.told, whole.mismatches), (0, vec![]));
}

#[test]
fn what_was_told_once_is_not_told_otherwise_later() {
    let round = || [vec![free(0); 6], vec![alloc(MIB / 2 + 512, 0); 6]].concat();
    let (steps, before) = lowest_is_youngest([round(), round()].concat());
    let allocator = run("", steps);
    let mut snapshot = snapshot(&allocator, allocator.device().trace.len() - before);
    // In the second round another segment comes first than in the first.
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
    // The trace is whole, but for a block in the middle that was said to be elsewhere: from there on the state is worked out.
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

/// Found by the property above: the lower of two segments of one size was got after the higher one.
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

/// A snapshot that was made a recording, written to a file, read from it and made a snapshot again; and whether the blocks at its end
/// were foretold, which of a trace that begins in the middle not all may be.
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
    let blocks = recorded.verifications[0].blocks;
    (again, blocks.matching == blocks.predicted)
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
        // A recording in which no block ever becomes free cannot tell those that wait for it from those that are gone.
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
