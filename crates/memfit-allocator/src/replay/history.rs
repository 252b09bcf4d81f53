//! What a trace tells of the past and the future of segments, beside the state that was worked out of it:
//! when they were got, and where the address space of expandable ones begins.

use std::collections::BTreeMap;

use memfit_recording::{Snapshot, TraceAction, TraceEvent};

use super::pool_id;
use crate::rounding::SMALL_LIMIT;
use crate::{Address, Past, PoolId, SegmentView, Stream};

/// Which requests an expandable segment serves.
type Served = (Stream, bool, PoolId);

/// Address space further away is that of another expandable segment.
const FAR: u64 = 1 << 36;

/// What a trace tells of the segments that are there right before one of its events.
pub(super) struct History {
    /// When each segment was got, as far as the trace tells of it.
    got: BTreeMap<u64, u64>,
    /// The lowest address that each expandable segment ever has memory at.
    lowest: BTreeMap<Served, u64>,
}

impl History {
    pub(super) fn of(snapshot: &Snapshot, trace: &[TraceEvent], segments: &[SegmentView], at: usize) -> Self {
        let at = at.min(trace.len());
        Self { got: got_in(&trace[..at]), lowest: lowest(snapshot, trace, segments, at) }
    }

    pub(super) fn past_of(&self, segment: &SegmentView) -> Past {
        Past {
            lowest: self.lowest.get(&served(segment)).copied().map(Address),
            got: self.got.get(&segment.address.0).copied(),
        }
    }

    /// Where expandable segments begin.
    pub(super) fn bases(&self) -> impl Iterator<Item = u64> {
        self.lowest.values().copied()
    }
}

const fn served(segment: &SegmentView) -> Served {
    (segment.stream, segment.small, segment.pool)
}

fn got_in(trace: &[TraceEvent]) -> BTreeMap<u64, u64> {
    let mut got = BTreeMap::new();
    for (place, event) in (0..).zip(trace) {
        match event.action {
            TraceAction::SegmentAlloc => {
                got.insert(event.address, place);
            }
            TraceAction::SegmentFree => {
                got.remove(&event.address);
            }
            _ => {}
        }
    }
    got
}

fn lowest(
    snapshot: &Snapshot,
    trace: &[TraceEvent],
    segments: &[SegmentView],
    at: usize,
) -> BTreeMap<Served, u64> {
    let mut grown: BTreeMap<Served, Grown> = BTreeMap::new();
    for segment in segments.iter().filter(|segment| segment.expandable) {
        let grown = grown.entry(served(segment)).or_insert(Grown {
            lowest: segment.address.0,
            mapped: 0,
            gone: false,
        });
        grown.lowest = grown.lowest.min(segment.address.0);
        grown.mapped += segment.size;
    }
    if grown.is_empty() {
        return BTreeMap::new();
    }
    let changes = changes(snapshot, trace);
    let next = changes.partition_point(|change| change.place < at);
    let later = follow(&grown, changes[next..].iter().copied());
    // Backwards, what was mapped is unmapped.
    let earlier = changes[..next].iter().rev().map(|change| Change { maps: !change.maps, ..*change });
    let earlier = follow(&grown, earlier);
    let lowest = |served: &Served| later[served].lowest.min(earlier[served].lowest);
    grown.keys().map(|served| (*served, lowest(served))).collect()
}

/// An expandable segment.
#[derive(Clone, Copy)]
struct Grown {
    lowest: u64,
    mapped: u64,
    /// Once it has no memory left, its address space is given up: the next one has another.
    gone: bool,
}

/// A range that was mapped or unmapped.
#[derive(Clone, Copy)]
struct Change {
    place: usize,
    address: u64,
    size: u64,
    stream: Stream,
    pool: Option<PoolId>,
    /// Whether it was for a small request, where one follows.
    small: Option<bool>,
    maps: bool,
}

/// Ranges are mapped for the request that follows.
fn changes(snapshot: &Snapshot, trace: &[TraceEvent]) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut small = None;
    for (place, event) in trace.iter().enumerate().rev() {
        match event.action {
            TraceAction::Alloc | TraceAction::Oom => small = Some(event.size <= SMALL_LIMIT),
            TraceAction::SegmentMap | TraceAction::SegmentUnmap => {
                let maps = event.action == TraceAction::SegmentMap;
                changes.push(Change {
                    place,
                    address: event.address,
                    size: event.size,
                    stream: Stream(snapshot.streams[usize::from(event.stream)]),
                    pool: event.pool_index().map(|pool| pool_id(snapshot.pools[pool])),
                    small: small.filter(|_| maps),
                    maps,
                });
            }
            _ => {}
        }
    }
    changes.reverse();
    changes
}

/// How far down expandable segments reach in the course of changes to them.
fn follow(grown: &BTreeMap<Served, Grown>, changes: impl Iterator<Item = Change>) -> BTreeMap<Served, Grown> {
    let mut grown = grown.clone();
    for change in changes {
        let is_its = |(stream, small, pool): &Served| {
            *stream == change.stream
                && change.pool.is_none_or(|known| known == *pool)
                && change.small.is_none_or(|known| known == *small)
        };
        let all = grown.iter_mut().filter(|(served, grown)| !grown.gone && is_its(served));
        // The one that it lies in begins below it; else it is the one that turns out to begin further down.
        let near =
            |segment: &Grown| (segment.lowest > change.address, segment.lowest.abs_diff(change.address));
        let Some((_, segment)) = all.min_by_key(|(_, segment)| near(segment)) else { continue };
        if change.address < segment.lowest && segment.lowest - change.address < FAR && change.small.is_some()
        {
            segment.lowest = change.address;
        }
        if change.maps {
            segment.mapped = segment.mapped.saturating_add(change.size);
        } else {
            segment.mapped = segment.mapped.saturating_sub(change.size);
            segment.gone = segment.mapped == 0;
        }
    }
    grown
}
