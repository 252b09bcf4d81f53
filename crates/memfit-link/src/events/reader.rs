//! The reading end of an event log: bounded, and never trusting.

use std::{fs, path::Path};

use super::{HEADER_BYTES, Kind, MAGIC, RECORD_BYTES, Record, SegmentChange, header, u32_at, u64_at};
use crate::{LinkError, PROTOCOL};

/// Longest text that is read: longer ones are a damaged log.
const MAX_TEXT: u64 = 1 << 20;
/// Problems that are told one by one; the rest are only counted.
const MAX_PROBLEMS: usize = 32;

/// Where and when something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The device.
    pub device: u8,
    /// The phase's code.
    pub phase: u8,
    /// The thread, numbered from 1.
    pub thread: u32,
    /// The innermost module's name as a text number; 0 for none.
    pub module: u32,
    /// Optimizer steps complete before it.
    pub step: u32,
}

/// One event, in the order in which they were logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block was handed out.
    Alloc {
        /// Where and when.
        place: Place,
        /// Its address.
        address: u64,
        /// Its size, rounded up as the allocator does.
        bytes: u64,
        /// Bytes in blocks on the device, with it.
        allocated: u64,
        /// Bytes in segments on the device.
        reserved: u64,
    },
    /// A block was given back.
    Free {
        /// Where and when.
        place: Place,
        /// Its address.
        address: u64,
        /// Its size.
        bytes: u64,
        /// Bytes in blocks on the device, without it.
        allocated: u64,
        /// Bytes in segments on the device.
        reserved: u64,
    },
    /// The block that holds `address` belongs to a category.
    Note {
        /// An address in the block.
        address: u64,
        /// The category's code.
        category: u8,
        /// The owner's name as a text number; 0 for none.
        owner: u32,
    },
    /// A text gets its number.
    Text {
        /// The number.
        id: u32,
        /// The text.
        text: String,
    },
    /// A module's call begins.
    ScopeEnter {
        /// Where and when; its `module` is the one that is entered.
        place: Place,
    },
    /// A module's call ends.
    ScopeExit {
        /// Where and when; its `module` is the one that is left.
        place: Place,
    },
    /// The process enters a phase.
    Phase {
        /// Where and when; its `phase` is the one that is entered.
        place: Place,
    },
    /// An optimizer step is complete.
    Step {
        /// How many are complete now.
        step: u32,
    },
    /// A request could not be served.
    Oom {
        /// Where and when.
        place: Place,
        /// What was asked for.
        bytes: u64,
        /// Bytes in blocks on the device.
        allocated: u64,
        /// Bytes in segments on the device.
        reserved: u64,
    },
    /// What was asked for, for a block that was handed out.
    Requested {
        /// The device.
        device: u8,
        /// Which allocation of that device in this process, counted from 1; 0 for the block that is live at the address.
        number: u64,
        /// The block.
        address: u64,
        /// What was asked for.
        bytes: u64,
    },
    /// A frame of stacks gets its number.
    Frame {
        /// The number.
        id: u32,
        /// The function, as a text number.
        name: u32,
        /// The file, as a text number.
        file: u32,
        /// The line.
        line: u32,
    },
    /// A stack gets its number.
    Stack {
        /// The number.
        id: u32,
        /// The numbers of its frames, the innermost first.
        frames: Vec<u32>,
    },
    /// From where a block was asked for.
    Traced {
        /// The device.
        device: u8,
        /// Which allocation of that device in this process, counted from 1.
        number: u64,
        /// The number of the stack; 0 for none.
        stack: u32,
        /// The stream's handle.
        stream: u64,
        /// When, in microseconds; 0 where that is not known.
        time_us: u64,
    },
    /// The device gave memory or took it back.
    Segment {
        /// The device.
        device: u8,
        /// What became of it.
        change: SegmentChange,
        /// The last allocation of that device before it, counted from 1; 0 where it comes before all.
        number: u64,
        /// Where it begins.
        address: u64,
        /// Its bytes.
        bytes: u64,
        /// The number of the stack; 0 for none.
        stack: u32,
        /// The stream's handle.
        stream: u64,
        /// When, in microseconds; 0 where that is not known.
        time_us: u64,
    },
}

/// The log of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventLog {
    /// The process.
    pub pid: u32,
    /// Whether the log was full and later events are missing.
    pub truncated: bool,
    /// What happened, in order.
    pub events: Vec<Event>,
}

/// Something in a log that could not be believed, and was left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file does not begin as a log does.
    #[error("this is not an event log")]
    NotALog,
    /// It was written by another version.
    #[error("the log speaks version {found} of the channel, this build speaks {PROTOCOL}")]
    Protocol {
        /// The version found.
        found: u32,
    },
    /// The header promises more than the file holds.
    #[error("the log promises {promised} records and holds {held}")]
    Short {
        /// Records promised.
        promised: u64,
        /// Records there.
        held: u64,
    },
    /// A record of no known kind, or with impossible content.
    #[error("record {index} makes no sense: {why}")]
    Record {
        /// Its place in the log.
        index: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// More problems than are worth telling.
    #[error("and {count} more records that make no sense")]
    More {
        /// How many more.
        count: u64,
    },
}

/// Reads the log at `path`, as far as it can be believed.
pub fn read(path: &Path) -> Result<(EventLog, Vec<Problem>), LinkError> {
    let bytes = fs::read(path).map_err(|source| LinkError::Io { path: path.to_owned(), source })?;
    Ok(parse(&bytes))
}

