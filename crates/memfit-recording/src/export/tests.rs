//! Tests that exports agree with the recording.

use memfit_vocabulary::{Category, Phase};
use serde_json::Value;

use super::*;
use crate::SegmentBlockState::{Allocated, Inactive};
use crate::{
    Block, Call, Frame, Moment, MomentKind, NEVER, PickleLimits, RangeSource, Recording, Snapshot, Span,
    StackId, Totals, TraceAction, Track,
};

const BASE: u64 = 0x7f00_0000_0000;
const MIB: u64 = 1 << 20;

/// A track of two steps with at least one event of every kind.
fn track() -> Track {
    let mut track = Track { pid: 7, rank: Some(1), ..Track::default() };
    let (name, file, layer) = (
        track.texts.intern("forward, \"really\""),
        track.texts.intern("model.py"),
        track.texts.intern("encoder.0"),
    );
    let frame = track.stacks.intern_frame(Frame { name, file, line: 70 });
    let stack = track.stacks.intern(&[frame]);
    let (stream, pool) = (track.stream(0x55), track.pool((0, 9)));
    let at = |allocated: u64, time: u64| Totals {
        allocated,
        reserved: 20 * MIB,
        time_us: Some(1_757_253_255_000_000 + time),
    };
    let span = Span {
        address: BASE,
        bytes: 20 * MIB,
        born: 0,
        freed: NEVER,
        stream,
        pool,
        device: 0,
        small: Some(false),
        expandable: false,
    };
    track.reserve(span, stack, at(0, 0));
    let range = track.begin_range(name, RangeSource::Nvtx, 1, Some(1_757_253_255_000_001));
    track.add_moment(MomentKind::Phase(Phase::Forward), 0, StackId::NONE, Totals::default());
    track.calls.push(Call {
        module: layer,
        thread: 1,
        parent: NEVER,
        began: track.next_moment(),
        ended: NEVER,
    });
    track.add_moment(MomentKind::Enter(0), 0, StackId::NONE, Totals::default());
    let block = Block {
        address: BASE,
        bytes: 4 * MIB,
        requested: Some(4 * MIB - 100),
        call: 0,
        module: layer,
        stack,
        stream,
        pool,
        noted: Some(Category::Gradients),
        phase: Phase::Forward,
        ..Block::default()
    };
    let first = track.alloc(&block, at(4 * MIB, 2));
    track.alloc(&Block { address: BASE + 8 * MIB, requested: None, noted: None, ..block }, at(8 * MIB, 3));
    track.calls[0].ended = track.add_moment(MomentKind::Exit(0), 0, StackId::NONE, Totals::default());
    track.free(first, 0, StackId::NONE, at(4 * MIB, 4));
    track.add_moment(MomentKind::Step(1), 0, StackId::NONE, Totals::default());
    track.add_moment(MomentKind::Oom(64 * MIB), 0, stack, at(4 * MIB, 5));
    track.end_range(range, Some(1_757_253_255_000_006));
    track
}

fn recording() -> Recording {
    Recording { tracks: vec![track()], ..Recording::default() }
}

#[test]
fn what_is_known_of_the_process_is_in_its_snapshot() {
    let left = |limit| {
        let snapshot = Snapshot::from_track_of(&track(), Writer { names_pools: true, limit });
        assert!(snapshot.events.iter().all(|event| event.pool.is_some()));
        let oom = snapshot.events.iter().find(|event| event.action == TraceAction::Oom).unwrap();
        oom.address
    };
    let failed = |moment: &Moment| matches!(moment.kind, MomentKind::Oom(_));
    let reserved = track().moments().iter().find(failed).unwrap().reserved;
    assert_eq!((left(None), left(Some(reserved + 5 * MIB))), (0, 5 * MIB));
    assert!(Snapshot::from_track(&track()).events.iter().any(|event| event.pool.is_none()));
}

