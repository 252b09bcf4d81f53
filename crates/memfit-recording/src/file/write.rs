//! Writer of recordings, all at once or while a run is going on.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;

use super::{MAGIC, MAX_SECTION_ROWS, Result, VERSION, encode_index, encode_optional, tag};
use crate::columns::ColumnWriter;
use crate::table::{BlockChange, encode};
use crate::{MomentKind, NEVER, Origin, Refusal, TracedSettings, Track, Unknown};

/// zstd level 3: fast, and columns compress well enough.
const ZSTD_LEVEL: i32 = 3;

/// Writes a recording piece by piece. Flushed data can be read even if the writer is never finished.
pub struct RecordingWriter<W: Write> {
    columns: ColumnWriter<zstd::Encoder<'static, W>>,
    /// Number of rows already written for each track.
    written: Vec<Written>,
    /// Track of the last section.
    current: Option<usize>,
}

/// Number of rows of each table that are in the file.
#[derive(Clone, Copy, Default)]
struct Written {
    texts: usize,
    frames: usize,
    stacks: usize,
    streams: usize,
    pools: usize,
    calls: usize,
    spans: usize,
    ranges: usize,
    blocks: u32,
    moments: u32,
}

/// Properties of the whole track; a later section overrides an earlier one.
#[derive(Serialize)]
struct Facts<'track> {
    truncated: bool,
    settings: &'track Option<TracedSettings>,
    unknown: &'track [Unknown],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    refusals: &'track BTreeMap<u32, Refusal>,
}

