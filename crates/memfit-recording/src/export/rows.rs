//! Tables of rows, for spreadsheets and scripts: each block with its life, or each event.

use std::io::{self, Write};

use memfit_vocabulary::one_line;
use serde_json::{Map, Value, json};

use crate::{MomentKind, NEVER, Recording, StackId, Track};

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFormat {
    /// Comma-separated, with a line of names at the top.
    Csv,
    /// A JSON object on each line.
    JsonLines,
}

/// What the rows are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// Blocks, with their lives.
    #[default]
    Blocks,
    /// One row per event, in order.
    Events,
}

const BLOCKS: [&str; 18] = [
    "rank",
    "device",
    "address",
    "bytes",
    "requested",
    "born",
    "born_us",
    "freed",
    "freed_us",
    "step",
    "phase",
    "module",
    "owner",
    "category",
    "thread",
    "stream",
    "pool",
    "stack",
];
const EVENTS: [&str; 10] =
    ["rank", "index", "event", "device", "time_us", "allocated", "reserved", "bytes", "subject", "stack"];

/// Writes a recording's rows.
pub fn write(recording: &Recording, rows: Rows, format: RowFormat, mut to: impl Write) -> io::Result<()> {
    let names: &[&str] = match rows {
        Rows::Blocks => &BLOCKS,
        Rows::Events => &EVENTS,
    };
    if format == RowFormat::Csv {
        writeln!(to, "{}", names.join(","))?;
    }
    for track in &recording.tracks {
        match rows {
            Rows::Blocks => blocks(track, |values| row(&mut to, format, names, values))?,
            Rows::Events => events(track, |values| row(&mut to, format, names, values))?,
        }
    }
    to.flush()
}

fn row(to: &mut impl Write, format: RowFormat, names: &[&str], values: Vec<Value>) -> io::Result<()> {
    if format == RowFormat::Csv {
        let cells: Vec<String> = values.iter().map(cell).collect();
        return writeln!(to, "{}", cells.join(","));
    }
    let row: Map<String, Value> = names.iter().map(|name| (*name).to_owned()).zip(values).collect();
    serde_json::to_writer(&mut *to, &row)?;
    to.write_all(b"\n")
}

fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => one_line(text).into_owned(),
        Value::Array(parts) => {
            parts.iter().filter_map(Value::as_str).map(one_line).collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    };
    // A spreadsheet takes a text that begins like this for a formula.
    let formula = !value.is_number() && text.starts_with(['=', '+', '-', '@']);
    let text = if formula { format!("'{text}") } else { text };
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

fn stack(track: &Track, id: StackId) -> Value {
    let text = |frame: crate::Frame| {
        format!("{}:{} in {}", track.texts.get(frame.file), frame.line, track.texts.get(frame.name))
    };
    track.stacks.get(id).map(text).collect::<Vec<_>>().into()
}

/// A text, or nothing where it is empty.
fn text(track: &Track, id: crate::TextId) -> Value {
    let text = track.texts.get(id);
    if text.is_empty() { Value::Null } else { text.into() }
}

fn blocks(track: &Track, mut row: impl FnMut(Vec<Value>) -> io::Result<()>) -> io::Result<()> {
    let time = |moment: u32| track.moment(moment).and_then(|moment| moment.time_us);
    let index = |moment: u32| (moment != NEVER).then_some(moment);
    track.blocks().iter().try_for_each(|block| {
        row(vec![
            json!(track.rank),
            json!(block.device),
            json!(format!("{:#x}", block.address)),
            json!(block.bytes),
            json!(block.requested),
            json!(index(block.born)),
            json!(time(block.born)),
            json!(index(block.freed)),
            json!(time(block.freed)),
            json!(block.step + 1),
            json!(block.phase.name()),
            text(track, block.module),
            text(track, block.owner),
            json!(block.noted.map(memfit_vocabulary::Category::name)),
            json!(block.thread),
            json!(track.streams.get(usize::from(block.stream.0))),
            json!(
                track.pools.get(usize::from(block.pool.0)).map(|(first, second)| format!("{first}.{second}"))
            ),
            stack(track, block.stack),
        ])
    })
}

fn events(track: &Track, mut row: impl FnMut(Vec<Value>) -> io::Result<()>) -> io::Result<()> {
    (0_u32..).zip(track.moments()).try_for_each(|(index, moment)| {
        let block =
            |block: u32| track.block(block).map(|block| (block.bytes, format!("{:#x}", block.address)));
        let span = |span: u32| {
            track.spans.get(span as usize).map(|span| (span.bytes, format!("{:#x}", span.address)))
        };
        let named = |id: Option<crate::TextId>| (0, id.map_or("", |id| track.texts.get(id)).to_owned());
        let (event, about) = match moment.kind {
            MomentKind::Alloc(index) => ("alloc", block(index)),
            MomentKind::Free(index) => ("free", block(index)),
            MomentKind::FreeCompleted(index) => ("free-completed", block(index)),
            MomentKind::SegmentAlloc(index) => ("segment-alloc", span(index)),
            MomentKind::SegmentFree(index) => ("segment-free", span(index)),
            MomentKind::SegmentMap(index) => ("segment-map", span(index)),
            MomentKind::SegmentUnmap(index) => ("segment-unmap", span(index)),
            MomentKind::Oom(bytes) => ("oom", Some((bytes, String::new()))),
            MomentKind::Phase(phase) => ("phase", Some((0, phase.name().to_owned()))),
            MomentKind::Step(step) => ("step", Some((0, step.to_string()))),
            MomentKind::Enter(call) => {
                ("enter", Some(named(track.calls.get(call as usize).map(|call| call.module))))
            }
            MomentKind::Exit(call) => {
                ("exit", Some(named(track.calls.get(call as usize).map(|call| call.module))))
            }
            MomentKind::RangeBegin(range) => {
                ("range-begin", Some(named(track.ranges.get(range as usize).map(|range| range.name))))
            }
            MomentKind::RangeEnd(range) => {
                ("range-end", Some(named(track.ranges.get(range as usize).map(|range| range.name))))
            }
            MomentKind::Snapshot => ("snapshot", None),
        };
        let (bytes, subject) = about.unzip();
        let totals = moment.kind.has_totals();
        row(vec![
            json!(track.rank),
            json!(index),
            json!(event),
            json!(totals.then_some(moment.device)),
            json!(moment.time_us),
            json!(totals.then_some(moment.allocated)),
            json!(totals.then_some(moment.reserved)),
            json!(bytes.filter(|bytes| *bytes > 0)),
            json!(subject.filter(|subject| !subject.is_empty())),
            stack(track, moment.stack),
        ])
    })
}
