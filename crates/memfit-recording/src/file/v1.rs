//! Version 1 of the format, which is only read: each track table by table, column by column.

use std::io::Read;

use super::parts::{category, phase};
use super::{Result, damaged, decode_index, decode_optional, to_device, to_u32};
use crate::columns::ColumnReader;
use crate::table::decode;
use crate::{Block, Call, Moment, MomentKind, Recording, StackId, TextId, Track, Unknown};

const END: u64 = 0;
const TRACK: u64 = 1;

/// Reads all tracks, which follow the origin.
pub(super) fn read_tracks(columns: &mut ColumnReader<impl Read>, recording: &mut Recording) -> Result<()> {
    loop {
        match columns.number()? {
            END => return Ok(()),
            TRACK => recording.tracks.push(read_track(columns)?),
            _ => return Err(damaged("a section is unknown")),
        }
    }
}

fn read_track(from: &mut ColumnReader<impl Read>) -> Result<Track> {
    let mut track = Track {
        pid: from.number_u32()?,
        rank: decode_optional(from.number()?).map(to_u32).transpose()?,
        truncated: from.number()? != 0,
        ..Track::default()
    };
    for number in 0..from.count()? {
        let text = String::from_utf8(from.bytes()?).map_err(|_| damaged("a string is not UTF-8"))?;
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
    Ok(track)
}

fn read_moments(from: &mut ColumnReader<impl Read>) -> Result<Vec<Moment>> {
    let count = from.count()?;
    let kinds = from.column(count)?;
    let subjects = from.deltas(count)?;
    let devices = from.column(count)?;
    let allocated = from.deltas(count)?;
    let reserved = from.deltas(count)?;
    (0..count)
        .map(|row| {
            Ok(Moment {
                kind: kind(kinds[row], subjects[row])?,
                device: to_device(devices[row])?,
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
    let addresses = from.deltas(count)?;
    let bytes = from.column(count)?;
    let requested = from.column(count)?;
    let born = from.deltas(count)?;
    let freed = from.deltas(count)?;
    let calls = from.deltas(count)?;
    let modules = from.column(count)?;
    let owners = from.column(count)?;
    // A block's step and device are those of the moment of its allocation.
    from.deltas(count)?;
    let threads = from.column(count)?;
    from.column(count)?;
    let phases = from.column(count)?;
    let noted = from.column(count)?;
    (0..count)
        .map(|row| {
            Ok(Block {
                address: addresses[row],
                bytes: bytes[row],
                requested: decode_optional(requested[row]),
                born: to_u32(born[row])?,
                freed: decode_index(freed[row])?,
                call: decode_index(calls[row])?,
                module: TextId(to_u32(modules[row])?),
                owner: TextId(to_u32(owners[row])?),
                thread: to_u32(threads[row])?,
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
    let parents = from.deltas(count)?;
    let began = from.deltas(count)?;
    let ended = from.deltas(count)?;
    (0..count)
        .map(|row| {
            Ok(Call {
                module: TextId(to_u32(modules[row])?),
                thread: to_u32(threads[row])?,
                parent: decode_index(parents[row])?,
                began: to_u32(began[row])?,
                ended: decode_index(ended[row])?,
            })
        })
        .collect()
}

fn kind(code: u64, subject: u64) -> Result<MomentKind> {
    u8::try_from(code)
        .ok()
        .and_then(|code| decode(code, subject))
        .ok_or(damaged("a moment is of an unknown kind"))
}