/// Reads a log from its bytes, as far as it can be believed.
pub fn parse(bytes: &[u8]) -> (EventLog, Vec<Problem>) {
    let mut log = EventLog::default();
    if !bytes.starts_with(&MAGIC) || bytes.len() < HEADER_BYTES {
        return (log, vec![Problem::NotALog]);
    }
    let found = u32_at(bytes, header::PROTOCOL);
    if found != PROTOCOL || u32_at(bytes, header::RECORD) != RECORD_BYTES as u32 {
        return (log, vec![Problem::Protocol { found }]);
    }
    log.pid = u32_at(bytes, header::PID);
    log.truncated = u32_at(bytes, header::FLAGS) & header::TRUNCATED != 0;
    let mut problems = Problems::default();
    let (records, _rest) = bytes[HEADER_BYTES..].as_chunks::<RECORD_BYTES>();
    let promised = u64_at(bytes, header::COMMITTED);
    let held = records.len() as u64;
    if promised > held {
        problems.push(Problem::Short { promised, held });
    }
    let records = &records[..promised.min(held) as usize];
    log.events.reserve(records.len());
    let mut index = 0;
    while let Some(raw) = records.get(index) {
        let (event, length) = event(&Record::decode(raw), &records[index + 1..]);
        match event {
            Ok(event) => log.events.push(event),
            Err(why) => problems.push(Problem::Record { index: index as u64, why }),
        }
        index += length;
    }
    (log, problems.finish())
}

/// The event that a record tells, and how many records it takes.
fn event(record: &Record, rest: &[[u8; RECORD_BYTES]]) -> (Result<Event, &'static str>, usize) {
    let place = Place {
        device: record.device,
        phase: record.phase,
        thread: record.thread,
        module: record.module,
        step: record.step,
    };
    let Record { address, allocated, reserved, device, .. } = *record;
    let Some(kind) = Kind::from_code(record.kind) else { return (Err("its kind is unknown"), 1) };
    match kind {
        Kind::Text => return text(record, rest),
        Kind::Stack => return stack(record, rest),
        _ => {}
    }
    let Ok(bytes) = u64::try_from(record.bytes) else { return (Err("its size is negative"), 1) };
    let event = match kind {
        Kind::Alloc => Event::Alloc { place, address, bytes, allocated, reserved },
        Kind::Free => Event::Free { place, address, bytes, allocated, reserved },
        Kind::Note => Event::Note { address, category: record.phase, owner: record.module },
        Kind::ScopeEnter => Event::ScopeEnter { place },
        Kind::ScopeExit => Event::ScopeExit { place },
        Kind::Phase => Event::Phase { place },
        Kind::Step => Event::Step { step: record.step },
        Kind::Oom => Event::Oom { place, bytes, allocated, reserved },
        Kind::Requested => Event::Requested { device, number: allocated, address, bytes },
        Kind::Frame => Event::Frame {
            id: record.module,
            name: address as u32,
            file: allocated as u32,
            line: u32::try_from(bytes).unwrap_or(0),
        },
        Kind::Traced => Event::Traced {
            device,
            number: allocated,
            stack: record.module,
            stream: address,
            time_us: reserved,
        },
        Kind::Segment => {
            let Some(change) = SegmentChange::from_code(record.flags) else {
                return (Err("what became of the segment is unknown"), 1);
            };
            let stream = u64::from(record.step) << 32 | u64::from(record.thread);
            let stack = record.module;
            Event::Segment {
                device,
                change,
                number: allocated,
                address,
                bytes,
                stack,
                stream,
                time_us: reserved,
            }
        }
        Kind::Text | Kind::Stack => return (Err("it cannot be here"), 1),
    };
    (Ok(event), 1)
}

fn text(record: &Record, rest: &[[u8; RECORD_BYTES]]) -> (Result<Event, &'static str>, usize) {
    let (bytes, length) = raw(record, rest);
    let text =
        |bytes: &[u8]| Event::Text { id: record.module, text: String::from_utf8_lossy(bytes).into_owned() };
    (bytes.map(text), length)
}

fn stack(record: &Record, rest: &[[u8; RECORD_BYTES]]) -> (Result<Event, &'static str>, usize) {
    let (bytes, length) = raw(record, rest);
    let frames =
        |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(|frame| u32::from_le_bytes(*frame)).collect();
    (bytes.map(|bytes| Event::Stack { id: record.module, frames: frames(bytes) }), length)
}

/// The bytes in the raw records that follow one, and how many records these are with it.
fn raw<'rest>(
    record: &Record,
    rest: &'rest [[u8; RECORD_BYTES]],
) -> (Result<&'rest [u8], &'static str>, usize) {
    let length = match u64::try_from(record.bytes) {
        Ok(length) if length <= MAX_TEXT => length as usize,
        _ => return (Err("it is too long"), 1),
    };
    let parts = length.div_ceil(RECORD_BYTES);
    let Some(raw) = rest.get(..parts) else { return (Err("it is cut off"), 1 + rest.len()) };
    (Ok(&raw.as_flattened()[..length]), 1 + parts)
}

/// Problems, of which the first few are kept.
#[derive(Default)]
struct Problems {
    kept: Vec<Problem>,
    more: u64,
}

impl Problems {
    fn push(&mut self, problem: Problem) {
        if self.kept.len() < MAX_PROBLEMS {
            self.kept.push(problem);
        } else {
            self.more += 1;
        }
    }

    fn finish(mut self) -> Vec<Problem> {
        if self.more > 0 {
            self.kept.push(Problem::More { count: self.more });
        }
        self.kept
    }
}