#[test]
fn a_recording_becomes_the_snapshot_that_its_process_would_have_written() {
    let snapshot = Snapshot::from_track(&track());
    let mut pickle = Vec::new();
    snapshot.write(&mut pickle).unwrap();
    let (read, problems) = Snapshot::read(&pickle[..], PickleLimits::default()).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    let lines: Vec<String> = read
        .trace(0)
        .iter()
        .map(|event| {
            let place = event.address.saturating_sub(BASE) / MIB;
            let frames = read.stacks.get(event.stack).len();
            let pool = event.pool_index().map(|pool| read.pools[pool]);
            format!("{:?} {place} {} {frames} {pool:?} {:?}", event.action, event.size, event.category)
        })
        .collect();
    assert_eq!(
        lines,
        [
            "SegmentAlloc 0 20971520 1 Some((0, 9)) None",
            "Alloc 0 4194204 1 Some((0, 9)) Some(Gradients)",
            "Alloc 8 4194304 1 Some((0, 9)) None",
            "FreeRequested 0 4194204 0 Some((0, 9)) None",
            "FreeCompleted 0 4194204 0 Some((0, 9)) None",
            "Oom 0 67108864 1 None None",
        ]
    );
    let segment = &read.segments[0];
    let blocks: Vec<_> = read
        .blocks_of(segment)
        .iter()
        .map(|block| ((block.address - BASE) / MIB, block.size / MIB, block.state))
        .collect();
    assert_eq!(blocks, [(0, 8, Inactive), (8, 4, Allocated), (12, 8, Inactive)]);
    assert_eq!((segment.stream, segment.pool, segment.small), (0x55, (0, 9), false));
    assert_eq!(read.annotations.len(), 2);
}

#[test]
fn a_snapshot_that_is_written_again_says_the_same() {
    for bytes in [
        include_bytes!("../../tests/data/small-2.pickle").as_slice(),
        include_bytes!("../../tests/data/small-5.pickle"),
        include_bytes!("../../tests/data/segments.pickle"),
    ] {
        let (first, _) = Snapshot::read(bytes, PickleLimits::default()).unwrap();
        let mut pickle = Vec::new();
        first.write(&mut pickle).unwrap();
        let (again, problems) = Snapshot::read(&pickle[..], PickleLimits::default()).unwrap();
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(again.segments, first.segments);
        assert_eq!(again.settings, first.settings);
        assert_eq!(again.traces, first.traces);
        let said = |snapshot: &Snapshot| -> Vec<String> {
            let event = |event: &crate::TraceEvent| {
                let frames: Vec<_> = snapshot
                    .stacks
                    .get(event.stack)
                    .map(|frame| (snapshot.texts.get(frame.name), snapshot.texts.get(frame.file), frame.line))
                    .collect();
                let stream = snapshot.streams[usize::from(event.stream)];
                format!(
                    "{:?} {} {} {stream} {} {frames:?}",
                    event.action, event.address, event.size, event.time_us
                )
            };
            snapshot.events.iter().map(event).collect()
        };
        assert_eq!(said(&again), said(&first));
    }
}

#[test]
fn numbers_of_every_length_survive_a_pickle() {
    for exponent in 0..64 {
        for number in [1_u64 << exponent, (1 << exponent) - 1, u64::MAX >> (63 - exponent)] {
            let mut track = Track::default();
            let block = Block { address: number, bytes: 512, ..Block::default() };
            track.alloc(&block, Totals { time_us: Some(number), ..Totals::default() });
            let mut pickle = Vec::new();
            Snapshot::from_track(&track).write(&mut pickle).unwrap();
            let (read, problems) = Snapshot::read(&pickle[..], PickleLimits::default()).unwrap();
            assert!(problems.is_empty(), "{number}: {problems:?}");
            assert_eq!((read.events[0].address, read.events[0].time_us), (number, number));
        }
    }
}

#[test]
fn a_chrome_trace_has_slices_that_close_and_memory_as_the_profiler_tells_it() {
    let mut json = Vec::new();
    write_chrome(&recording(), &mut json).unwrap();
    let trace: Value = serde_json::from_slice(&json).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let count = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
    assert_eq!((count("B"), count("E")), (3, 3), "a range, a phase and a call");
    let memory: Vec<&Value> =
        events.iter().filter(|event| event["name"] == "[memory]").map(|event| &event["args"]).collect();
    let exported: Vec<_> = memory
        .iter()
        .map(|args| (args["Bytes"].as_i64().unwrap(), args["Total Allocated"].as_u64().unwrap()))
        .collect();
    assert_eq!(exported, [(4_194_204, 4 * MIB), (4_194_304, 8 * MIB), (-4_194_204, 4 * MIB)]);
    let mut times: Vec<u64> = events.iter().filter_map(|event| event["ts"].as_u64()).collect();
    let sorted = times.is_sorted();
    times.dedup();
    assert!(sorted && times.len() > 4);
}

