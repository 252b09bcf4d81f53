//! Streaming reader of recordings, one section at a time.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};

use memfit_vocabulary::{Category, Phase};
use serde::Deserialize;

use super::{
    Limits, MAGIC, Result, VERSION, damaged, decode_index, decode_optional, tag, to_device, to_u16, to_u32,
};
use crate::columns::ColumnReader;
use crate::table::decode;
use crate::{
    Block, Call, Frame, Moment, NEVER, NamedRange, Origin, PoolRef, RangeSource, RecordingError, Refusal,
    Span, StackId, StreamRef, TextId, TracedSettings, Unknown,
};

/// Size of the buffer between the decompressor and the parser.
const UNPACK_BUFFER_BYTES: usize = 64 << 10;

/// Content of one section: rows that follow those of the sections before it, in the track that was begun
/// last. References between rows are indices.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Part {
    /// Begins the track with this number, of this process and rank.
    Begin(usize, u32, Option<u32>),
    /// Texts. The first text of a track is empty.
    Texts(Vec<String>),
    /// Frames of stacks.
    Frames(Vec<Frame>),
    /// Stacks as indices of their frames, the innermost first. The first stack of a track has number 1.
    Stacks(Vec<Vec<u32>>),
    /// Handles of streams.
    Streams(Vec<u64>),
    /// Ids of pools.
    Pools(Vec<(u64, u64)>),
    /// Module calls. Their begin and end are given by moments.
    Calls(Vec<Call>),
    /// Reserved memory. The time of its release is given by moments and amendments.
    Spans(Vec<Span>),
    /// Ranges that the program announced. Their begin and end are given by moments.
    Ranges(Vec<NamedRange>),
    /// Blocks. Their lifetimes, devices, stacks and steps are given by moments.
    Blocks(Vec<Block>),
    /// Events in order.
    Moments(Vec<Moment>),
    /// Values of earlier rows that became known later.
    Amendments(Vec<(Amendment, u32, u64)>),
    /// Properties of the whole track; a later section overrides an earlier one.
    Facts {
        /// `true` if the end is missing.
        truncated: bool,
        /// Allocator settings.
        settings: Option<TracedSettings>,
        /// Aspects that the track does not cover.
        unknown: Vec<Unknown>,
        /// Failed requests by their moments.
        refusals: BTreeMap<u32, Refusal>,
    },
}

/// Field that an amendment changes. The codes are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Amendment {
    /// Moment at which a block was lost, plus one.
    Freed = 0,
    /// Requested size, plus one.
    Requested = 1,
    /// Category code, or 0.
    Noted = 2,
    /// Text id.
    Owner = 3,
    /// Moment at which a span was released, plus one.
    SpanFreed = 4,
}

impl Amendment {
    const fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            0 => Self::Freed,
            1 => Self::Requested,
            2 => Self::Noted,
            3 => Self::Owner,
            4 => Self::SpanFreed,
            _ => return None,
        })
    }
}

#[derive(Deserialize)]
struct Facts {
    truncated: bool,
    settings: Option<TracedSettings>,
    unknown: Vec<Unknown>,
    #[serde(default)]
    refusals: BTreeMap<u32, Refusal>,
}

/// Decompressed stream of a recording. Buffered, since it is parsed number by number and a call of the
/// decompressor for each would be slow.
pub(super) type Unpacked<R> = BufReader<zstd::Decoder<'static, BufReader<R>>>;

/// Reads a recording section by section and holds no more than one in memory.
pub struct RecordingReader<R: Read> {
    columns: ColumnReader<Unpacked<R>>,
    origin: Origin,
    version: u32,
}

impl<R: Read> RecordingReader<R> {
    /// Reads the file header.
    pub fn new(mut from: R, limits: Limits) -> Result<Self> {
        let mut start = [0; 12];
        from.read_exact(&mut start).map_err(|_| RecordingError::NotARecording)?;
        if start[..8] != MAGIC {
            return Err(RecordingError::NotARecording);
        }
        let version = u32::from_le_bytes([start[8], start[9], start[10], start[11]]);
        if version == 0 || version > VERSION {
            return Err(RecordingError::Version { found: version });
        }
        let mut columns = ColumnReader::new(
            BufReader::with_capacity(UNPACK_BUFFER_BYTES, zstd::Decoder::new(from)?),
            limits.bytes,
        );
        let origin = columns.bytes().and_then(|origin| {
            serde_json::from_slice(&origin).map_err(|_| damaged("its origin is not valid"))
        });
        let origin = origin.map_err(|error| error.seen_at(columns.position()))?;
        Ok(Self { columns, origin, version })
    }

