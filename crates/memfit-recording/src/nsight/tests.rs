//! Tests on an export that SQLite itself has written, intact and damaged.

use super::*;

const EXPORT: &[u8] = include_bytes!("../../tests/data/nsight.sqlite");
const BASE: u64 = 0x7f00_0000_0000;
const MIB: u64 = 1 << 20;

#[test]
fn an_export_becomes_a_recording() {
    let (recording, problems) = read(EXPORT).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(
        (recording.origin.device.as_deref(), recording.origin.capacity),
        (Some("NVIDIA L4"), Some(23_609_475_072))
    );
    let [track] = &recording.tracks[..] else { panic!("{} tracks", recording.tracks.len()) };
    assert_eq!(track.pid, 4711);
    assert_eq!(track.blocks().len(), 60);
    let freed = track.blocks().iter().filter(|block| block.freed != crate::NEVER).count();
    assert_eq!(freed, 20);
    let last = track.block(59).unwrap();
    assert_eq!((last.address, last.bytes), (BASE + 59 * 2 * MIB, 2 * MIB));
    let most = track.moments().iter().map(|moment| moment.allocated).max();
    assert_eq!(most, Some(40 * 2 * MIB));
    assert!(track.unknown.contains(&Unknown::Before { blocks: 1, bytes: 512 }));
    let ranges: Vec<_> = track
        .ranges
        .iter()
        .map(|range| (track.texts.get(range.name).len(), range.thread, range.ended == crate::NEVER))
        .collect();
    // The long name uses overflow pages; a mark is not a range; the last range never ended.
    assert_eq!(ranges, [(6, 99, false), (23, 99, false), (1600, 99, false), (4, 99, true)]);
    assert_eq!(track.moments().steps().len(), 1);
}

#[test]
fn damage_is_told_and_nothing_worse() {
    for length in (0..EXPORT.len()).step_by(97) {
        match read(&EXPORT[..length]) {
            Ok((_, problems)) => assert!(!problems.is_empty(), "at {length}"),
            Err(error) => {
                assert!(error.to_string().starts_with("this SQLite file cannot be read: "), "{error}");
            }
        }
    }
    // Sets every byte of the first pages to extreme values: counts, types, children.
    for at in 0..2048.min(EXPORT.len()) {
        for value in [0, 1, 5, 13, 0x7f, 0xff] {
            let mut bytes = EXPORT.to_vec();
            bytes[at] = value;
            let _ = read(&bytes[..]);
        }
    }
}

#[test]
fn other_databases_are_refused_with_the_reason() {
    let error = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert_eq!(
        error(b"SQLite format 3\0"),
        "this SQLite file cannot be read: it does not begin like a SQLite 3 file"
    );
    let mut looped = EXPORT.to_vec();
    // The first page becomes its own parent.
    looped[100] = 5;
    looped[103..105].copy_from_slice(&[0, 0]);
    looped[108..112].copy_from_slice(&[0, 0, 0, 1]);
    assert_eq!(
        error(&looped),
        "this SQLite file cannot be read: page 1, at byte 0, is not valid: it lies within itself"
    );
    let mut empty = EXPORT.to_vec();
    empty[100] = 13;
    empty[103..105].copy_from_slice(&[0, 0]);
    assert!(error(&empty).contains("--cuda-memory-usage=true"));
}

proptest::proptest! {
    #[test]
    fn any_bytes_can_be_read(changes: Vec<(proptest::sample::Index, u8)>, cut: proptest::sample::Index) {
        let mut bytes = EXPORT[..cut.index(EXPORT.len())].to_vec();
        for (index, value) in changes {
            if !bytes.is_empty() {
                let at = index.index(bytes.len());
                bytes[at] = value;
            }
        }
        let _ = read(&bytes[..]);
    }
}