/// Decodes the fields of a protocol buffer: numbers and bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, u64, &[u8])> {
    let mut fields = Vec::new();
    let varint = |message: &mut &[u8]| {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = message.split_first().unwrap();
            *message = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    };
    while !message.is_empty() {
        let key = varint(&mut message);
        let value = varint(&mut message);
        if key & 7 == 2 {
            let (bytes, rest) = message.split_at(value as usize);
            message = rest;
            fields.push((key >> 3, 0, bytes));
        } else {
            assert_eq!(key & 7, 0, "only numbers and bytes are written");
            fields.push((key >> 3, value, &[]));
        }
    }
    fields
}

#[test]
fn a_perfetto_trace_has_the_same_slices_and_counters() {
    let mut trace = Vec::new();
    write_perfetto(&recording(), &mut trace).unwrap();
    let (mut kinds, mut counters, mut described, mut used) = ([0; 5], Vec::new(), Vec::new(), Vec::new());
    for (field, _, packet) in fields(&trace) {
        assert_eq!(field, 1);
        for (field, _, message) in fields(packet) {
            let number = |wanted: u64| {
                fields(message).into_iter().find(|(field, ..)| *field == wanted).map(|(_, value, _)| value)
            };
            if field == 60 {
                described.push(number(1).unwrap());
            } else if field == 11 {
                kinds[number(9).unwrap() as usize] += 1;
                used.push(number(11).unwrap());
                counters.extend(number(30));
            }
        }
    }
    assert_eq!(kinds, [0, 3, 3, 2, 6], "slices that begin and end, a step and an error, counters");
    assert_eq!(counters, [4 * MIB, 20 * MIB, 8 * MIB, 20 * MIB, 4 * MIB, 20 * MIB]);
    assert!(used.iter().all(|track| described.contains(track)));
}

#[test]
fn rows_have_what_the_recording_has() {
    let text = |rows, format| {
        let mut bytes = Vec::new();
        write_rows(&recording(), rows, format, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let csv = text(Rows::Blocks, RowFormat::Csv);
    let first = csv.lines().nth(1).unwrap();
    assert_eq!(
        first,
        "1,0,0x7f0000000000,4194304,4194204,4,1757253255000002,7,1757253255000004,1,forward,encoder.0,,gradients,0,85,0.9,\"model.py:70 in forward, \"\"really\"\"\""
    );
    assert_eq!(csv.lines().count(), 3);
    let lines = text(Rows::Events, RowFormat::JsonLines);
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "segment-alloc",
            "range-begin",
            "phase",
            "enter",
            "alloc",
            "alloc",
            "exit",
            "free",
            "step",
            "oom",
            "range-end"
        ]
    );
    assert_eq!(events[9]["stack"][0], "model.py:70 in forward, \"really\"");
}

#[test]
fn a_spreadsheet_gets_nothing_that_acts() {
    let mut track = Track::default();
    let file = track.texts.intern("evil\r\n=cmd\u{1b}[2J\u{202e}.py");
    let name = track.texts.intern("=1+1");
    let frame = track.stacks.intern_frame(Frame { name, file, line: 3 });
    let stack = track.stacks.intern(&[frame]);
    track.alloc(&Block { bytes: 512, module: name, stack, ..Block::default() }, Totals::default());
    let mut rows = Vec::new();
    let recording = Recording { tracks: vec![track], ..Recording::default() };
    rows::write(&recording, Rows::Blocks, RowFormat::Csv, &mut rows).unwrap();
    let text = String::from_utf8(rows).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(!text.chars().any(|c| c != '\n' && memfit_vocabulary::acts(c)), "{text}");
    assert!(text.contains("evil\\r\\n=cmd") && text.contains(",'=1+1,"), "{text}");
}