impl<W: Write> RecordingWriter<W> {
    /// Writes the file header.
    pub fn new(mut to: W, origin: &Origin) -> Result<Self> {
        to.write_all(&MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        let mut columns = ColumnWriter(zstd::Encoder::new(to, ZSTD_LEVEL)?);
        columns.bytes(&serde_json::to_vec(origin).map_err(std::io::Error::from)?)?;
        Ok(Self { columns, written: Vec::new(), current: None })
    }

    /// Writes the rows of a growing track that are not in the file yet. Tracks are numbered from zero in the
    /// order in which they begin.
    pub fn sync(&mut self, number: usize, track: &mut Track) -> Result<()> {
        let changes = track.blocks.take_changes();
        self.new_rows(number, track, &changes)?;
        track.blocks.seal();
        Ok(())
    }

    /// Writes a complete track.
    pub fn track(&mut self, number: usize, track: &Track) -> Result<()> {
        self.new_rows(number, track, &[])
    }

    /// Flushes everything written so far.
    pub fn flush(&mut self) -> Result<()> {
        Ok(self.columns.0.flush()?)
    }

    /// Ends the recording.
    pub fn finish(mut self) -> Result<W> {
        self.columns.number(tag::END)?;
        let mut inner = self.columns.0.finish()?;
        inner.flush()?;
        Ok(inner)
    }

    fn new_rows(&mut self, number: usize, track: &Track, changes: &[BlockChange]) -> Result<()> {
        while self.written.len() <= number {
            self.written.push(Written::default());
        }
        let mut done = self.written[number];
        let columns = &mut self.columns;
        if self.current != Some(number) {
            columns.number(tag::BEGIN)?;
            columns.number(number as u64)?;
            columns.number(u64::from(track.pid))?;
            columns.number(encode_optional(track.rank.map(u64::from)))?;
            self.current = Some(number);
        }
        write_tables(columns, track, &mut done)?;
        loop {
            let end = track.next_moment().min(done.moments.saturating_add(MAX_SECTION_ROWS));
            // Rows are written before the rows that refer to them.
            let calls =
                done.calls + track.calls[done.calls..].iter().take_while(|call| call.began < end).count();
            write_calls(columns, &track.calls[done.calls..calls])?;
            let spans =
                done.spans + track.spans[done.spans..].iter().take_while(|span| span.born < end).count();
            write_spans(columns, &track.spans[done.spans..spans])?;
            let ranges = done.ranges
                + track.ranges[done.ranges..].iter().take_while(|range| range.began < end).count();
            write_ranges(columns, &track.ranges[done.ranges..ranges])?;
            let blocks = track.blocks.born_before(end).max(done.blocks);
            write_blocks(columns, track, done.blocks, blocks)?;
            write_moments(columns, track, done.moments, end)?;
            (done.calls, done.spans, done.ranges, done.blocks, done.moments) =
                (calls, spans, ranges, blocks, end);
            if end == track.next_moment() {
                break;
            }
        }
        let begun = self.written[number];
        write_amendments(columns, track, changes, (begun.blocks, done.blocks), (0, done.spans))?;
        columns.number(tag::FACTS)?;
        let facts = Facts {
            truncated: track.truncated,
            settings: &track.settings,
            unknown: &track.unknown,
            refusals: &track.refusals,
        };
        columns.bytes(&serde_json::to_vec(&facts).map_err(std::io::Error::from)?)?;
        self.written[number] = done;
        Ok(())
    }
}

type Columns<W> = ColumnWriter<zstd::Encoder<'static, W>>;

fn begin<W: Write>(to: &mut Columns<W>, tag: u64, count: usize) -> Result<bool> {
    if count > 0 {
        to.number(tag)?;
        to.number(count as u64)?;
    }
    Ok(count > 0)
}

/// Writes new texts, frames, stacks, streams and pools.
fn write_tables<W: Write>(to: &mut Columns<W>, track: &Track, done: &mut Written) -> Result<()> {
    while begin(to, tag::TEXTS, (track.texts.len() - done.texts).min(MAX_SECTION_ROWS as usize))? {
        let end = track.texts.len().min(done.texts + MAX_SECTION_ROWS as usize);
        track.texts.iter().take(end).skip(done.texts).try_for_each(|text| to.bytes(text.as_bytes()))?;
        done.texts = end;
    }
    let frames = track.stacks.frames();
    for rows in frames[done.frames.min(frames.len())..].chunks(MAX_SECTION_ROWS as usize) {
        begin(to, tag::FRAMES, rows.len())?;
        to.column(rows.iter().map(|frame| u64::from(frame.name.0)))?;
        to.column(rows.iter().map(|frame| u64::from(frame.file.0)))?;
        to.deltas(rows.iter().map(|frame| u64::from(frame.line)))?;
        done.frames += rows.len();
    }
    // The empty stack is never written.
    done.stacks = done.stacks.max(1);
    while begin(to, tag::STACKS, (track.stacks.len() - done.stacks).min(MAX_SECTION_ROWS as usize))? {
        let end = track.stacks.len().min(done.stacks + MAX_SECTION_ROWS as usize);
        let stacks =
            || (done.stacks..end).map(|stack| track.stacks.elements_of(crate::StackId(stack as u32)));
        to.column(stacks().map(|elements| elements.len() as u64))?;
        to.deltas(stacks().flatten().map(|frame| u64::from(*frame)))?;
        done.stacks = end;
    }
    if begin(to, tag::STREAMS, track.streams.len() - done.streams)? {
        to.column(track.streams[done.streams..].iter().copied())?;
        done.streams = track.streams.len();
    }
    if begin(to, tag::POOLS, track.pools.len() - done.pools)? {
        to.column(track.pools[done.pools..].iter().map(|pool| pool.0))?;
        to.column(track.pools[done.pools..].iter().map(|pool| pool.1))?;
        done.pools = track.pools.len();
    }
    Ok(())
}

fn write_calls<W: Write>(to: &mut Columns<W>, calls: &[crate::Call]) -> Result<()> {
    if begin(to, tag::CALLS, calls.len())? {
        to.column(calls.iter().map(|call| u64::from(call.module.0)))?;
        to.column(calls.iter().map(|call| u64::from(call.thread)))?;
        to.deltas(calls.iter().map(|call| encode_index(call.parent)))?;
    }
    Ok(())
}

fn write_spans<W: Write>(to: &mut Columns<W>, spans: &[crate::Span]) -> Result<()> {
    if begin(to, tag::SPANS, spans.len())? {
        to.deltas(spans.iter().map(|span| span.address))?;
        to.column(spans.iter().map(|span| span.bytes))?;
        to.deltas(spans.iter().map(|span| u64::from(span.born)))?;
        to.column(spans.iter().map(|span| u64::from(span.stream.0)))?;
        to.column(spans.iter().map(|span| u64::from(span.pool.0)))?;
        to.column(spans.iter().map(|span| u64::from(span.device)))?;
        to.column(spans.iter().map(|span| span.small.map_or(0, |small| 1 + u64::from(small))))?;
        to.column(spans.iter().map(|span| u64::from(span.expandable)))?;
    }
    Ok(())
}

fn write_ranges<W: Write>(to: &mut Columns<W>, ranges: &[crate::NamedRange]) -> Result<()> {
    if begin(to, tag::RANGES, ranges.len())? {
        to.column(ranges.iter().map(|range| u64::from(range.name.0)))?;
        to.column(ranges.iter().map(|range| range.source as u64))?;
        to.column(ranges.iter().map(|range| u64::from(range.thread)))?;
    }
    Ok(())
}

fn write_blocks<W: Write>(to: &mut Columns<W>, track: &Track, from: u32, end: u32) -> Result<()> {
    let blocks = || (from..end).filter_map(|block| track.block(block));
    if begin(to, tag::BLOCKS, (end - from) as usize)? {
        to.deltas(blocks().map(|block| block.address))?;
        to.column(blocks().map(|block| block.bytes))?;
        to.column(blocks().map(|block| encode_optional(block.requested)))?;
        to.deltas(blocks().map(|block| encode_index(block.call)))?;
        to.column(blocks().map(|block| u64::from(block.module.0)))?;
        to.column(blocks().map(|block| u64::from(block.owner.0)))?;
        to.column(blocks().map(|block| u64::from(block.thread)))?;
        to.column(blocks().map(|block| u64::from(block.stream.0)))?;
        to.column(blocks().map(|block| u64::from(block.pool.0)))?;
        to.column(blocks().map(|block| u64::from(block.phase.code())))?;
        to.column(blocks().map(|block| block.noted.map_or(0, |category| u64::from(category.code()))))?;
    }
    Ok(())
}

fn write_moments<W: Write>(to: &mut Columns<W>, track: &Track, from: u32, end: u32) -> Result<()> {
    let moments = || (from..end).filter_map(|moment| track.moment(moment));
    if begin(to, tag::MOMENTS, (end - from) as usize)? {
        to.column(moments().map(|moment| u64::from(encode(moment.kind).0)))?;
        to.deltas(moments().map(|moment| encode(moment.kind).1))?;
        to.column(moments().map(|moment| u64::from(moment.device)))?;
        to.deltas(moments().map(|moment| moment.allocated))?;
        to.deltas(moments().map(|moment| moment.reserved))?;
        to.deltas(moments().map(|moment| moment.time_us.unwrap_or(0)))?;
        to.deltas(moments().map(|moment| u64::from(moment.stack.0)))?;
    }
    Ok(())
}

/// Writes changes that no earlier section holds: values of blocks set after the blocks were written, and
/// lifetimes that end without a moment.
fn write_amendments<W: Write>(
    to: &mut Columns<W>,
    track: &Track,
    changes: &[BlockChange],
    blocks: (u32, u32),
    spans: (usize, usize),
) -> Result<()> {
    let mut rows: Vec<(u64, u32, u64)> = Vec::new();
    let ends_itself = |block: u32, freed: u32| {
        track.moment(freed).is_some_and(|moment| moment.kind == MomentKind::Free(block))
    };
    for BlockChange { what, block } in changes.iter().filter(|changes| changes.block < blocks.0) {
        let Some(now) = track.block(*block) else { continue };
        let value = match what {
            super::Amendment::Freed if ends_itself(*block, now.freed) => continue,
            super::Amendment::Freed => encode_index(now.freed),
            super::Amendment::Requested => encode_optional(now.requested),
            super::Amendment::Noted => now.noted.map_or(0, |category| u64::from(category.code())),
            super::Amendment::Owner => u64::from(now.owner.0),
            super::Amendment::SpanFreed => continue,
        };
        rows.push((*what as u64, *block, value));
    }
    for block in blocks.0..blocks.1 {
        let freed = track.blocks.freed(block);
        if freed != NEVER && !ends_itself(block, freed) {
            rows.push((super::Amendment::Freed as u64, block, encode_index(freed)));
        }
    }
    for span in spans.0..spans.1 {
        let freed = track.spans[span].freed;
        let ends_itself =
            track.moment(freed).is_some_and(|moment| moment.kind == MomentKind::SegmentFree(span as u32));
        if freed != NEVER && !ends_itself {
            rows.push((super::Amendment::SpanFreed as u64, span as u32, encode_index(freed)));
        }
    }
    for rows in rows.chunks(MAX_SECTION_ROWS as usize) {
        begin(to, tag::AMENDMENTS, rows.len())?;
        to.column(rows.iter().map(|row| row.0))?;
        to.deltas(rows.iter().map(|row| u64::from(row.1)))?;
        to.column(rows.iter().map(|row| row.2))?;
    }
    Ok(())
}
