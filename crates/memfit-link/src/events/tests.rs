//! Tests of the event log: what is written is read, and nothing that is read is trusted.

use std::{
    fs,
    path::PathBuf,
    process,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use proptest::prelude::*;

use super::*;

/// A file of its own, removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("memfit-events-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn alloc(address: u64, bytes: i64) -> Record {
    Record {
        kind: Kind::Alloc as u8,
        device: 1,
        phase: 2,
        thread: 3,
        module: 4,
        step: 5,
        address,
        bytes,
        allocated: 7,
        reserved: 9,
        ..Record::default()
    }
}

#[test]
fn what_is_written_is_read() {
    let scratch = Scratch::new();
    let writer = Writer::create(&scratch.0, 42, DEFAULT_CAP).unwrap();
    writer.push_text(4, "layer3.5.conv2".repeat(9).as_bytes());
    writer.push_text(5, b"");
    writer.push(&alloc(0x1000, 512));
    let (log, problems) = read(&scratch.0).unwrap();
    assert_eq!(problems, []);
    assert_eq!((log.pid, log.truncated), (42, false));
    let place = Place { device: 1, phase: 2, thread: 3, module: 4, step: 5 };
    assert_eq!(
        log.events,
        [
            Event::Text { id: 4, text: "layer3.5.conv2".repeat(9) },
            Event::Text { id: 5, text: String::new() },
            Event::Alloc { place, address: 0x1000, bytes: 512, allocated: 7, reserved: 9 },
        ]
    );
}

#[test]
fn a_log_grows_past_its_first_chunk_from_many_threads() {
    let scratch = Scratch::new();
    let writer = Writer::create(&scratch.0, 1, DEFAULT_CAP).unwrap();
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let writer = &writer;
            scope.spawn(move || (0..40_000).for_each(|index| writer.push(&alloc(thread << 32 | index, 512))));
        }
    });
    let (log, problems) = read(&scratch.0).unwrap();
    assert_eq!(problems, []);
    assert_eq!(log.events.len(), 160_000);
    // Each thread's own events keep their order.
    let mut last = [None; 4];
    for event in &log.events {
        let Event::Alloc { address, .. } = event else { panic!("{event:?}") };
        let previous = last[(address >> 32) as usize].replace(*address);
        assert!(previous.is_none_or(|previous| previous + 1 == *address));
    }
}

#[test]
fn a_full_log_keeps_what_it_has_and_says_so() {
    let scratch = Scratch::new();
    let writer = Writer::create(&scratch.0, 1, 10 * RECORD_BYTES as u64).unwrap();
    (0..9).for_each(|index| writer.push(&alloc(index, 512)));
    writer.push_text(1, &[b'x'; 100]);
    writer.push(&alloc(99, 512));
    let (log, problems) = read(&scratch.0).unwrap();
    assert_eq!(problems, []);
    assert!(log.truncated);
    assert_eq!(log.events.len(), 9, "a text that does not fit whole is not there at all");
}

#[test]
fn a_killed_process_loses_nothing() {
    let scratch = Scratch::new();
    // SAFETY: the child only writes to its own mapping and kills itself.
    let child = unsafe { libc::fork() };
    if child == 0 {
        if let Ok(writer) = Writer::create(&scratch.0, process::id(), DEFAULT_CAP) {
            (0..1000).for_each(|index| writer.push(&alloc(index, 512)));
        }
        // SAFETY: ends this process as the kernel would.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    let (log, problems) = read(&scratch.0).unwrap();
    assert_eq!(problems, []);
    assert_eq!(log.events.len(), 1000);
    assert_eq!(log.pid, child as u32);
}

#[test]
fn what_is_not_a_log_is_said_to_be_none() {
    assert_eq!(parse(b"").1, [Problem::NotALog]);
    assert_eq!(parse(&[0; HEADER_BYTES]).1, [Problem::NotALog]);
    let mut other = vec![0; HEADER_BYTES];
    other[..8].copy_from_slice(&MAGIC);
    other[header::PROTOCOL] = 99;
    assert_eq!(parse(&other).1, [Problem::Protocol { found: 99 }]);
}

/// A log's bytes with these records, and a header that promises `promised`.
fn raw_log(records: &[Record], promised: u64) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[header::PROTOCOL..][..4].copy_from_slice(&crate::PROTOCOL.to_le_bytes());
    bytes[header::RECORD..][..4].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
    bytes[header::COMMITTED..][..8].copy_from_slice(&promised.to_le_bytes());
    for record in records {
        bytes.extend(record.encode());
    }
    bytes
}

#[test]
fn damage_is_named_and_left_out() {
    let text = |bytes| Record { kind: Kind::Text as u8, bytes, ..Record::default() };
    let (log, problems) = parse(&raw_log(
        &[
            Record { kind: 77, ..Record::default() },
            alloc(1, -5),
            alloc(2, 512),
            text(i64::MAX),
            text(-1),
            text(480),
        ],
        9,
    ));
    assert_eq!(log.events.len(), 1);
    let why =
        ["its kind is unknown", "its size is negative", "it is too long", "it is too long", "it is cut off"];
    let expected: Vec<Problem> = std::iter::once(Problem::Short { promised: 9, held: 6 })
        .chain(why.into_iter().zip([0, 1, 3, 4, 5]).map(|(why, index)| Problem::Record { index, why }))
        .collect();
    assert_eq!(problems, expected);
}

#[test]
fn a_thousand_problems_are_told_shortly() {
    let (_, problems) = parse(&raw_log(&vec![Record { kind: 77, ..Record::default() }; 1000], 1000));
    assert_eq!(problems.len(), 33);
    assert_eq!(problems[32], Problem::More { count: 968 });
}

proptest! {
    #[test]
    fn any_bytes_can_be_parsed(tail in proptest::collection::vec(any::<u8>(), 0..2000), promised in any::<u64>()) {
        let mut bytes = raw_log(&[], promised);
        bytes.extend(tail);
        let (log, _) = parse(&bytes);
        prop_assert!(log.events.len() <= (bytes.len() - HEADER_BYTES) / RECORD_BYTES);
    }

    #[test]
    fn records_go_both_ways(kind in 0..12_u8, device: u8, phase: u8, thread: u32, module: u32, step: u32, address: u64, bytes: i64, allocated: u64, reserved: u64) {
        let record = Record { kind, device, phase, flags: 0, thread, module, step, address, bytes, allocated, reserved };
        prop_assert_eq!(Record::decode(&record.encode()), record);
    }
}
