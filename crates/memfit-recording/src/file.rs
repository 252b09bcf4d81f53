//! File format of recordings: a magic number, a version, and one zstd stream of sections. A file can be
//! written while a run goes on and read without being held in memory whole.
//!
//! Each section is a tag followed by new rows: texts, stacks, calls, blocks, moments, in the order in which
//! they arose. Rows are stored column by column, which compresses best. A block's value that became known
//! after the block was written follows as an amendment. A truncated file is valid up to its last complete
//! section.

mod parts;
mod read;
mod v1;
mod write;

pub use parts::{Amendment, Part, RecordingReader};
pub use write::RecordingWriter;

use std::io::{Read, Write};

use crate::columns::damaged;
use crate::snapshot::Problem;
use crate::{NEVER, Recording, RecordingError};

/// First bytes of a recording. The control character makes text tools treat the file as binary.
pub const MAGIC: [u8; 8] = *b"MEMFIT\x1a\n";
/// Format version that is written, and the latest that can be read.
pub const VERSION: u32 = 2;

/// Tags of sections. They are part of the format.
mod tag {
    pub(super) const END: u64 = 0;
    pub(super) const BEGIN: u64 = 1;
    pub(super) const TEXTS: u64 = 2;
    pub(super) const FRAMES: u64 = 3;
    pub(super) const STACKS: u64 = 4;
    pub(super) const STREAMS: u64 = 5;
    pub(super) const POOLS: u64 = 6;
    pub(super) const CALLS: u64 = 7;
    pub(super) const SPANS: u64 = 8;
    pub(super) const RANGES: u64 = 9;
    pub(super) const BLOCKS: u64 = 10;
    pub(super) const MOMENTS: u64 = 11;
    pub(super) const AMENDMENTS: u64 = 12;
    pub(super) const FACTS: u64 = 13;
}

/// Maximum number of rows in a section that is written. Readers hold one section at a time.
const MAX_SECTION_ROWS: u32 = 1 << 16;

/// Limits of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum uncompressed size in bytes.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 16 << 30 }
    }
}

type Result<T> = std::result::Result<T, RecordingError>;

impl Recording {
    /// Writes the recording.
    pub fn write(&self, to: impl Write) -> Result<()> {
        let mut writer = RecordingWriter::new(to, &self.origin)?;
        for (number, track) in self.tracks.iter().enumerate() {
            writer.track(number, track)?;
        }
        writer.finish()?;
        Ok(())
    }

    /// Reads an untrusted recording. A fault in it is an error.
    pub fn read(from: impl Read, limits: Limits) -> Result<Self> {
        let (recording, error) = Self::read_with_error(from, limits)?;
        error.map_or(Ok(recording), Err)
    }

    /// Reads an untrusted recording up to its first fault, which is returned as a problem.
    pub fn read_until_fault(from: impl Read, limits: Limits) -> Result<(Self, Vec<Problem>)> {
        let (mut recording, error) = Self::read_with_error(from, limits)?;
        if let Some(error) = &error {
            for track in &mut recording.tracks {
                track.unknown.push(crate::Unknown::Rest { why: error.to_string() });
            }
        }
        Ok((recording, error.map(Problem::Recording).into_iter().collect()))
    }
}

/// Encodes `None` as 0, every other value plus one.
fn encode_optional(value: Option<u64>) -> u64 {
    value.map_or(0, |value| value.saturating_add(1))
}

/// Encodes [`NEVER`] as 0, every other index plus one.
fn encode_index(value: u32) -> u64 {
    encode_optional((value != NEVER).then_some(u64::from(value)))
}

/// Decodes a value that [`encode_optional`] encoded.
fn decode_optional(value: u64) -> Option<u64> {
    value.checked_sub(1)
}

/// Decodes an index that [`encode_index`] encoded.
fn decode_index(value: u64) -> Result<u32> {
    decode_optional(value).map_or(Ok(NEVER), to_u32)
}

fn to_u32(value: u64) -> Result<u32> {
    u32::try_from(value).map_err(|_| damaged("a number is too large"))
}

fn to_u16(value: u64) -> Result<u16> {
    u16::try_from(value).map_err(|_| damaged("a number is too large"))
}

fn to_device(value: u64) -> Result<u8> {
    u8::try_from(value).map_err(|_| damaged("a device's number is too large"))
}

#[cfg(test)]
mod tests;
