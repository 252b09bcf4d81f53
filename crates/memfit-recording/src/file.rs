//! The file format: a magic, a version, and one zstd stream of sections.
//!
//! Each section is a tag and its content; the first is the origin as JSON, then one section for each track, then the end.
//! A track is written table by table and column by column, which is what compresses best.

use std::io::{Read, Write};

use memfit_levers::{Category, Phase};

use crate::{
    Block, BlockTable, Call, Moment, MomentKind, Moments, NEVER, Origin, Recording, RecordingError, StackId,
    TextId, Track, Unknown,
    columns::{ColumnReader, ColumnWriter},
    table::{decode, encode},
};

/// The first bytes of a recording. The control character keeps text tools away from it.
pub const MAGIC: [u8; 8] = *b"MEMFIT\x1a\n";
/// The version of the format that is written, and the last that is read.
pub const VERSION: u32 = 1;

const END: u64 = 0;
const TRACK: u64 = 1;
/// zstd's level 3: fast, and columns compress well enough.
const LEVEL: i32 = 3;

/// What a reader accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes once unpacked.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 4 << 30 }
    }
}

type Result<T> = std::result::Result<T, RecordingError>;

impl Recording {
    /// Writes the recording.
    pub fn write(&self, mut to: impl Write) -> Result<()> {
        to.write_all(&MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        let mut columns = ColumnWriter(zstd::Encoder::new(to, LEVEL)?);
        let origin = serde_json::to_vec(&self.origin).map_err(std::io::Error::from)?;
        columns.bytes(&origin)?;
        for track in &self.tracks {
            columns.number(TRACK)?;
            write_track(&mut columns, track)?;
        }
        columns.number(END)?;
        columns.0.finish()?.flush()?;
        Ok(())
    }

    /// Reads a recording, trusting nothing.
    pub fn read(mut from: impl Read, limits: Limits) -> Result<Self> {
        let mut start = [0; 12];
        from.read_exact(&mut start).map_err(|_| RecordingError::NotARecording)?;
        if start[..8] != MAGIC {
            return Err(RecordingError::NotARecording);
        }
        let found = u32::from_le_bytes([start[8], start[9], start[10], start[11]]);
        if found != VERSION {
            return Err(RecordingError::Version { found });
        }
        let mut columns = ColumnReader::new(zstd::Decoder::new(from)?, limits.bytes);
        let origin: Origin =
            serde_json::from_slice(&columns.bytes()?).map_err(|_| damaged("its origin is not valid"))?;
        let mut tracks = Vec::new();
        loop {
            match columns.number()? {
                END => return Ok(Self { origin, tracks }),
                TRACK => tracks.push(read_track(&mut columns)?),
                _ => return Err(damaged("a section is unknown")),
            }
        }
    }
}

fn damaged(why: &'static str) -> RecordingError {
    RecordingError::Damaged { why }
}

/// `None` as 0, everything else moved up by one.
fn optional(value: Option<u64>) -> u64 {
    value.map_or(0, |value| value.saturating_add(1))
}

/// [`NEVER`] as 0, every other index moved up by one.
fn index(value: u32) -> u64 {
    optional((value != NEVER).then_some(u64::from(value)))
}

fn write_track(to: &mut ColumnWriter<impl Write>, track: &Track) -> Result<()> {
    to.number(u64::from(track.pid))?;
    to.number(optional(track.rank.map(u64::from)))?;
    to.number(u64::from(track.truncated))?;
    to.number(track.texts.len() as u64)?;
    track.texts.iter().try_for_each(|text| to.bytes(text.as_bytes()))?;
    write_moments(to, &track.moments)?;
    write_blocks(to, track.blocks())?;
    write_calls(to, &track.calls)
}

fn write_moments(to: &mut ColumnWriter<impl Write>, moments: &Moments) -> Result<()> {
    to.number(moments.len() as u64)?;
    to.column(moments.iter().map(|moment| u64::from(encode(moment.kind).0)))?;
    to.near(moments.iter().map(|moment| encode(moment.kind).1))?;
    to.column(moments.iter().map(|moment| u64::from(moment.device)))?;
    to.near(moments.iter().map(|moment| moment.allocated))?;
    to.near(moments.iter().map(|moment| moment.reserved))?;
    Ok(())
}

fn write_blocks(to: &mut ColumnWriter<impl Write>, blocks: BlockTable<'_>) -> Result<()> {
    to.number(blocks.len() as u64)?;
    to.near(blocks.iter().map(|block| block.address))?;
    to.column(blocks.iter().map(|block| block.bytes))?;
    to.column(blocks.iter().map(|block| optional(block.requested)))?;
    to.near(blocks.iter().map(|block| u64::from(block.born)))?;
    to.near(blocks.iter().map(|block| index(block.freed)))?;
    to.near(blocks.iter().map(|block| index(block.call)))?;
    to.column(blocks.iter().map(|block| u64::from(block.module.0)))?;
    to.column(blocks.iter().map(|block| u64::from(block.owner.0)))?;
    to.near(blocks.iter().map(|block| u64::from(block.step)))?;
    to.column(blocks.iter().map(|block| u64::from(block.thread)))?;
    to.column(blocks.iter().map(|block| u64::from(block.device)))?;
    to.column(blocks.iter().map(|block| u64::from(block.phase.code())))?;
    to.column(blocks.iter().map(|block| block.noted.map_or(0, |category| u64::from(category.code()))))?;
    Ok(())
}

fn write_calls(to: &mut ColumnWriter<impl Write>, calls: &[Call]) -> Result<()> {
    to.number(calls.len() as u64)?;
    to.column(calls.iter().map(|call| u64::from(call.module.0)))?;
    to.column(calls.iter().map(|call| u64::from(call.thread)))?;
    to.near(calls.iter().map(|call| index(call.parent)))?;
    to.near(calls.iter().map(|call| u64::from(call.began)))?;
    to.near(calls.iter().map(|call| index(call.ended)))?;
    Ok(())
}

fn read_track(from: &mut ColumnReader<impl Read>) -> Result<Track> {
    let mut track = Track {
        pid: from.small()?,
        rank: from_optional(from.number()?).map(small).transpose()?,
        truncated: from.number()? != 0,
        ..Track::default()
    };
    for number in 0..from.count()? {
        let text = String::from_utf8(from.bytes()?).map_err(|_| damaged("a text is not UTF-8"))?;
        if track.texts.intern(&text) != TextId(number as u32) {
            return Err(damaged("a text is there twice"));
        }
    }
    track.moments.extend(read_moments(from)?);
    read_blocks(from)?.iter().for_each(|block| {
        track.blocks.push(block);
    });
    track.calls = read_calls(from)?;
    track.unknown.extend([Unknown::Segments, Unknown::Times, Unknown::Stacks]);
    track.shrink();
    check(&track)?;
    Ok(track)
}

/// All that refers to something refers to something that is there.
fn check(track: &Track) -> Result<()> {
    let (moments, blocks, calls) = (track.moments.len(), track.blocks.len(), track.calls.len());
    let within = |index: u32, length: usize| index == NEVER || (index as usize) < length;
    let text = |id: TextId| (id.0 as usize) < track.texts.len();
    let moments_hold = track.moments.iter().all(|moment| match moment.kind {
        MomentKind::Alloc(block) | MomentKind::Free(block) => (block as usize) < blocks,
        MomentKind::Enter(call) | MomentKind::Exit(call) => (call as usize) < calls,
        _ => true,
    });
    let blocks_hold = track.blocks().iter().all(|block| {
        (block.born as usize) < moments
            && within(block.freed, moments)
            && within(block.call, calls)
            && text(block.module)
            && text(block.owner)
    });
    let calls_hold = track.calls.iter().all(|call| {
        (call.began as usize) < moments
            && within(call.ended, moments)
            && within(call.parent, calls)
            && text(call.module)
    });
    if moments_hold && blocks_hold && calls_hold {
        Ok(())
    } else {
        Err(damaged("something refers to what is not there"))
    }
}

fn read_moments(from: &mut ColumnReader<impl Read>) -> Result<Vec<Moment>> {
    let count = from.count()?;
    let kinds = from.column(count)?;
    let subjects = from.near(count)?;
    let devices = from.column(count)?;
    let allocated = from.near(count)?;
    let reserved = from.near(count)?;
    (0..count)
        .map(|row| {
            Ok(Moment {
                kind: kind(kinds[row], subjects[row])?,
                device: device(devices[row])?,
                allocated: allocated[row],
                reserved: reserved[row],
                time_us: None,
                stack: StackId::NONE,
            })
        })
        .collect()
}

fn read_blocks(from: &mut ColumnReader<impl Read>) -> Result<Vec<Block>> {
    let count = from.count()?;
    let addresses = from.near(count)?;
    let bytes = from.column(count)?;
    let requested = from.column(count)?;
    let born = from.near(count)?;
    let freed = from.near(count)?;
    let calls = from.near(count)?;
    let modules = from.column(count)?;
    let owners = from.column(count)?;
    // Steps and devices are those of the moments at which the blocks are born.
    from.near(count)?;
    let threads = from.column(count)?;
    from.column(count)?;
    let phases = from.column(count)?;
    let noted = from.column(count)?;
    (0..count)
        .map(|row| {
            Ok(Block {
                address: addresses[row],
                bytes: bytes[row],
                requested: from_optional(requested[row]),
                born: small(born[row])?,
                freed: from_index(freed[row])?,
                call: from_index(calls[row])?,
                module: TextId(small(modules[row])?),
                owner: TextId(small(owners[row])?),
                thread: small(threads[row])?,
                phase: phase(phases[row])?,
                noted: category(noted[row])?,
                ..Block::default()
            })
        })
        .collect()
}

fn read_calls(from: &mut ColumnReader<impl Read>) -> Result<Vec<Call>> {
    let count = from.count()?;
    let modules = from.column(count)?;
    let threads = from.column(count)?;
    let parents = from.near(count)?;
    let began = from.near(count)?;
    let ended = from.near(count)?;
    (0..count)
        .map(|row| {
            Ok(Call {
                module: TextId(small(modules[row])?),
                thread: small(threads[row])?,
                parent: from_index(parents[row])?,
                began: small(began[row])?,
                ended: from_index(ended[row])?,
            })
        })
        .collect()
}

fn from_optional(value: u64) -> Option<u64> {
    value.checked_sub(1)
}

fn from_index(value: u64) -> Result<u32> {
    from_optional(value).map_or(Ok(NEVER), small)
}

fn small(value: u64) -> Result<u32> {
    u32::try_from(value).map_err(|_| damaged("a number is too large"))
}

fn device(value: u64) -> Result<u8> {
    u8::try_from(value).map_err(|_| damaged("a device's number is too large"))
}

fn phase(value: u64) -> Result<Phase> {
    u8::try_from(value).ok().and_then(Phase::from_code).ok_or(damaged("a phase is unknown"))
}

fn category(value: u64) -> Result<Option<Category>> {
    match value {
        0 => Ok(None),
        _ => u8::try_from(value)
            .ok()
            .and_then(Category::from_code)
            .map(Some)
            .ok_or(damaged("a category is unknown")),
    }
}

fn kind(code: u64, subject: u64) -> Result<MomentKind> {
    u8::try_from(code)
        .ok()
        .and_then(|code| decode(code, subject))
        .ok_or(damaged("a moment is of an unknown kind"))
}

#[cfg(test)]
mod tests;
