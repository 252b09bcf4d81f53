//! Hostile files, each with its expected message, and files of every format cut off at every byte.
//!
//! `tests/hostile/` holds the files and `make.py`, which generates them; `expected.txt` there has a line for
//! each. After an intended change, `UPDATE_EXPECT=1` rewrites it; review the difference before committing it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use memfit_recording::{Limits, OpenLimits, PickleLimits, Recording, Source, read};

/// Limits for these files. Each would ask for more if it could.
const LIMITS: OpenLimits = OpenLimits {
    pickle: PickleLimits { memory: 64 << 20, for_each_byte: 64, text: 16 << 20, depth: 512 },
    recording: Limits { bytes: 64 << 20 },
};

/// Maximum memory for reading all of them: a few times the limit of one.
const MEMORY_MIB: u64 = 640;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn open(bytes: &[u8]) -> Result<(Source, Vec<String>), String> {
    let (source, problems) = read(bytes, LIMITS).map_err(|error| error.to_string())?;
    Ok((source, problems.iter().map(ToString::to_string).collect()))
}

/// Counts the usable content: events, segments, errors. A block counts with its segment, or with the moment
/// of its allocation.
fn amount(source: &Source) -> Vec<usize> {
    match source {
        Source::Snapshot(snapshot) => {
            vec![snapshot.traces.iter().map(ExactSizeIterator::len).sum(), snapshot.segments.len()]
        }
        Source::Recording(recording) => {
            let sum = |of: fn(&memfit_recording::Track) -> usize| recording.tracks.iter().map(of).sum();
            vec![sum(|track| track.moments().len()), recording.tracks.len()]
        }
        Source::Texts(texts) => vec![texts.len()],
    }
}

/// Describes the result of reading a file in one line.
fn outcome(bytes: &[u8]) -> String {
    let (source, problems) = match open(bytes) {
        Ok(read) => read,
        Err(error) => return error,
    };
    let amount = amount(&source);
    let mut line = match source {
        Source::Snapshot(_) => {
            format!("read: {} events, {} segments", amount[0], amount[1])
        }
        Source::Recording(_) => {
            format!("read: {} moments, {} tracks", amount[0], amount[1])
        }
        Source::Texts(_) => format!("read: {} errors", amount[0]),
    };
    for problem in problems {
        let _ = write!(line, "; {problem}");
    }
    line
}

/// Peak memory of this process in MiB.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the system tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it tells of memory");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("it is a number") >> 10
}

#[test]
fn each_file_that_is_made_to_do_harm_is_told_from_what_it_claims_to_be() {
    let table = folder("hostile/expected.txt");
    let mut files: Vec<PathBuf> = fs::read_dir(folder("hostile"))
        .expect("the folder is there")
        .map(|file| file.expect("it can be listed").path())
        .filter(|file| !matches!(file.extension().and_then(|end| end.to_str()), Some("py" | "txt")))
        .collect();
    files.sort();
    let mut found = String::new();
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let bytes = fs::read(file).expect("it can be read");
        let _ = writeln!(found, "{name}: {}", outcome(&bytes));
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&table, &found).expect("the table can be written");
    }
    let expected = fs::read_to_string(&table).expect("the table is there");
    let lines = |text: &str| -> BTreeMap<String, String> {
        let pairs = text.lines().filter_map(|line| line.split_once(": "));
        pairs.map(|(name, outcome)| (name.to_owned(), outcome.to_owned())).collect()
    };
    let (found, expected) = (lines(&found), lines(&expected));
    for (name, outcome) in &found {
        assert_eq!(Some(outcome), expected.get(name), "{name}");
    }
    assert_eq!(found.len(), expected.len(), "each line of the table has its file");
    assert!(found.len() >= 100, "the files are there");
    let most = peak_memory();
    assert!(most < MEMORY_MIB, "reading them took {most} MiB");
}

/// A small file of each format.
fn small_files() -> Vec<(&'static str, Vec<u8>)> {
    let data = |name: &str| fs::read(folder("data").join(name)).expect("the file is there");
    let snapshot = data("small-4.pickle");
    let old = data("version-1.memfit");
    let mut new = Vec::new();
    let recording = Recording::read(&old[..], Limits::default()).expect("it is whole");
    recording.write(&mut new).expect("memory can be written to");
    let mut chrome = Vec::new();
    memfit_recording::write_chrome(&recording, &mut chrome).expect("memory can be written to");
    let hostile = |name: &str| fs::read(folder("hostile").join(name)).expect("the file is there");
    let whole_page = {
        let cut = hostile("page-cut-off.html");
        let start = cut.windows(10).position(|part| part == b"\"base64\": ").expect("it is a page") + 11;
        [&cut[..start], base64(&snapshot).as_bytes(), b"\"}])</script>"].concat()
    };
    vec![
        ("protocol 2", data("small-2.pickle")),
        ("protocol 3", data("small-3.pickle")),
        ("protocol 4", snapshot.clone()),
        ("protocol 5", data("small-5.pickle")),
        ("segments", data("segments.pickle")),
        ("zstd", zstd::encode_all(&snapshot[..], 3).expect("memory can be written to")),
        ("xz", data("error.txt.xz")),
        ("page", whole_page),
        ("version 1", old),
        ("version 2", new),
        ("trace", chrome),
        ("database", data("nsight.sqlite")),
        ("notebook", NOTEBOOK.to_vec()),
    ]
}

