//! Detection and reading of every kind of file: plain, compressed and hostile.

use std::io::Write as _;

use super::*;

const SMALL: &[u8] = include_bytes!("../../tests/data/small-4.pickle");
const ERROR: &str = "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.";

fn kind(bytes: &[u8]) -> Result<&'static str, OpenError> {
    read(bytes, OpenLimits::default()).map(|(source, problems)| {
        assert!(problems.is_empty(), "{problems:?}");
        match source {
            Source::Recording(_) => "recording",
            Source::Snapshot(snapshot) => {
                assert_eq!(snapshot.trace(0).len(), 7);
                "snapshot"
            }
            Source::Texts(_) => "texts",
        }
    })
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let number = chunk.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
                << (8 * (3 - chunk.len()));
            (0..4).map(move |place| {
                if place > chunk.len() {
                    '='
                } else {
                    char::from(LETTERS[(number >> (18 - 6 * place) & 63) as usize])
                }
            })
        })
        .collect()
}

#[test]
fn files_are_known_by_their_first_bytes() {
    let mut recording = Vec::new();
    Recording::default().write(&mut recording).unwrap();
    assert_eq!(kind(&recording).unwrap(), "recording");
    assert_eq!(kind(SMALL).unwrap(), "snapshot");
    assert_eq!(kind(ERROR.as_bytes()).unwrap(), "texts");
    let page = format!(
        "<!DOCTYPE html><script>const local_files = [{{\"name\": \"a\", \"base64\": \"{}\"}}]</script>",
        base64(SMALL)
    );
    assert_eq!(kind(page.as_bytes()).unwrap(), "snapshot");
    let notebook = serde_json::json!({"cells": [{"cell_type": "code", "outputs": [
        {"output_type": "stream", "text": ["a\n", "b\n"]},
        {"output_type": "error", "evalue": "x", "traceback": ["\u{1b}[31mTraceback\u{1b}[0m", ERROR]},
    ]}, {"cell_type": "markdown", "source": []}], "nbformat": 4});
    assert_eq!(kind(notebook.to_string().as_bytes()).unwrap(), "texts");
}

#[test]
fn packed_files_are_unpacked_on_the_fly() {
    // Written by `xz --check=crc32`; contains the error's text.
    const XZ: &[u8] = include_bytes!("../../tests/data/error.txt.xz");
    for bytes in [SMALL, ERROR.as_bytes()] {
        let plain = kind(bytes).unwrap();
        assert_eq!(kind(&gzip(bytes)).unwrap(), plain);
        assert_eq!(kind(&zstd::encode_all(bytes, 3).unwrap()).unwrap(), plain);
        assert_eq!(kind(&gzip(&zstd::encode_all(bytes, 3).unwrap())).unwrap(), plain);
    }
    assert_eq!(kind(XZ).unwrap(), "texts");
    let nested = (0..4).fold(SMALL.to_vec(), |bytes, _| gzip(&bytes));
    assert!(matches!(kind(&nested), Err(OpenError::Layers)));
}

#[test]
fn truncated_archives_are_read_up_to_the_cut() {
    let packed = zstd::encode_all(SMALL, 3).unwrap();
    let mut ends = 0;
    for length in 5..packed.len() {
        match read(&packed[..length], OpenLimits::default()) {
            Ok((_, problems)) => assert!(!problems.is_empty(), "at {length}"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        ends += 1;
    }
    assert!(ends > 100);
}

#[test]
fn decompression_bombs_are_refused() {
    // One endless line: the part beyond the maximum length is not searched.
    let line = vec![b'x'; 1 << 20];
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    for _ in 0..300 {
        encoder.write_all(&line).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    let error = read(&bomb[..], OpenLimits::default()).unwrap_err();
    assert!(error.to_string().contains("unpack to more than 1000 times as many"), "{error}");
}

#[test]
fn unreadable_sources_are_refused_with_the_reason() {
    for (bytes, text) in [
        (&b""[..], "the file is empty"),
        (b"PK\x03\x04and more", "the file is a zip archive, which memfit cannot read"),
        (b"BZh91AY&SY", "the file is compressed with bzip2, which memfit cannot read"),
        (
            b"nothing\nhere\n",
            "it is no recording, snapshot or trace, and a text without an out-of-memory error (2 lines)",
        ),
        (b"\0\0\0\0", "this is not a file that memfit can read"),
        (
            b"<html><body>hello</body></html>",
            "this HTML page cannot be read: no snapshot is in it: there is no `\"base64\"` in front of data",
        ),
        (
            b"<html>\"base64\": \"gASV!\"",
            "the snapshot cannot be read: at byte 0: the file cannot be read: at byte 21 of the page: 0x21 is not base64",
        ),
        (
            b"{\"cells\": [1]}",
            "this notebook cannot be read: at byte 12: invalid type: integer `1`, expected struct Cell at line 1 column 12",
        ),
        (b"\x80\x04}.", "this pickle holds other data, not a PyTorch memory snapshot"),
        (b"MEMFIT\x1a\n", "this is not a memfit recording"),
    ] {
        let error = read(bytes, OpenLimits::default()).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_can_be_opened(start in 0..6_usize, bytes: Vec<u8>) {
        let starts: [&[u8]; 6] = [b"", b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"<html>\"base64\": \"", b"{\"cells\": "];
        let _ = read(&[starts[start], &bytes].concat()[..], OpenLimits::default());
    }
}
