//! Conversion of a recording to a memory snapshot: allocator calls become a trace, the last state becomes
//! segments.

use std::num::NonZeroU16;

use crate::{
    Annotation, Block, MomentKind, NEVER, PoolRef, Recording, Segment, SegmentBlock, SegmentBlockState,
    Snapshot, Span, StreamRef, TextId, TraceAction, TraceEvent, Track,
};

/// Largest block of a small pool, as memory_viz and other readers assume it.
const SMALL_LIMIT: u64 = 1 << 20;

/// What a process writes into a snapshot in addition to its allocator's calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writer {
    /// `true` if its PyTorch names the pool of each event, as 2.12 and later do.
    pub names_pools: bool,
    /// Bytes that its allocator could reserve, for the free memory at a failed request.
    pub limit: Option<u64>,
}

impl Snapshot {
    /// Converts a track to the snapshot that its process would have written at the end. Without segments in
    /// the track, the snapshot has none either.
    pub fn from_track(track: &Track) -> Self {
        Self::from_track_of(track, Writer::default())
    }

    /// [`Self::from_track`] with what is known of the process.
    pub fn from_track_of(track: &Track, writer: Writer) -> Self {
        // A device may have segments without blocks.
        let of_segments = track.spans.iter().map(|span| span.device).max();
        let highest = track.devices().last().copied().max(of_segments);
        let devices = highest.map_or(0, |device| usize::from(device) + 1);
        let mut snapshot = Self {
            texts: track.texts.clone(),
            stacks: track.stacks.clone(),
            streams: track.streams.clone(),
            pools: track.pools.clone(),
            settings: track.settings.clone(),
            ..Self::default()
        };
        // Sources that do not report `free_completed` treat each free as immediate.
        let tells_completion = tells_completion(track);
        for device in 0..devices {
            let start = snapshot.events.len();
            let own = (0..).zip(track.moments()).filter(|(_, moment)| usize::from(moment.device) == device);
            for (place, moment) in own {
                let mut event = TraceEvent {
                    address: 0,
                    size: 0,
                    time_us: moment.time_us.unwrap_or(0),
                    stack: moment.stack,
                    metadata: TextId::NONE,
                    stream: 0,
                    pool: None,
                    category: None,
                    action: TraceAction::Snapshot,
                };
                match moment.kind {
                    MomentKind::Alloc(block) => {
                        let Some(block) = track.block(block) else { continue };
                        of_block(&mut event, &block, TraceAction::Alloc);
                        event.category = block.noted;
                    }
                    MomentKind::Free(block) => {
                        let Some(block) = track.block(block) else { continue };
                        of_block(&mut event, &block, TraceAction::FreeRequested);
                        if !tells_completion {
                            snapshot.events.push(event);
                            event.action = TraceAction::FreeCompleted;
                        }
                    }
                    MomentKind::FreeCompleted(block) => {
                        let Some(block) = track.block(block) else { continue };
                        of_block(&mut event, &block, TraceAction::FreeCompleted);
                    }
                    MomentKind::SegmentAlloc(span) => {
                        of_span(&mut event, track, span, TraceAction::SegmentAlloc);
                    }
                    MomentKind::SegmentFree(span) => {
                        of_span(&mut event, track, span, TraceAction::SegmentFree);
                    }
                    MomentKind::SegmentMap(span) => of_span(&mut event, track, span, TraceAction::SegmentMap),
                    MomentKind::SegmentUnmap(span) => {
                        of_span(&mut event, track, span, TraceAction::SegmentUnmap);
                    }
                    MomentKind::Oom(bytes) => {
                        (event.action, event.size) = (TraceAction::Oom, bytes);
                        event.address = writer.limit.map_or(0, |limit| limit.saturating_sub(moment.reserved));
                        if let Some(refusal) = track.refusals.get(&place) {
                            event.address = refusal.left;
                            event.stream = refusal.stream.0;
                            event.pool = pool(refusal.pool);
                        }
                    }
                    MomentKind::Snapshot => event.size = moment.allocated,
                    _ => continue,
                }
                snapshot.events.push(event);
            }
            snapshot.traces.push(start..snapshot.events.len());
        }
        if writer.names_pools {
            for event in snapshot.events.iter_mut().filter(|event| event.action != TraceAction::Snapshot) {
                event.pool = event.pool.or(NonZeroU16::new(1));
            }
        }
        snapshot.annotations = annotations(track);
        segments(track, &mut snapshot);
        snapshot
    }

    /// Converts each track of a recording to a snapshot, one for each process.
    pub fn from_recording(recording: &Recording) -> Vec<Self> {
        recording.tracks.iter().map(Self::from_track).collect()
    }
}

fn of_block(event: &mut TraceEvent, block: &Block, action: TraceAction) {
    event.action = action;
    event.address = block.address;
    event.size = block.requested.unwrap_or(block.bytes);
    event.stream = block.stream.0;
    event.pool = pool(block.pool);
    event.metadata = block.module;
}