    /// Origin of the recording.
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Version of the format.
    pub(super) const fn version(&self) -> u32 {
        self.version
    }

    pub(super) const fn columns(&mut self) -> &mut ColumnReader<Unpacked<R>> {
        &mut self.columns
    }

    /// Reads the next section, or returns `None` at the end. Files of version 1 have no sections: read them
    /// whole.
    pub fn next_part(&mut self) -> Result<Option<Part>> {
        if self.version < 2 {
            return Err(RecordingError::Version { found: self.version });
        }
        let from = &mut self.columns;
        Ok(Some(match from.number()? {
            tag::END => return Ok(None),
            tag::BEGIN => Part::Begin(
                from.number_u32()? as usize,
                from.number_u32()?,
                decode_optional(from.number()?).map(to_u32).transpose()?,
            ),
            tag::TEXTS => {
                let text = |bytes| String::from_utf8(bytes).map_err(|_| damaged("a string is not UTF-8"));
                let count = from.count()?;
                Part::Texts((0..count).map(|_| text(from.bytes()?)).collect::<Result<_>>()?)
            }
            tag::FRAMES => {
                let count = from.count()?;
                let (names, files, lines) = (from.column(count)?, from.column(count)?, from.deltas(count)?);
                let frame = |row: usize| {
                    let (name, file) = (TextId(to_u32(names[row])?), TextId(to_u32(files[row])?));
                    Ok(Frame { name, file, line: to_u32(lines[row])? })
                };
                Part::Frames((0..count).map(frame).collect::<Result<_>>()?)
            }
            tag::STACKS => Part::Stacks(stacks(from)?),
            tag::STREAMS => {
                let count = from.count()?;
                Part::Streams(from.column(count)?)
            }
            tag::POOLS => {
                let count = from.count()?;
                let (first, second) = (from.column(count)?, from.column(count)?);
                Part::Pools(first.into_iter().zip(second).collect())
            }
            tag::CALLS => {
                let count = from.count()?;
                let (modules, threads, parents) =
                    (from.column(count)?, from.column(count)?, from.deltas(count)?);
                let call = |row: usize| {
                    let (module, thread) = (TextId(to_u32(modules[row])?), to_u32(threads[row])?);
                    Ok(Call {
                        module,
                        thread,
                        parent: decode_index(parents[row])?,
                        began: NEVER,
                        ended: NEVER,
                    })
                };
                Part::Calls((0..count).map(call).collect::<Result<_>>()?)
            }
            tag::SPANS => Part::Spans(spans(from)?),
            tag::RANGES => {
                let count = from.count()?;
                let (names, sources, threads) =
                    (from.column(count)?, from.column(count)?, from.column(count)?);
                let range = |row: usize| {
                    let source = match sources[row] {
                        0 => RangeSource::Annotation,
                        1 => RangeSource::Nvtx,
                        _ => return Err(damaged("a range is of an unknown kind")),
                    };
                    let (name, thread) = (TextId(to_u32(names[row])?), to_u32(threads[row])?);
                    Ok(NamedRange { name, source, thread, began: NEVER, ended: NEVER })
                };
                Part::Ranges((0..count).map(range).collect::<Result<_>>()?)
            }
            tag::BLOCKS => Part::Blocks(blocks(from)?),
            tag::MOMENTS => Part::Moments(moments(from)?),
            tag::AMENDMENTS => {
                let count = from.count()?;
                let (codes, rows, values) = (from.column(count)?, from.deltas(count)?, from.column(count)?);
                let amendment = |row: usize| {
                    let what = Amendment::from_code(codes[row])
                        .ok_or(damaged("an amendment is of an unknown kind"))?;
                    Ok((what, to_u32(rows[row])?, values[row]))
                };
                Part::Amendments((0..count).map(amendment).collect::<Result<_>>()?)
            }
            tag::FACTS => {
                let facts: Facts = serde_json::from_slice(&from.bytes()?)
                    .map_err(|_| damaged("what it says of a track is not valid"))?;
                let Facts { truncated, settings, unknown, refusals } = facts;
                Part::Facts { truncated, settings, unknown, refusals }
            }
            _ => return Err(damaged("a section is unknown")),
        }))
    }
}

