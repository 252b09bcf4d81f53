//! Assembles sections into tracks and checks every reference between rows.

use std::io::Read;

use super::{
    Amendment, Limits, Part, RecordingReader, Result, damaged, decode_index, decode_optional, parts, to_u32,
    v1,
};
use crate::{MomentKind, NEVER, Recording, RecordingError, StackId, TextId, Track};

impl Recording {
    /// Reads up to the first error, and returns what was read with that error.
    pub(super) fn read_with_error(from: impl Read, limits: Limits) -> Result<(Self, Option<RecordingError>)> {
        let mut reader = RecordingReader::new(from, limits)?;
        let mut recording = Self { origin: reader.origin().clone(), tracks: Vec::new() };
        let result = if reader.version() == 1 {
            v1::read_tracks(reader.columns(), &mut recording)
        } else {
            fold(&mut reader, &mut recording)
        };
        let mut error = result.err().map(|error| error.seen_at(reader.columns().position()));
        for track in &mut recording.tracks {
            if !is_sound(track) {
                // A partial file refers to rows that were not read, and so does a damaged one.
                error.get_or_insert(damaged("a reference is invalid, or a lifetime ends before it begins"));
            }
            track.shrink();
        }
        recording.tracks.retain(is_sound);
        Ok((recording, error))
    }
}

fn fold(reader: &mut RecordingReader<impl Read>, recording: &mut Recording) -> Result<()> {
    let mut current = None;
    while let Some(part) = reader.next_part()? {
        if let Part::Begin(number, pid, rank) = part {
            if number == recording.tracks.len() {
                let track = Track { pid, rank, streams: Vec::new(), pools: Vec::new(), ..Track::default() };
                recording.tracks.push(track);
            } else if number > recording.tracks.len() {
                return Err(damaged("a track is missing"));
            }
            current = Some(number);
            continue;
        }
        let track = current.and_then(|number| recording.tracks.get_mut(number));
        add(track.ok_or(damaged("something belongs to no track"))?, part)?;
    }
    Ok(())
}

fn add(track: &mut Track, part: Part) -> Result<()> {
    match part {
        Part::Texts(texts) => {
            for text in texts {
                let expected = track.texts.len();
                let id = track.texts.intern(&text);
                // Every table begins with the empty text.
                if id.0 as usize != expected && !(text.is_empty() && expected == 1) {
                    return Err(damaged("a text is there twice"));
                }
            }
        }
        Part::Frames(frames) => {
            for frame in frames {
                let expected = track.stacks.frames().len();
                if track.stacks.intern_frame(frame).0 as usize != expected {
                    return Err(damaged("a frame is there twice"));
                }
            }
        }
        Part::Stacks(stacks) => {
            for stack in stacks {
                let expected = track.stacks.len();
                if track.stacks.intern_numbers(&stack).0 as usize != expected {
                    return Err(damaged("a stack is there twice"));
                }
            }
        }
        Part::Streams(streams) => track.streams.extend(streams),
        Part::Pools(pools) => track.pools.extend(pools),
        Part::Calls(calls) => track.calls.extend(calls),
        Part::Spans(spans) => track.spans.extend(spans),
        Part::Ranges(ranges) => track.ranges.extend(ranges),
        Part::Blocks(blocks) => blocks.iter().for_each(|block| {
            track.blocks.push(block);
        }),
        Part::Moments(moments) => {
            for moment in moments {
                let now = track.moments.push(moment);
                apply_moment(track, now, moment.kind);
            }
        }
        Part::Amendments(amendments) => {
            for (what, row, value) in amendments {
                amend(track, what, row, value)?;
            }
        }
        Part::Facts { truncated, settings, unknown, refusals } => {
            (track.truncated, track.settings, track.unknown) = (truncated, settings, unknown);
            track.refusals = refusals;
        }
        Part::Begin(..) => {}
    }
    Ok(())
}