fn of_span(event: &mut TraceEvent, track: &Track, span: u32, action: TraceAction) {
    let Some(span) = track.spans.get(span as usize) else { return };
    event.action = action;
    event.address = span.address;
    event.size = span.bytes;
    event.stream = span.stream.0;
    event.pool = pool(span.pool);
}

/// Returns a pool's index if it is not the default pool, which only some releases write: readers take its id
/// in a trace for a sign of them.
const fn pool(pool: PoolRef) -> Option<NonZeroU16> {
    if pool.0 == 0 { None } else { NonZeroU16::new(pool.0 + 1) }
}

fn annotations(track: &Track) -> Vec<Annotation> {
    let mut annotations = Vec::new();
    for moment in track.moments() {
        let (range, begins) = match moment.kind {
            MomentKind::RangeBegin(range) => (range, true),
            MomentKind::RangeEnd(range) => (range, false),
            _ => continue,
        };
        if let Some(range) = track.ranges.get(range as usize) {
            let time_us = moment.time_us.unwrap_or(0);
            annotations.push(Annotation { name: range.name, begins, device: None, time_us });
        }
    }
    annotations
}

/// Adds the segments at the end and the blocks that fill them.
fn segments(track: &Track, snapshot: &mut Snapshot) {
    let last = track.next_moment();
    let tells = tells_completion(track);
    let held = |(index, block): &(u32, Block)| {
        block.born <= last && (block.freed == NEVER || tells && is_pending(track, *index, block, last))
    };
    let mut live: Vec<Block> =
        (0..).zip(track.blocks().iter()).filter(held).map(|(_, block)| block).collect();
    live.sort_by_key(|block| (block.device, block.address));
    for span in merged_spans(track, last) {
        let start = snapshot.blocks.len();
        let end = span.address.saturating_add(span.bytes);
        let mut next = span.address;
        let first = live.partition_point(|block| (block.device, block.address) < (span.device, span.address));
        for block in
            live[first..].iter().take_while(|block| block.device == span.device && block.address < end)
        {
            if block.address < next || block.address.saturating_add(block.bytes) > end {
                continue;
            }
            push_inactive(snapshot, next, block.address);
            let pending = block.freed != NEVER;
            snapshot.blocks.push(SegmentBlock {
                address: block.address,
                size: block.bytes,
                requested: block.requested.unwrap_or(block.bytes),
                state: if pending { SegmentBlockState::Pending } else { SegmentBlockState::Allocated },
                stack: block.stack,
            });
            next = block.address + block.bytes;
        }
        push_inactive(snapshot, next, end);
        let blocks = &snapshot.blocks[start..];
        let largest = blocks
            .iter()
            .filter(|block| block.state == SegmentBlockState::Allocated)
            .map(|block| block.size)
            .max();
        snapshot.segments.push(Segment {
            device: u32::from(span.device),
            address: span.address,
            size: span.bytes,
            stream: track.streams.get(usize::from(span.stream.0)).copied().unwrap_or(0),
            small: span.small.unwrap_or_else(|| largest.is_some_and(|largest| largest <= SMALL_LIMIT)),
            pool: track.pools.get(usize::from(span.pool.0)).copied().unwrap_or_default(),
            expandable: span.expandable,
            blocks: start..snapshot.blocks.len(),
        });
    }
}

/// Returns `true` if the track reports the completion of a free apart from its request. If it does not, each
/// free is immediate.
fn tells_completion(track: &Track) -> bool {
    track.moments().iter().any(|moment| matches!(moment.kind, MomentKind::FreeCompleted(_)))
}

/// Returns `true` if a block's free was requested but not completed: it still waits for other streams. Blocks
/// whose free was not logged do not count.
fn is_pending(track: &Track, index: u32, block: &Block, last: u32) -> bool {
    let given_back = track.moment(block.freed).is_some_and(|moment| moment.kind == MomentKind::Free(index));
    given_back && (block.completed == NEVER || block.completed > last)
}

/// Adds an inactive block for the addresses between two live ones, if there are any.
fn push_inactive(snapshot: &mut Snapshot, from: u64, to: u64) {
    if from < to {
        let state = SegmentBlockState::Inactive;
        let stack = crate::StackId::NONE;
        snapshot.blocks.push(SegmentBlock { address: from, size: to - from, requested: 0, state, stack });
    }
}

/// Returns the live spans sorted by address, with adjacent mapped ranges of an expandable segment merged.
fn merged_spans(track: &Track, last: u32) -> Vec<Span> {
    let mut spans: Vec<Span> = track.spans.iter().filter(|span| span.is_live_at(last)).copied().collect();
    spans.sort_by_key(|span| (span.device, span.address));
    let mut merged_spans: Vec<Span> = Vec::with_capacity(spans.len());
    let same = |one: &Span, other: &Span| -> bool {
        let key = |span: &Span| -> (u8, StreamRef, PoolRef) { (span.device, span.stream, span.pool) };
        one.expandable
            && other.expandable
            && key(one) == key(other)
            && one.address + one.bytes == other.address
    };
    for span in spans {
        match merged_spans.last_mut() {
            Some(before) if same(before, &span) => before.bytes += span.bytes,
            _ => merged_spans.push(span),
        }
    }
    merged_spans
}
