//! Converts a recorded track to a lane, the activity of one process on one device that the viewer shows.

use std::collections::HashMap;

use memfit_explain::categories;
use memfit_recording::{MomentKind, NEVER, StackId, TextId, Track};
use memfit_vocabulary::Category;

use crate::envelope::{SERIES, series};
use crate::lane::{Lane, Mark, MarkKind, Piece, Pool, Span};
use crate::places::Places;

/// Builds the lane of a track's process on one device.
pub fn lane(track: &Track, device: u8) -> Lane {
    let clock = Clock::from_track(track, device);
    let mut lane =
        Lane { pid: track.pid, rank: track.rank, device, length: clock.length(), ..Lane::default() };
    let mut names =
        Names { track, texts: vec![0; track.texts.len()], stacks: vec![None; track.stacks.len()] };
    let own = track.blocks().iter().filter(|block| block.device == device);
    for (block, category) in own.zip(categories(track, device)) {
        let asked = block.requested.unwrap_or(block.bytes).min(block.bytes);
        let owner = if block.owner == TextId::NONE { block.module } else { block.owner };
        let born = clock.tick(block.born);
        let freed = clock.end(block.freed).max(born);
        // If no source reports completions, a freed block is reusable at once.
        let reusable = if block.completed == NEVER { freed } else { clock.end(block.completed) };
        lane.pieces.push(Piece {
            address: block.address,
            asked,
            rounding: block.bytes - asked,
            born,
            freed,
            reusable: reusable.max(freed),
            stack: names.stack(&mut lane.places, block.stack),
            module: names.text(&mut lane.places, owner),
            category,
        });
    }
    // The pieces are in order already, unless somebody tampered with the recording.
    lane.pieces.sort_by_key(|piece| piece.born);
    lane.times = times(track, &clock);
    curves(track, &clock, &mut lane);
    spans(track, &clock, &mut lane);
    lane.marks = marks(track, &clock, &mut names, &mut lane.places);
    lane
}

/// Mapping of moments to ticks: only events of this device's memory are ticks.
struct Clock {
    device: u8,
    /// Moments that are ticks, in order.
    ticks: Vec<u32>,
}

impl Clock {
    fn from_track(track: &Track, device: u8) -> Self {
        let ticks = (0..).zip(track.moments()).filter(|(_, moment)| {
            moment.device == device
                && (of_segment(moment.kind)
                    || matches!(
                        moment.kind,
                        MomentKind::Alloc(_)
                            | MomentKind::Free(_)
                            | MomentKind::FreeCompleted(_)
                            | MomentKind::Oom(_)
                    ))
        });
        Self { device, ticks: ticks.map(|(index, _)| index).collect() }
    }

    fn length(&self) -> u32 {
        self.ticks.len() as u32
    }

    /// First tick at or after a moment.
    fn tick(&self, moment: u32) -> u32 {
        self.ticks.partition_point(|tick| *tick < moment) as u32
    }

    /// Same as [`Self::tick`], for moments that may be [`NEVER`].
    fn end(&self, moment: u32) -> u32 {
        if moment == NEVER { self.length() } else { self.tick(moment) }
    }
}

const fn of_segment(kind: MomentKind) -> bool {
    matches!(
        kind,
        MomentKind::SegmentAlloc(_)
            | MomentKind::SegmentFree(_)
            | MomentKind::SegmentMap(_)
            | MomentKind::SegmentUnmap(_)
    )
}

/// Rows already assigned to texts and stacks.
struct Names<'track> {
    track: &'track Track,
    texts: Vec<u32>,
    stacks: Vec<Option<u32>>,
}

impl Names<'_> {
    fn text(&mut self, places: &mut Places, id: TextId) -> u32 {
        let Some(row) = self.texts.get_mut(id.0 as usize).filter(|_| id != TextId::NONE) else { return 0 };
        if *row == 0 {
            *row = places.text(self.track.texts.get(id));
        }
        *row
    }

    fn stack(&mut self, places: &mut Places, id: StackId) -> u32 {
        let Self { track, stacks, .. } = self;
        let text = |id| track.texts.get(id);
        let intern = || {
            let frames = track.stacks.get(id);
            places.stack(frames.map(|frame| (text(frame.name), text(frame.file), frame.line)))
        };
        match stacks.get_mut(id.0 as usize) {
            Some(row) => *row.get_or_insert_with(intern),
            None => 0,
        }
    }
}

