//! Tests of the file format: round trips and detection of damage.

use std::collections::BTreeMap;

use memfit_channel::events::{Event, EventContext, EventLog, SegmentChange};
use proptest::prelude::*;

use super::*;
use crate::columns::ColumnWriter;
use crate::{Block, MomentKind, Origin, RangeSource, Span, StackId, Totals, Track, Unknown};

/// Logs of random events at a few addresses, consistent or not.
fn logs() -> impl Strategy<Value = EventLog> {
    let place =
        (0..3_u8, 0..5_u8, 1..3_u32, 0..4_u32, 0..9_u32).prop_map(|(device, phase, thread, module, step)| {
            EventContext { device, phase, thread, module, step }
        });
    let address = (1..9_u64).prop_map(|index| index * 512);
    let event = prop_oneof![
        (place.clone(), address.clone(), 1..2000_u64, any::<u64>(), any::<u64>()).prop_map(
            |(place, address, bytes, allocated, reserved)| Event::Alloc {
                place,
                address,
                bytes,
                allocated,
                reserved
            }
        ),
        (place.clone(), address.clone(), any::<u64>()).prop_map(|(place, address, allocated)| {
            Event::Free { place, address, bytes: 1, allocated, reserved: allocated }
        }),
        (0..5000_u64, 0..14_u8, 0..4_u32).prop_map(|(address, category, owner)| Event::Note {
            address,
            category,
            owner
        }),
        (0..4_u32, ".{0,8}").prop_map(|(id, text)| Event::Text { id, text }),
        place.clone().prop_map(|place| Event::ScopeEnter { place }),
        place.clone().prop_map(|place| Event::ScopeExit { place }),
        place.clone().prop_map(|place| Event::Phase { place }),
        (0..9_u32).prop_map(|step| Event::Step { step }),
        (place, any::<u64>()).prop_map(|(place, bytes)| Event::Oom {
            place,
            bytes,
            allocated: 0,
            reserved: 0
        }),
        (0..3_u8, 0..9_u64, address, 0..2000_u64).prop_map(|(device, number, address, bytes)| {
            Event::Requested { device, number, address, bytes }
        }),
        (0..4_u32, 0..4_u32, 0..9_u32).prop_map(|(id, name, line)| Event::Frame {
            id,
            name,
            file: name,
            line
        }),
        (0..4_u32, proptest::collection::vec(0..5_u32, 0..4))
            .prop_map(|(id, frames)| Event::Stack { id, frames }),
        (0..3_u8, 0..9_u64, 0..5_u32, any::<u64>()).prop_map(|(device, number, stack, time_us)| {
            Event::Traced { device, number, stack, stream: time_us % 3, time_us }
        }),
        (0..3_u8, 0..4_u8, 0..9_u64, 0..9_u64, 0..9_u64).prop_map(
            |(device, change, number, address, bytes)| {
                let change = SegmentChange::from_code(change).unwrap();
                let (address, bytes) = (address * 512, bytes * 512);
                Event::Segment {
                    device,
                    change,
                    number,
                    address,
                    bytes,
                    stack: 1,
                    stream: number,
                    time_us: number,
                }
            }
        ),
    ];
    (any::<u32>(), any::<bool>(), proptest::collection::vec(event, 0..200))
        .prop_map(|(pid, truncated, events)| EventLog { pid, truncated, events })
}