/// Applies a moment to the rows that it concerns.
fn apply_moment(track: &mut Track, now: u32, kind: MomentKind) {
    match kind {
        MomentKind::Alloc(block) => track.blocks.set_born(block, now),
        MomentKind::Free(block) => track.blocks.set_freed(block, now),
        MomentKind::FreeCompleted(block) => track.blocks.set_completed(block, now),
        MomentKind::Enter(call) => {
            if let Some(call) = track.calls.get_mut(call as usize) {
                call.began = now;
            }
        }
        MomentKind::Exit(call) => {
            if let Some(call) = track.calls.get_mut(call as usize) {
                call.ended = now;
            }
        }
        MomentKind::SegmentFree(span) => {
            if let Some(span) = track.spans.get_mut(span as usize) {
                span.freed = now;
            }
        }
        MomentKind::RangeBegin(range) => {
            if let Some(range) = track.ranges.get_mut(range as usize) {
                range.began = now;
            }
        }
        MomentKind::RangeEnd(range) => {
            if let Some(range) = track.ranges.get_mut(range as usize) {
                range.ended = now;
            }
        }
        _ => {}
    }
}

fn amend(track: &mut Track, what: Amendment, row: u32, value: u64) -> Result<()> {
    match what {
        Amendment::Freed => track.blocks.set_freed(row, decode_index(value)?),
        Amendment::Requested => track.blocks.set_requested(row, decode_optional(value)),
        Amendment::Noted => track.blocks.set_noted(row, parts::category(value)?),
        Amendment::Owner => track.blocks.set_owner(row, TextId(to_u32(value)?)),
        Amendment::SpanFreed => {
            let span = track.spans.get_mut(row as usize).ok_or(damaged("a span is not there"))?;
            span.freed = decode_index(value)?;
        }
    }
    Ok(())
}

/// Returns `true` if every reference is valid and no lifetime ends before it begins.
fn is_sound(track: &Track) -> bool {
    let (moments, blocks, calls) = (track.moments.len(), track.blocks.len(), track.calls.len());
    let (spans, ranges) = (track.spans.len(), track.ranges.len());
    let text = |id: TextId| (id.0 as usize) < track.texts.len();
    let stack = |id: StackId| (id.0 as usize) < track.stacks.len();
    let within = |index: u32, length: usize| index == NEVER || (index as usize) < length;
    // A lifetime may end at the moment after the last, but not before it began.
    let life = |born: u32, freed: u32| {
        (born as usize) < moments && (freed == NEVER || (freed as usize <= moments && freed >= born))
    };
    let frames = track.stacks.frames();
    let stacks_hold = frames.iter().all(|frame| text(frame.name) && text(frame.file))
        && (0..track.stacks.len() as u32).all(|id| {
            track.stacks.elements_of(StackId(id)).iter().all(|frame| (*frame as usize) < frames.len())
        });
    let moments_hold = track.moments.iter().all(|moment| {
        stack(moment.stack)
            && match moment.kind {
                MomentKind::Alloc(block) | MomentKind::Free(block) | MomentKind::FreeCompleted(block) => {
                    (block as usize) < blocks
                }
                MomentKind::Enter(call) | MomentKind::Exit(call) => (call as usize) < calls,
                MomentKind::SegmentAlloc(span)
                | MomentKind::SegmentFree(span)
                | MomentKind::SegmentMap(span)
                | MomentKind::SegmentUnmap(span) => (span as usize) < spans,
                MomentKind::RangeBegin(range) | MomentKind::RangeEnd(range) => (range as usize) < ranges,
                MomentKind::Phase(_) | MomentKind::Step(_) | MomentKind::Oom(_) | MomentKind::Snapshot => {
                    true
                }
            }
    });
    stacks_hold
        && moments_hold
        && track.blocks().iter().all(|block| {
            life(block.born, block.freed)
                && within(block.call, calls)
                && text(block.module)
                && text(block.owner)
                && usize::from(block.stream.0) < track.streams.len()
                && usize::from(block.pool.0) < track.pools.len()
        })
        && track
            .calls
            .iter()
            .all(|call| life(call.began, call.ended) && within(call.parent, calls) && text(call.module))
        && track.spans.iter().all(|span| {
            life(span.born, span.freed)
                && usize::from(span.stream.0) < track.streams.len()
                && usize::from(span.pool.0) < track.pools.len()
        })
        && track.ranges.iter().all(|range| life(range.began, range.ended) && text(range.name))
}