/// Computes each category's bytes by tick, and the difference between the allocator's totals and the blocks.
fn curves(track: &Track, clock: &Clock, lane: &mut Lane) {
    let mut ends: Vec<u32> = (0..lane.pieces.len() as u32).collect();
    ends.sort_by_key(|piece| lane.pieces[*piece as usize].freed);
    let (mut born, mut ended) = (lane.pieces.iter().peekable(), ends.iter().peekable());
    let mut values = [0_u64; SERIES];
    let (mut reserved, mut beyond, mut allocated) = (0, 0, 0);
    for (tick, moment) in (0..).zip(clock.ticks.iter().filter_map(|index| track.moment(*index))) {
        while let Some(piece) = born.next_if(|piece| piece.born <= tick) {
            values[series(piece.category)] += piece.asked;
            values[series(Category::Rounding)] += piece.rounding;
        }
        while let Some(piece) = ended.next_if(|piece| lane.pieces[**piece as usize].freed <= tick) {
            let piece = &lane.pieces[*piece as usize];
            values[series(piece.category)] -= piece.asked;
            values[series(Category::Rounding)] -= piece.rounding;
        }
        let in_blocks: u64 = values.iter().sum();
        let mut now = values;
        // The allocator's totals and the recorded blocks may differ. At a segment's allocation, the allocated
        // bytes may include the block that it was allocated for.
        if !of_segment(moment.kind) {
            allocated = moment.allocated;
        }
        let more = allocated.saturating_sub(in_blocks);
        now[series(Category::Unknown)] += more;
        now[series(Category::Fragmentation)] = moment.reserved.saturating_sub(allocated.max(in_blocks));
        lane.envelope.push(now);
        if std::mem::replace(&mut reserved, moment.reserved) != moment.reserved || tick == 0 {
            lane.reserved.push((tick, moment.reserved));
        }
        if std::mem::replace(&mut beyond, more) != more {
            lane.beyond.push((tick, more));
        }
    }
    lane.envelope.finish();
}

/// Thins out the times of the ticks. Ticks and time are each divided into 65,536 intervals; of consecutive
/// ticks in the same cell of that grid, only the first and the last are kept.
fn times(track: &Track, clock: &Clock) -> Vec<(u32, u64)> {
    const GRID_CELLS: u64 = 1 << 16;
    let known = || {
        let moments = (0_u32..).zip(&clock.ticks);
        moments.filter_map(|(tick, index)| Some((tick, track.moment(*index)?.time_us?)))
    };
    let Some((_, start)) = known().next() else { return Vec::new() };
    let length = known().map(|(_, time)| time.saturating_sub(start)).max().unwrap_or(0);
    if length == 0 {
        return Vec::new();
    }
    let cell = |(tick, time): (u32, u64)| {
        let of_time = (u128::from(time) * u128::from(GRID_CELLS) / u128::from(length)) as u64;
        (u64::from(tick) * GRID_CELLS / u64::from(clock.length().max(1)), of_time)
    };
    let mut times: Vec<(u32, u64)> = Vec::new();
    let mut last = None;
    for (tick, time) in known() {
        let now = (tick, time.saturating_sub(start));
        let Some(before) = last else {
            times.push(now);
            last = Some(now);
            continue;
        };
        // Simultaneous ticks are spread up to the next time; if the clock goes back, times stay constant.
        if now.1 <= before.1 {
            continue;
        }
        if cell(now) != cell(before) {
            if times.last() != Some(&before) {
                times.push(before);
            }
            times.push(now);
        }
        last = Some(now);
    }
    if let Some(end) = last.filter(|end| times.last() != Some(end)) {
        times.push(end);
    }
    times
}

fn spans(track: &Track, clock: &Clock, lane: &mut Lane) {
    let mut rows: HashMap<Pool, u32> = HashMap::new();
    for span in track.spans.iter().filter(|span| span.device == clock.device) {
        let pool = Pool {
            owner: track.pools.get(usize::from(span.pool.0)).copied().unwrap_or_default(),
            stream: track.streams.get(usize::from(span.stream.0)).copied().unwrap_or_default(),
            small: span.small,
            expandable: span.expandable,
        };
        let next = lane.pools.len() as u32;
        let row = *rows.entry(pool).or_insert(next);
        if row == next {
            lane.pools.push(pool);
        }
        let (born, freed) = (clock.tick(span.born), clock.end(span.freed));
        // Each unmapping is recorded as a span that ends when it begins.
        if born < freed {
            lane.spans.push(Span { address: span.address, bytes: span.bytes, born, freed, pool: row });
        }
    }
}

fn marks(track: &Track, clock: &Clock, names: &mut Names<'_>, places: &mut Places) -> Vec<Mark> {
    let mut marks = Vec::new();
    let start = clock.ticks.iter().find_map(|index| track.moment(*index)?.time_us);
    for (index, moment) in (0..).zip(track.moments()) {
        let mut range = |range: u32| names.text(places, track.ranges[range as usize].name);
        let kind = match moment.kind {
            MomentKind::Step(step) => MarkKind::Step(step),
            MomentKind::Phase(phase) => MarkKind::Phase(phase),
            MomentKind::Oom(bytes) if moment.device == clock.device => MarkKind::Oom(bytes),
            MomentKind::RangeBegin(named) => MarkKind::Begin(range(named)),
            MomentKind::RangeEnd(named) => MarkKind::End(range(named)),
            _ => continue,
        };
        let time = moment.time_us.zip(start).map(|(time, start)| time.saturating_sub(start));
        marks.push(Mark { tick: clock.tick(index), time, kind });
    }
    marks
}
