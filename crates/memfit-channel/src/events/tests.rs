//! Tests of the event log: written events can be read back, and the reader trusts nothing.

#![allow(unsafe_code, reason = "the tests fork and kill processes")]

use std::{
    fs,
    path::PathBuf,
    process,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use proptest::prelude::*;

use super::*;

/// A temporary file, removed when the test ends.
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

fn alloc(address: u64, bytes: u64) -> Event {
    let place = EventContext { device: 1, phase: 2, thread: 3, module: 4, step: 5 };
    Event::Alloc { place, address, bytes, allocated: 7, reserved: 9 }
}

#[test]
fn written_events_are_read_back() {
    let scratch = Scratch::new();
    let writer = Writer::create(&scratch.0, 42, DEFAULT_CAP).unwrap();
    writer.push_text(4, "layer3.5.conv2".repeat(9).as_bytes());
    writer.push_text(5, b"");
    writer.push(&alloc(0x1000, 512));
    let (log, problems) = read(&scratch.0).unwrap();
    assert_eq!(problems, []);
    assert_eq!((log.pid, log.truncated), (42, false));
    assert_eq!(
        log.events,
        [
            Event::Text { id: 4, text: "layer3.5.conv2".repeat(9) },
            Event::Text { id: 5, text: String::new() },
            alloc(0x1000, 512),
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
    // SAFETY: waits for a child of this process.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    let (log, problems) = read(&scratch.0).unwrap();
    assert_eq!(problems, []);
    assert_eq!(log.events.len(), 1000);
    assert_eq!(log.pid, child as u32);
}

#[test]
fn other_files_are_refused_as_logs() {
    assert_eq!(parse(b"").1, [Problem::NotALog]);
    assert_eq!(parse(&[0; HEADER_BYTES]).1, [Problem::NotALog]);
    let mut other = vec![0; HEADER_BYTES];
    other[..8].copy_from_slice(&MAGIC);
    other[header::PROTOCOL] = 99;
    assert_eq!(parse(&other).1, [Problem::Protocol { found: 99 }]);
}

/// Builds a log's bytes with these records, and a header that promises `promised`.
fn raw_log(records: &[codec::Raw], promised: u64) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[header::PROTOCOL..][..4].copy_from_slice(&crate::PROTOCOL.to_le_bytes());
    bytes[header::RECORD..][..4].copy_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
    bytes[header::COMMITTED..][..8].copy_from_slice(&promised.to_le_bytes());
    bytes.extend(records.as_flattened());
    bytes
}

/// A record of unknown kind.
const UNKNOWN: codec::Raw = [77; RECORD_BYTES];

#[test]
fn damage_is_named_and_left_out() {
    let segment = Event::Segment {
        device: 0,
        change: SegmentChange::Unmap,
        number: 1,
        address: 2,
        bytes: 3,
        stack: 4,
        stream: 5,
        time_us: 6,
    };
    let mut changed = codec::encode(&segment);
    changed[2] = 9;
    let (log, problems) = parse(&raw_log(
        &[
            UNKNOWN,
            codec::encode(&alloc(1, u64::MAX)),
            codec::encode(&alloc(2, 512)),
            changed,
            codec::text_head(1, usize::MAX),
            codec::text_head(1, 480),
        ],
        9,
    ));
    assert_eq!(log.events, [alloc(2, 512)]);
    let why = [
        (0, "its kind is unknown"),
        (1, "its size is impossible"),
        (3, "what became of the segment is unknown"),
        (4, "it is too long"),
        (5, "it is truncated"),
    ];
    let expected: Vec<Problem> = std::iter::once(Problem::Short { promised: 9, held: 6 })
        .chain(why.into_iter().map(|(index, why)| Problem::Record { index, why }))
        .collect();
    assert_eq!(problems, expected);
}

#[test]
fn a_thousand_problems_are_told_shortly() {
    let (_, problems) = parse(&raw_log(&vec![UNKNOWN; 1000], 1000));
    assert_eq!(problems.len(), 33);
    assert_eq!(problems[32], Problem::More { count: 968 });
}

fn event_context() -> impl Strategy<Value = EventContext> {
    let parts = (any::<u8>(), any::<u8>(), any::<u32>(), any::<u32>(), any::<u32>());
    parts.prop_map(|(device, phase, thread, module, step)| EventContext {
        device,
        phase,
        thread,
        module,
        step,
    })
}

fn change() -> impl Strategy<Value = SegmentChange> {
    (0..4_u8).prop_map(|code| SegmentChange::from_code(code).unwrap())
}

/// A size that memory can have.
fn size() -> impl Strategy<Value = u64> {
    0..=i64::MAX as u64
}

/// Events of every kind.
fn event() -> impl Strategy<Value = Event> {
    let numbers = || (any::<u64>(), size(), any::<u64>(), any::<u64>());
    prop_oneof![
        (event_context(), numbers()).prop_map(|(place, (address, bytes, allocated, reserved))| {
            Event::Alloc { place, address, bytes, allocated, reserved }
        }),
        (event_context(), numbers()).prop_map(|(place, (address, bytes, allocated, reserved))| Event::Free {
            place,
            address,
            bytes,
            allocated,
            reserved
        }),
        (any::<u64>(), any::<u8>(), any::<u32>()).prop_map(|(address, category, owner)| Event::Note {
            address,
            category,
            owner
        }),
        (any::<u32>(), ".{0,80}").prop_map(|(id, text)| Event::Text { id, text }),
        event_context().prop_map(|place| Event::ScopeEnter { place }),
        event_context().prop_map(|place| Event::ScopeExit { place }),
        event_context().prop_map(|place| Event::Phase { place }),
        any::<u32>().prop_map(|step| Event::Step { step }),
        (event_context(), numbers()).prop_map(|(place, (_, bytes, allocated, reserved))| Event::Oom {
            place,
            bytes,
            allocated,
            reserved
        }),
        (any::<u8>(), numbers()).prop_map(|(device, (address, bytes, number, _))| Event::Requested {
            device,
            number,
            address,
            bytes
        }),
        any::<[u32; 4]>().prop_map(|[id, name, file, line]| Event::Frame { id, name, file, line }),
        (any::<u32>(), proptest::collection::vec(any::<u32>(), 0..40))
            .prop_map(|(id, frames)| Event::Stack { id, frames }),
        (any::<u8>(), any::<u32>(), any::<[u64; 3]>()).prop_map(
            |(device, stack, [number, stream, time_us])| {
                Event::Traced { device, number, stack, stream, time_us }
            }
        ),
        (any::<u8>(), change(), any::<u32>(), size(), any::<[u64; 4]>()).prop_map(
            |(device, change, stack, bytes, [number, address, stream, time_us])| Event::Segment {
                device,
                change,
                number,
                address,
                bytes,
                stack,
                stream,
                time_us
            }
        ),
    ]
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
    fn events_of_every_kind_go_both_ways(events in proptest::collection::vec(event(), 0..40)) {
        let scratch = Scratch::new();
        let writer = Writer::create(&scratch.0, 1, DEFAULT_CAP).unwrap();
        for event in &events {
            writer.push(event);
        }
        let (log, problems) = read(&scratch.0).unwrap();
        prop_assert_eq!(problems, []);
        prop_assert_eq!(log.events, events);
    }
}
