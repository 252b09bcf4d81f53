//! Reading snapshots: complete, truncated and hostile.

use memfit_recording::{
    PickleError, PickleErrorKind, PickleLimits, Problem, SegmentBlockState, Snapshot, SnapshotError, StackId,
    TextId, TraceAction,
};
use proptest::prelude::*;

const SMALL: [&[u8]; 4] = [
    include_bytes!("data/small-2.pickle"),
    include_bytes!("data/small-3.pickle"),
    include_bytes!("data/small-4.pickle"),
    include_bytes!("data/small-5.pickle"),
];
const SEGMENTS: &[u8] = include_bytes!("data/segments.pickle");
const BACKWARD: &[u8] = include_bytes!("data/backward.pickle");
const BASE: u64 = 0x7f00_0000_0000;
const MIB: u64 = 1 << 20;

fn read(bytes: &[u8]) -> Result<(Snapshot, Vec<Problem>), SnapshotError> {
    Snapshot::read(bytes, PickleLimits::default())
}

/// Returns the error for bytes that are not a snapshot.
fn error(bytes: &[u8]) -> PickleError {
    match read(bytes) {
        Err(SnapshotError::Pickle(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Reader that returns one byte at a time, so that no operation is ever complete in the buffer.
struct Drip<'a>(&'a [u8]);

impl std::io::Read for Drip<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.len().min(buffer.len()).min(1);
        buffer[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

/// Checks that the result does not depend on how the bytes arrive, and so not on the reader's code path.
fn check_any_way_of_arriving(bytes: &[u8]) {
    let once = read(bytes);
    let dripped = Snapshot::read(Drip(bytes), PickleLimits::default());
    let ((once, problems), (dripped, dripped_problems)) = match (once, dripped) {
        (Ok(once), Ok(dripped)) => (once, dripped),
        (Err(once), Err(dripped)) => return assert_eq!(once.to_string(), dripped.to_string()),
        (once, dripped) => panic!("{once:?}, or {dripped:?}"),
    };
    assert_eq!(format!("{problems:?}"), format!("{dripped_problems:?}"));
    assert_eq!(once.events, dripped.events);
    assert_eq!(once.traces, dripped.traces);
    assert_eq!((once.streams, once.pools), (dripped.streams, dripped.pools));
    assert_eq!((once.segments, once.blocks), (dripped.segments, dripped.blocks));
    assert_eq!((once.annotations, once.settings), (dripped.annotations, dripped.settings));
    assert!(once.texts == dripped.texts && once.stacks == dripped.stacks);
}

/// Builds a pickle of protocol 4 from operations.
fn pickle(operations: &[u8]) -> Vec<u8> {
    [&[0x80, 4], operations].concat()
}

#[test]
fn backward_allocations_have_the_lines_of_their_forward() {
    let (snapshot, problems) = read(BACKWARD).expect("the file is whole");
    assert!(problems.is_empty(), "{problems:?}");
    let stacks: Vec<Vec<(&str, u32, &str)>> = snapshot
        .trace(0)
        .iter()
        .map(|event| {
            let frames = snapshot.stacks.get(event.stack);
            frames
                .map(|frame| (snapshot.texts.get(frame.file), frame.line, snapshot.texts.get(frame.name)))
                .collect()
        })
        .collect();
    let forward = [("train.py", 7, "step"), ("train.py", 12, "<module>")];
    assert_eq!(stacks[0], forward);
    assert_eq!(stacks[1][0], ("??", 0, "torch::autograd::Engine::thread_main()"));
    assert_eq!(stacks[1][1..], forward);
}

#[test]
fn every_protocol_says_the_same() {
    for (bytes, protocol) in SMALL.iter().zip(2..) {
        let (snapshot, problems) = read(bytes).expect("the file is whole");
        assert!(problems.is_empty(), "protocol {protocol}: {problems:?}");
        assert_eq!(snapshot.traces, [0..7, 7..7]);
        let trace = snapshot.trace(0);
        let actions: Vec<TraceAction> = trace.iter().map(|event| event.action).collect();
        assert_eq!(
            actions,
            [
                TraceAction::SegmentAlloc,
                TraceAction::Alloc,
                TraceAction::Alloc,
                TraceAction::FreeRequested,
                TraceAction::FreeCompleted,
                TraceAction::Alloc,
                TraceAction::Oom
            ]
        );
        assert_eq!((trace[2].address, trace[2].size, trace[2].time_us), (BASE + 512, 5000, 1_000_003));
        assert_eq!((trace[6].address, trace[6].size), (3 * MIB, 4 * MIB));
        let lines: Vec<u32> = snapshot.stacks.get(trace[0].stack).map(|frame| frame.line).collect();
        assert_eq!(lines, [7, 12]);
        assert_eq!(trace[0].stack, trace[6].stack);
        assert_ne!(trace[0].stack, trace[2].stack);
        assert_eq!(trace[3].stack, StackId::NONE);
        let innermost = snapshot.stacks.get(trace[0].stack).next().expect("there are two frames");
        assert_eq!(
            (snapshot.texts.get(innermost.name), snapshot.texts.get(innermost.file)),
            ("step", "train.py")
        );

        let segment = &snapshot.segments[0];
        assert_eq!((segment.address, segment.size, segment.pool), (BASE, 2 * MIB, (0, 1)));
        assert!(segment.small && !segment.expandable);
        let states: Vec<SegmentBlockState> =
            snapshot.blocks_of(segment).iter().map(|block| block.state).collect();
        assert_eq!(
            states,
            [SegmentBlockState::Allocated, SegmentBlockState::Pending, SegmentBlockState::Inactive]
        );

        let settings = snapshot.settings.as_ref().expect("there are settings");
        assert_eq!(
            (settings.text.as_str(), settings.max_split_size),
            ("max_split_size_mb:128", Some(128 * MIB))
        );
        assert!(settings.expandable_segments);
        assert_eq!(settings.roundup_power2_divisions.get(&2), Some(&4));
        let annotation = snapshot.annotations[0];
        assert_eq!(snapshot.texts.get(annotation.name), "step 1");
        assert!(annotation.begins);
        assert_eq!(snapshot.devices(), [0]);
        assert_eq!(snapshot.texts.get(TextId::NONE), "");
    }
}

#[test]
fn the_bare_list_of_segments_is_a_snapshot() {
    let (snapshot, problems) = read(SEGMENTS).expect("the file is whole");
    assert!(problems.is_empty());
    assert_eq!((snapshot.segments.len(), snapshot.blocks.len(), snapshot.events.len()), (1, 3, 0));
}

#[test]
fn a_file_cut_off_anywhere_gives_what_comes_before() {
    for whole in SMALL {
        let mut events = 0;
        for length in 0..whole.len() {
            let problem = match read(&whole[..length]) {
                Ok((snapshot, mut problems)) => {
                    let now: usize = snapshot.traces.iter().map(ExactSizeIterator::len).sum();
                    assert!(now >= events, "at {length}: {now} events after {events}");
                    events = now;
                    match problems.swap_remove(0) {
                        Problem::Broken(error) => error,
                        other => panic!("at {length}: {other}"),
                    }
                }
                Err(SnapshotError::Pickle(error)) => error,
                Err(error) => panic!("at {length}: {error}"),
            };
            let expected = if length < 2 {
                "this is not a pickle of protocol 2 or later"
            } else {
                "the file is truncated"
            };
            assert_eq!(problem.kind.to_string(), expected, "at {length}");
            assert!(problem.offset <= length as u64);
        }
        assert_eq!(events, 7, "all events are there before the last byte is");
    }
}

#[test]
fn nothing_that_would_run_is_run() {
    let system = error(b"\x80\x02cos\nsystem\nq\x00X\x02\x00\x00\x00lsq\x01\x85q\x02Rq\x03.");
    assert_eq!(system.offset, 2);
    assert_eq!(system.to_string(), "at byte 2: `GLOBAL` would run code of `os.system`, so it was refused");
    assert!(system.hint().is_some());
    let stacked = error(b"\x80\x04\x8c\x08builtins\x94\x8c\x04eval\x94\x93\x94.");
    assert_eq!(
        stacked.kind.to_string(),
        "`STACK_GLOBAL` would run code of `builtins.eval`, so it was refused"
    );
    for operation in [b'R', b'b', b'o', b'P', b'Q', b'i', 0x81, 0x82, 0x83, 0x84, 0x92] {
        let refused = error(&pickle(&[b')', operation]));
        assert!(matches!(refused.kind, PickleErrorKind::Refused { .. }), "{operation:#x}: {refused}");
        assert_eq!(refused.offset, 3);
    }
}

#[test]
fn other_files_are_told_apart_from_broken_snapshots() {
    for bytes in [&b""[..], b"\x80", b"PK\x03\x04", b"(lp0\n.", b"\x80\x01.", b"\x80\xff."] {
        assert!(matches!(error(bytes).kind, PickleErrorKind::NotAPickle), "{bytes:?}");
    }
    assert!(matches!(error(b"\x80\x06.").kind, PickleErrorKind::Protocol(6)));
    for operations in [&b"}."[..], b"].", b"N.", b"K\x01.", b"\x8c\x01a.", b"}\x8c\x01aK\x01s."] {
        let result = read(&pickle(operations));
        assert!(matches!(result, Err(SnapshotError::NotASnapshot(_))), "{operations:?}: {result:?}");
    }
}

#[test]
fn operations_that_do_not_fit_are_errors_with_their_place() {
    for (operations, offset, text) in [
        (&b"."[..], 2, "`STOP` needs more values than the stack has"),
        (b"s", 2, "`SETITEM` needs more values than the stack has"),
        (b"K\x01K\x02a", 6, "`APPEND` needs a list"),
        (b"]K\x01K\x02s", 7, "`SETITEM` needs a dict that is not complete yet"),
        (b"e", 2, "`APPENDS` needs more values than the stack has"),
        (b"(e", 3, "`APPENDS` needs more values than the stack has"),
        (b"}(K\x01u", 6, "`SETITEMS` needs more values than the stack has"),
        (b"h\x05", 2, "memo entry 5 does not exist"),
        (b"]r\xff\xff\xff\xff", 3, "memo entry 4294967295 is out of order"),
        (b"\x94", 2, "`MEMOIZE` needs more values than the stack has"),
        (b"](\x94", 4, "`MEMOIZE` needs more values than the stack has"),
        (b"\x8c\x02\xc3\x28", 2, "a string is not UTF-8"),
        (
            b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
            2,
            "a string or number has 9223372036854775807 bytes, but the limit is 16777216",
        ),
        (b"X\xff\xff\xff\x00", 2, "the file is truncated"),
        (b"\x8b\xff\xff\xff\xff", 2, "a string or number has 4294967295 bytes, but the limit is 16777216"),
        (b"\xfe", 2, "operation 0xfe is not allowed: plain data does not need it"),
        (b"I1\n", 2, "operation 0x49 is not allowed: plain data does not need it"),
    ] {
        let error = error(&pickle(operations));
        assert_eq!((error.offset, error.kind.to_string().as_str()), (offset, text), "{operations:?}");
    }
}

#[test]
fn depth_and_memory_are_bounded() {
    let deep = pickle(&b"](".repeat(10_000));
    assert!(matches!(error(&deep).kind, PickleErrorKind::TooDeep(512)));
    // Each list holds the one before twice: exponential growth, not a tree.
    let laughs: Vec<u8> = (0..200).flat_map(|_| *b"](h\x00h\x00e\x94").collect();
    let laughs = pickle(&[b"]\x94".as_slice(), &laughs, b"."].concat());
    assert!(matches!(read(&laughs), Err(SnapshotError::NotASnapshot(_))));
    let many = pickle(&b"]".repeat(1 << 20));
    let limits = PickleLimits { memory: 1 << 20, ..PickleLimits::default() };
    match Snapshot::read(&many[..], limits) {
        Err(SnapshotError::Pickle(error)) => {
            assert!(matches!(error.kind, PickleErrorKind::TooLarge(_)), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // A stack that grows frame by frame would create a stack of each length; none may be longer than a
    // program's.
    let frame = b"}(\x8c\x04nameX\x01\x00\x00\x00f\x8c\x08filenameh\x00\x8c\x04lineK\x01u";
    let mut growing = b"\x8c\x01f\x940".to_vec();
    growing.extend_from_slice(frame);
    growing.extend_from_slice(b"\x940](h\x01e");
    growing.extend(b"h\x01a".repeat(1 << 17));
    match Snapshot::read(&pickle(&growing)[..], PickleLimits { memory: 64 << 20, ..limits }) {
        Err(SnapshotError::Pickle(error)) => {
            assert!(matches!(error.kind, PickleErrorKind::CutOff), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_list_that_holds_itself_does_no_harm() {
    for operations in [&b"]\x94h\x00a."[..], b"}\x94\x8c\x08segmentsh\x00s.", b"]\x94(h\x00h\x00e."] {
        assert!(read(&pickle(operations)).is_err(), "{operations:?}");
    }
}

#[test]
fn entries_of_the_wrong_type_are_counted_and_left_out() {
    let entry = |field: &str, value: &[u8]| {
        let fields: [(&str, &[u8]); 4] =
            [("action", b"\x8c\x05alloc"), ("addr", b"K\x00"), ("size", b"K\x01"), ("stream", b"K\x00")];
        let mut bytes = b"}(".to_vec();
        for (name, usual) in fields {
            bytes.extend([0x8c, name.len() as u8]);
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(if name == field { value } else { usual });
        }
        bytes.push(b'u');
        bytes
    };
    let whole = |entries: &[Vec<u8>]| {
        pickle(&[&b"}\x8c\x0ddevice_traces](]("[..], &entries.concat(), b"ees."].concat())
    };
    let good = entry("", b"");
    for (field, value) in [
        ("size", &b"\x8c\x03big"[..]),
        ("size", b"J\xff\xff\xff\xff"),
        ("size", b"\x8a\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"),
        ("addr", b"G\x40\x00\x00\x00\x00\x00\x00\x00"),
        ("stream", b"N"),
        ("action", b"K\x01"),
    ] {
        let (snapshot, problems) =
            read(&whole(&[good.clone(), entry(field, value), good.clone()])).expect("it is whole");
        assert_eq!(snapshot.trace(0).len(), 2, "{field} {value:?}");
        assert!(matches!(problems[..], [Problem::Malformed(1)]), "{field}: {problems:?}");
    }
    let (snapshot, problems) =
        read(&whole(&[good.clone(), entry("action", b"\x8c\x03new")])).expect("it is whole");
    assert_eq!(snapshot.trace(0).len(), 1);
    assert!(matches!(problems[..], [Problem::UnknownActions(1)]), "{problems:?}");
    // Larger than any signed number, but valid as an address.
    let large = entry("addr", b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00");
    let (snapshot, problems) = read(&whole(&[large])).expect("it is whole");
    assert!(problems.is_empty());
    assert_eq!(snapshot.trace(0)[0].address, 1 << 63);
}

proptest! {
    #[test]
    fn any_bytes_can_be_read(bytes: Vec<u8>) {
        let _ = read(&bytes);
        let _ = read(&pickle(&bytes));
    }

    #[test]
    fn bytes_say_the_same_however_they_arrive(
        which in 0_usize..5,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = [&SMALL[..], &[BACKWARD]].concat()[which].to_vec();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        check_any_way_of_arriving(&bytes);
    }

    #[test]
    fn any_damage_can_be_read(
        which in 0_usize..4,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = SMALL[which].to_vec();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok((snapshot, _)) = read(&bytes) {
            // The result is consistent even after an error.
            for segment in &snapshot.segments {
                let sum: u64 = snapshot.blocks_of(segment).iter().map(|block| block.size).sum();
                prop_assert_eq!(sum, segment.size);
            }
            for device in snapshot.devices() {
                for event in snapshot.trace(device) {
                    prop_assert!(usize::from(event.stream) < snapshot.streams.len());
                    prop_assert!(event.pool_index().is_none_or(|pool| pool < snapshot.pools.len()));
                    snapshot.stacks.get(event.stack).for_each(|frame| { snapshot.texts.get(frame.name); });
                }
            }
        }
    }
}
