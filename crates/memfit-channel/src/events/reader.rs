//! The reading end of an event log: bounded, and trusting nothing.

use std::{fs, path::Path};

use super::codec::{Decoded, Raw, decode, u32_at, u64_at};
use super::{Event, HEADER_BYTES, MAGIC, RECORD_BYTES, header};
use crate::{ChannelError, PROTOCOL};

/// Maximum bytes of a text; a longer one indicates a damaged log.
const MAX_TEXT: u64 = 1 << 20;
/// Maximum problems that are reported individually; the rest are only counted.
const MAX_PROBLEMS: usize = 32;

/// Event log of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventLog {
    /// The process.
    pub pid: u32,
    /// `true` if later events are missing, since the log was at its limit or could not be extended.
    pub truncated: bool,
    /// Events in order.
    pub events: Vec<Event>,
}

/// An invalid part of a log, which was skipped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file is not a log.
    #[error("this is not an event log")]
    NotALog,
    /// The log was written by another version.
    #[error("the event log has protocol version {found}, but this build of memfit reads version {PROTOCOL}")]
    Protocol {
        /// The version found.
        found: u32,
    },
    /// The header promises more than the file holds.
    #[error("the event log's header counts {promised} records, but it contains {held}")]
    Short {
        /// Number of records promised.
        promised: u64,
        /// Number of records present.
        held: u64,
    },
    /// A record of unknown kind, or with impossible content.
    #[error("record {index} is not valid: {why}")]
    Record {
        /// Index in the log.
        index: u64,
        /// Reason.
        why: &'static str,
    },
    /// Further problems beyond those reported individually.
    #[error("and {count} more records that are not valid")]
    More {
        /// Number of further problems.
        count: u64,
    },
}

/// Reads the valid part of the log at `path`.
pub fn read(path: &Path) -> Result<(EventLog, Vec<Problem>), ChannelError> {
    let bytes = fs::read(path).map_err(|source| ChannelError::Io { path: path.to_owned(), source })?;
    Ok(parse(&bytes))
}

/// Reads the valid part of a log from its bytes.
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
        let (event, length) = event(raw, &records[index + 1..]);
        match event {
            Ok(event) => log.events.push(event),
            Err(why) => problems.push(Problem::Record { index: index as u64, why }),
        }
        index += length;
    }
    (log, problems.finish())
}

/// Decodes the event that begins with a record, and returns the number of records that it takes.
fn event(first: &Raw, rest: &[Raw]) -> (Result<Event, &'static str>, usize) {
    match decode(first) {
        Ok(Decoded::Event(event)) => (Ok(event), 1),
        Ok(Decoded::Text { id, length }) => {
            let (bytes, records) = following(length, rest);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (bytes.map(|bytes| Event::Text { id, text: text(bytes) }), records)
        }
        Ok(Decoded::Stack { id, length }) => {
            let (bytes, records) = following(length, rest);
            let number = |frame: &[u8; 4]| u32::from_le_bytes(*frame);
            let frames = |bytes: &[u8]| bytes.as_chunks::<4>().0.iter().map(number).collect();
            (bytes.map(|bytes| Event::Stack { id, frames: frames(bytes) }), records)
        }
        Err(why) => (Err(why), 1),
    }
}

/// Returns the `length` bytes in the raw records after a first one, and the number of records including it.
fn following(length: u64, rest: &[Raw]) -> (Result<&[u8], &'static str>, usize) {
    if length > MAX_TEXT {
        return (Err("it is too long"), 1);
    }
    let length = length as usize;
    let count = length.div_ceil(RECORD_BYTES);
    let Some(raw) = rest.get(..count) else { return (Err("it is truncated"), 1 + rest.len()) };
    (Ok(&raw.as_flattened()[..length]), 1 + count)
}

/// Problems so far, of which the first few are kept.
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
