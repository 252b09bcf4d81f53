//! Tests of the file format: what is written is read, and damage is seen.

use memfit_link::events::{Event, EventLog, Place};
use proptest::prelude::*;

use super::*;

/// A log in which some things happen to a few addresses, sense or no sense.
fn logs() -> impl Strategy<Value = EventLog> {
    let place = (0..3_u8, 0..5_u8, 1..3_u32, 0..4_u32, 0..9_u32)
        .prop_map(|(device, phase, thread, module, step)| Place { device, phase, thread, module, step });
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
    fn what_is_written_is_read(logs in proptest::collection::vec((logs(), any::<Option<u32>>()), 0..3)) {
        let origin = Origin { torch: Some("2.15.0".into()), capacity: Some(1 << 34), ..Origin::default() };
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
        // Damage beneath the compression, which a checksum would catch.
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
fn what_is_no_recording_is_said_to_be_none() {
    assert!(matches!(read(b"").unwrap_err(), RecordingError::NotARecording));
    assert!(matches!(read(b"PK\x03\x04 and so on and on").unwrap_err(), RecordingError::NotARecording));
    let mut later = written(&Recording::default());
    later[8] = 99;
    assert!(matches!(read(&later).unwrap_err(), RecordingError::Version { found: 99 }));
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