const NOTEBOOK: &[u8] = br#"{"nbformat": 4, "cells": [{"cell_type": "code", "outputs": [{"output_type": "error", "ename": "OutOfMemoryError",
 "evalue": "CUDA out of memory.", "traceback": ["\u001b[0;31mOutOfMemoryError\u001b[0m: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.49 GiB of which 1.00 GiB is free."]}]}]}"#;

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let word = part.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for place in 0..=part.len() {
            text.push(char::from(LETTERS[(word >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text
}

/// Possible messages for a file that is too short for its format to be recognised.
const TOO_SHORT: [&str; 7] = [
    "the file is empty",
    "this is not a file that memfit can read",
    "this is not a memfit recording",
    "it is no recording, snapshot or trace, and a text without an out-of-memory error",
    "no snapshot is in it",
    "it does not begin like a SQLite 3 file",
    "it has no table",
];

#[test]
fn a_file_of_any_format_cut_off_at_any_byte_gives_what_comes_before_and_the_place() {
    for (name, bytes) in small_files() {
        let whole = open(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(whole.1.is_empty(), "{name}: {:?}", whole.1);
        let whole = amount(&whole.0);
        let mut most = vec![0; whole.len()];
        let mut in_part = 0;
        for length in 0..bytes.len() {
            let said = match open(&bytes[..length]) {
                Ok((source, problems)) => {
                    let now = amount(&source);
                    if now.len() == most.len() {
                        let more = now.iter().zip(&most).all(|(now, before)| now >= before);
                        assert!(more, "{name} at {length}: {now:?} after {most:?}");
                        in_part += usize::from(now != whole);
                        most = now;
                    }
                    // Only the closing bytes may be missing without a problem being reported.
                    if problems.is_empty() && most == whole {
                        continue;
                    }
                    problems.join("; ")
                }
                Err(error) => {
                    assert!(
                        most.iter().all(|count| *count == 0),
                        "{name} at {length}: {error} after {most:?}"
                    );
                    error
                }
            };
            let located = said.contains("byte ") || TOO_SHORT.iter().any(|short| said.contains(short));
            assert!(located, "{name} at {length}: {said}");
        }
        println!("{name}: {} bytes, {in_part} lengths of which a part can be used", bytes.len());
        // A compressed or encoded file yields nothing before its first whole block; every other yields parts.
        let packed = ["zstd", "xz", "notebook", "version 1", "version 2"].contains(&name);
        assert!(in_part > 0 || packed, "{name} gives nothing of what is there");
    }
}

/// Encodes a text in a pickle.
fn text(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8], text.as_bytes()].concat()
}

/// Encodes a dict in a pickle, from keys and the operations that build their values.
fn dict(pairs: &[(&str, &[u8])]) -> Vec<u8> {
    let pairs: Vec<u8> = pairs.iter().flat_map(|(key, value)| [&text(key)[..], value].concat()).collect();
    [b"}(", &pairs[..], b"u"].concat()
}

/// A pickle that lists one object of its memo two hundred thousand times.
fn listed_again_and_again(key: &str, shared: &[u8]) -> Vec<u8> {
    let start = [b"\x80\x04}(", &text(key)[..], b"]("].concat();
    [start, shared.to_vec(), b"r\x00\x00\x00\x00".to_vec(), b"h\x00".repeat(200_000), b"eu.".to_vec()]
        .concat()
}

#[test]
fn repeated_lists_are_read_once() {
    let event =
        dict(&[("action", &text("alloc")), ("addr", b"K\x00"), ("size", b"K\x01"), ("stream", b"K\x00")]);
    let block = dict(&[("address", b"K\x00"), ("size", b"K\x00"), ("state", &text("inactive"))]);
    let last = dict(&[("address", b"K\x00"), ("size", b"K\x01"), ("state", &text("inactive"))]);
    let blocks = [b"](", &block.repeat(999)[..], &last, b"e"].concat();
    let segment = dict(&[
        ("device", b"K\x00"),
        ("address", b"K\x00"),
        ("total_size", b"K\x01"),
        ("stream", b"K\x00"),
        ("segment_type", &text("large")),
        ("blocks", &blocks),
    ]);
    // A list with a gap is not a run of rows, and one without is.
    let (run, holed) =
        ([b"](", &event.repeat(1000)[..], b"e"].concat(), [b"](N", &event.repeat(1000)[..], b"e"].concat());
    for (key, shared, most) in [
        ("device_traces", &run, vec![1000, 0]),
        ("device_traces", &holed, vec![1000, 0]),
        ("segments", &segment, vec![0, 1]),
    ] {
        let file = listed_again_and_again(key, shared);
        let (source, problems) = open(&file).expect("it is a snapshot");
        assert!(problems.iter().any(|problem| problem.contains("are duplicates")), "{key}: {problems:?}");
        let Source::Snapshot(snapshot) = &source else { panic!("{key} is a snapshot's") };
        let amount = amount(&source);
        assert!(amount.iter().zip(&most).all(|(amount, most)| amount <= most), "{key}: {amount:?}");
        assert!(snapshot.traces.len() <= 1024, "{key}: {}", snapshot.traces.len());
    }
    let most = peak_memory();
    assert!(most < MEMORY_MIB, "reading them took {most} MiB");
}

#[test]
fn a_small_file_gets_no_more_memory_than_a_multiple_of_it() {
    // Each byte makes a list, which takes sixteen bytes and more.
    let file = [b"\x80\x04](", &b"]".repeat(4 << 20)[..], b"e."].concat();
    let mean = PickleLimits { for_each_byte: 1, ..PickleLimits::default() };
    let error =
        read(&file[..], OpenLimits { pickle: mean, ..OpenLimits::default() }).expect_err("it is refused");
    assert!(error.to_string().contains("bytes of memory"), "{error}");
}