fn stacks(from: &mut ColumnReader<impl Read>) -> Result<Vec<Vec<u32>>> {
    let count = from.count()?;
    let lengths = from.column(count)?;
    let total = lengths.iter().try_fold(0_u64, |total, length| total.checked_add(*length));
    let total =
        total.filter(|total| *total <= from.remaining()).ok_or(damaged("stacks have too many frames"))?;
    let elements = from.deltas(total as usize)?;
    let mut rest = &elements[..];
    lengths
        .into_iter()
        .map(|length| {
            let (stack, behind) = rest.split_at((length as usize).min(rest.len()));
            rest = behind;
            stack.iter().map(|frame| to_u32(*frame)).collect()
        })
        .collect()
}

fn spans(from: &mut ColumnReader<impl Read>) -> Result<Vec<Span>> {
    let count = from.count()?;
    let addresses = from.deltas(count)?;
    let bytes = from.column(count)?;
    let born = from.deltas(count)?;
    let streams = from.column(count)?;
    let pools = from.column(count)?;
    let devices = from.column(count)?;
    let sizes = from.column(count)?;
    let expandable = from.column(count)?;
    (0..count)
        .map(|row| {
            Ok(Span {
                address: addresses[row],
                bytes: bytes[row],
                born: to_u32(born[row])?,
                freed: NEVER,
                stream: StreamRef(to_u16(streams[row])?),
                pool: PoolRef(to_u16(pools[row])?),
                device: to_device(devices[row])?,
                small: decode_optional(sizes[row]).map(|small| small != 0),
                expandable: expandable[row] != 0,
            })
        })
        .collect()
}

fn blocks(from: &mut ColumnReader<impl Read>) -> Result<Vec<Block>> {
    let count = from.count()?;
    let addresses = from.deltas(count)?;
    let bytes = from.column(count)?;
    let requested = from.column(count)?;
    let calls = from.deltas(count)?;
    let modules = from.column(count)?;
    let owners = from.column(count)?;
    let threads = from.column(count)?;
    let streams = from.column(count)?;
    let pools = from.column(count)?;
    let phases = from.column(count)?;
    let noted = from.column(count)?;
    (0..count)
        .map(|row| {
            Ok(Block {
                address: addresses[row],
                bytes: bytes[row],
                requested: decode_optional(requested[row]),
                born: NEVER,
                call: decode_index(calls[row])?,
                module: TextId(to_u32(modules[row])?),
                owner: TextId(to_u32(owners[row])?),
                thread: to_u32(threads[row])?,
                stream: StreamRef(to_u16(streams[row])?),
                pool: PoolRef(to_u16(pools[row])?),
                phase: phase(phases[row])?,
                noted: category(noted[row])?,
                ..Block::default()
            })
        })
        .collect()
}

fn moments(from: &mut ColumnReader<impl Read>) -> Result<Vec<Moment>> {
    let count = from.count()?;
    let kinds = from.column(count)?;
    let subjects = from.deltas(count)?;
    let devices = from.column(count)?;
    let allocated = from.deltas(count)?;
    let reserved = from.deltas(count)?;
    let times = from.deltas(count)?;
    let stacks = from.deltas(count)?;
    (0..count)
        .map(|row| {
            let kind = u8::try_from(kinds[row]).ok().and_then(|code| decode(code, subjects[row]));
            Ok(Moment {
                kind: kind.ok_or(damaged("a moment is of an unknown kind"))?,
                device: to_device(devices[row])?,
                allocated: allocated[row],
                reserved: reserved[row],
                time_us: Some(times[row]).filter(|time| *time != 0),
                stack: StackId(to_u32(stacks[row])?),
            })
        })
        .collect()
}

pub(super) fn phase(value: u64) -> Result<Phase> {
    u8::try_from(value).ok().and_then(Phase::from_code).ok_or(damaged("a phase is unknown"))
}

pub(super) fn category(value: u64) -> Result<Option<Category>> {
    if value == 0 {
        return Ok(None);
    }
    let known = u8::try_from(value).ok().and_then(Category::from_code);
    known.map(Some).ok_or(damaged("a category is unknown"))
}