fn written(recording: &Recording) -> Vec<u8> {
    let mut bytes = Vec::new();
    recording.write(&mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<Recording> {
    Recording::read(bytes, Limits { bytes: 1 << 24 })
}

proptest! {
    #[test]
    fn written_events_are_read_back(logs in proptest::collection::vec((logs(), any::<Option<u32>>()), 0..3)) {
        let origin = Origin {
            torch: Some("2.15.0".into()),
            capacity: Some(1 << 34),
            sources: vec![crate::SourceFile::new("train.py".into(), "/a/train.py".into(), "import torch\n")],
            ..Origin::default()
        };
        let tracks = logs.iter().map(|(log, rank)| Track::from_log(log, *rank)).collect();
        let recording = Recording { origin, tracks };
        prop_assert_eq!(read(&written(&recording)).unwrap(), recording);
    }

    #[test]
    fn a_block_lives_from_its_birth_to_its_return(log in logs()) {
        let track = Track::from_log(&log, None);
        for (index, block) in (0..).zip(track.blocks()) {
            prop_assert_eq!(track.moment(block.born).unwrap().kind, MomentKind::Alloc(index));
            prop_assert!(block.freed > block.born);
            prop_assert!(block.requested.is_none_or(|requested| requested <= block.bytes));
        }
    }

    #[test]
    fn damage_is_an_error_and_nothing_worse(log in logs(), place: prop::sample::Index, flip in 1..=255_u8, cut: prop::sample::Index) {
        let bytes = written(&Recording { tracks: vec![Track::from_log(&log, None)], ..Recording::default() });
        let mut flipped = bytes.clone();
        flipped[place.index(bytes.len())] ^= flip;
        let _ = read(&flipped);
        // Damage to the uncompressed data, which zstd's checksum would catch.
        let mut plain = zstd::decode_all(&bytes[12..]).unwrap();
        let at = place.index(plain.len());
        plain[at] ^= flip;
        let mut hostile = bytes[..12].to_vec();
        hostile.extend(zstd::encode_all(&plain[..], 1).unwrap());
        let _ = read(&hostile);
        prop_assert!(read(&bytes[..cut.index(bytes.len())]).is_err());
    }
}

#[test]
fn other_files_are_refused_as_recordings() {
    assert!(matches!(read(b"").unwrap_err(), RecordingError::NotARecording));
    assert!(matches!(read(b"PK\x03\x04 and so on and on").unwrap_err(), RecordingError::NotARecording));
    let mut later = written(&Recording::default());
    later[8] = 99;
    assert!(matches!(read(&later).unwrap_err(), RecordingError::Version { found: 99 }));
}

#[test]
fn a_life_that_ends_before_it_begins_is_damage() {
    let mut track = Track::default();
    let block = Block { bytes: 512, ..Block::default() };
    for _ in 0..3 {
        track.alloc(&block, Totals::default());
    }
    track.blocks.set_freed(2, 1);
    let file = written(&Recording { tracks: vec![track], ..Recording::default() });
    let (recording, problems) = Recording::read_until_fault(&file[..], Limits::default()).unwrap();
    assert_eq!(recording.tracks.len(), 0, "the track is left out");
    assert!(problems[0].to_string().contains("ends before it begins"), "{}", problems[0]);
}

#[test]
fn a_bomb_is_not_unpacked() {
    let mut bomb = written(&Recording::default())[..12].to_vec();
    let zeros = vec![0x80; 1 << 22];
    let mut content = ColumnWriter(Vec::new());
    content.number(1 << 29).unwrap();
    content.0.extend(&zeros);
    bomb.extend(zstd::encode_all(&content.0[..], 3).unwrap());
    let error = Recording::read(&bomb[..], Limits { bytes: 1 << 20 }).unwrap_err();
    assert!(matches!(error, RecordingError::Damaged { .. } | RecordingError::TooLarge { .. }), "{error}");
}

/// A track with at least one row of every kind.
fn full(steps: u32) -> Track {
    let mut track = Track { rank: Some(3), ..Track::default() };
    let (name, file) = (track.texts.intern("forward"), track.texts.intern("model.py"));
    let frame = track.stacks.intern_frame(crate::Frame { name, file, line: 7 });
    let stack = track.stacks.intern(&[frame]);
    let (stream, pool) = (track.stream(0x7000), track.pool((0, 3)));
    for step in 0..steps {
        let time = Some(1_000_000 + u64::from(step) * 10);
        let totals = |allocated| Totals { allocated, reserved: 20 << 20, time_us: time };
        let range = track.begin_range(name, RangeSource::Nvtx, 1, time);
        let span = Span {
            address: 0x7f00_0000_0000,
            bytes: 20 << 20,
            born: 0,
            freed: NEVER,
            stream,
            pool,
            device: 1,
            small: Some(false),
            expandable: step % 2 == 1,
        };
        let span = track.reserve(span, stack, totals(0));
        let address = 0x7f00_0000_0000 + u64::from(step) * 512;
        let block = Block {
            address,
            bytes: 4096,
            requested: Some(4000),
            device: 1,
            stack,
            stream,
            pool,
            ..Block::default()
        };
        let kept = track.alloc(&block, totals(4096));
        track.free(kept, 1, StackId::NONE, totals(0));
        track.complete(kept, 1, totals(0));
        track.release(span, 1, StackId::NONE, totals(0));
        let lost = track.alloc(&Block { address: address + 4096, ..block }, totals(4096));
        track.lose(lost);
        track.alloc(&Block { requested: None, address: address + 8192, ..block }, totals(8192));
        track.add_moment(MomentKind::Oom(1 << 40), 1, stack, totals(8192));
        track.add_moment(MomentKind::Snapshot, 1, stack, totals(8192));
        track.end_range(range, time);
        track.add_moment(MomentKind::Step(step + 1), 0, StackId::NONE, Totals::default());
    }
    track.refusals = BTreeMap::from([(11, crate::Refusal { left: 3 << 20, stream, pool })]);
    track.unknown.push(Unknown::Before { blocks: 1, bytes: 2 });
    track.settings =
        Some(crate::TracedSettings { text: "max_split_size_mb:128".into(), ..Default::default() });
    track
}

#[test]
fn everything_that_a_track_can_say_is_written_and_read() {
    let recording = Recording { tracks: vec![full(3), full(1)], ..Recording::default() };
    assert_eq!(read(&written(&recording)).unwrap(), recording);
}

#[test]
fn a_track_can_be_written_while_it_grows() {
    let mut file = Vec::new();
    let mut writer = RecordingWriter::new(&mut file, &Origin::default()).unwrap();
    let mut track = Track::default();
    let text = track.texts.intern("layer");
    for round in 0..40_u32 {
        let block = Block { address: u64::from(round) << 9, bytes: 512, ..Block::default() };
        let index = track.alloc(&block, Totals::default());
        if round % 3 == 0 {
            writer.sync(0, &mut track).unwrap();
        }
        // Set after the blocks were written: for this block and for one freed long ago.
        track.set_requested(index, Some(500));
        track.set_noted(index / 2, Some(memfit_vocabulary::Category::Gradients));
        track.set_owner(index / 2, text);
        if round % 5 == 0 {
            track.lose(index / 3);
        } else if round % 7 == 0 {
            track.free(index, 0, StackId::NONE, Totals::default());
        }
    }
    writer.sync(0, &mut track).unwrap();
    writer.finish().unwrap();
    assert_eq!(read(&file).unwrap().tracks, [track]);
}

#[test]
fn a_file_that_breaks_off_is_good_up_to_there() {
    let mut file = Vec::new();
    let mut writer = RecordingWriter::new(&mut file, &Origin::default()).unwrap();
    let mut track = full(2);
    writer.sync(0, &mut track).unwrap();
    writer.flush().unwrap();
    // Simulates a killed process.
    drop(writer);
    let (read, problems) = Recording::read_until_fault(&file[..], Limits::default()).unwrap();
    assert_eq!(read.tracks[0].moments(), track.moments());
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(matches!(read.tracks[0].unknown.last(), Some(Unknown::Rest { .. })));
}

#[test]
fn a_reader_sees_one_section_at_a_time() {
    let bytes = written(&Recording { tracks: vec![full(6_000)], ..Recording::default() });
    let mut reader = RecordingReader::new(&bytes[..], Limits::default()).unwrap();
    let (mut moments, mut most) = (0, 0);
    while let Some(part) = reader.next_part().unwrap() {
        if let Part::Moments(part) = part {
            moments += part.len();
            most = most.max(part.len());
        }
    }
    assert_eq!((moments, most), (6_000 * 12, MAX_SECTION_ROWS as usize));
}

#[test]
fn an_event_takes_forty_bytes_at_the_most() {
    let mut track = full(10_000);
    track.shrink();
    let each = track.memory() as f64 / f64::from(track.next_moment());
    assert!(each <= 40.0, "{each}");
    // The worst case for the file size: every block with a call, an owner and a stack, and no other events.
    let mut dear = Track::default();
    for index in 0..10_000_u32 {
        let name = dear.texts.intern(&index.to_string());
        let block = Block {
            address: 0x7f00_0000_0000 + u64::from(index) * 2_097_152,
            bytes: 2_097_152,
            requested: Some(2_000_000),
            call: index,
            module: name,
            owner: name,
            thread: 1,
            noted: Some(memfit_vocabulary::Category::Gradients),
            ..Block::default()
        };
        let totals = Totals {
            allocated: 2_097_152,
            reserved: 20 << 20,
            time_us: Some(1_757_253_255_215_904 + u64::from(index)),
        };
        let block = dear.alloc(&block, totals);
        dear.free(block, 0, StackId(index), totals);
    }
    dear.shrink();
    let each = dear.memory() as f64 / f64::from(dear.next_moment());
    assert!(each <= 40.0, "{each}");
}

#[test]
fn version_1_is_still_read() {
    let bytes = include_bytes!("../../tests/data/version-1.memfit");
    let recording = read(bytes).unwrap();
    let track = &recording.tracks[0];
    assert_eq!(recording.origin.device.as_deref(), Some("Tesla T4"));
    assert_eq!((track.moments().len(), track.blocks().len(), track.calls.len()), (31, 12, 3));
    assert!(track.unknown.contains(&Unknown::Stacks));
}
