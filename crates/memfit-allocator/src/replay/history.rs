//! Facts about segments from the whole trace: when they were allocated, and where the address space of
//! expandable ones begins.

use std::collections::BTreeMap;

use memfit_recording::{Snapshot, TraceAction, TraceEvent};

use super::pool_id;
use crate::rounding::SMALL_LIMIT;
use crate::{Address, Past, PoolId, SegmentView, Stream};

/// Class of requests that an expandable segment serves.
type RequestClass = (Stream, bool, PoolId);

/// Maximum distance in bytes within an expandable segment (64 GiB); addresses further away belong to another
/// one.
const MAX_DISTANCE: u64 = 1 << 36;

/// History of the segments that exist right before an event of a trace.
pub(super) struct History {
    /// Allocation time of each segment, if it is in the trace.
    allocated_at: BTreeMap<u64, u64>,
    /// Lowest address at which each expandable segment ever has memory.
    lowest: BTreeMap<RequestClass, u64>,
}

impl History {
    pub(super) fn from_snapshot(
        snapshot: &Snapshot,
        trace: &[TraceEvent],
        segments: &[SegmentView],
        at: usize,
    ) -> Self {
        let at = at.min(trace.len());
        Self { allocated_at: allocation_times(&trace[..at]), lowest: lowest(snapshot, trace, segments, at) }
    }

    pub(super) fn past_of(&self, segment: &SegmentView) -> Past {
        Past {
            lowest: self.lowest.get(&served(segment)).copied().map(Address),
            allocated_at: self.allocated_at.get(&segment.address.0).copied(),
        }
    }

    /// Start addresses of expandable segments.
    pub(super) fn bases(&self) -> impl Iterator<Item = u64> {
        self.lowest.values().copied()
    }
}

const fn served(segment: &SegmentView) -> RequestClass {
    (segment.stream, segment.small, segment.pool)
}

/// Allocation time of each segment that exists after these events, as the event's index.
fn allocation_times(trace: &[TraceEvent]) -> BTreeMap<u64, u64> {
    let mut times = BTreeMap::new();
    for (index, event) in (0..).zip(trace) {
        match event.action {
            TraceAction::SegmentAlloc => {
                times.insert(event.address, index);
            }
            TraceAction::SegmentFree => {
                times.remove(&event.address);
            }
            _ => {}
        }
    }
    times
}

fn lowest(
    snapshot: &Snapshot,
    trace: &[TraceEvent],
    segments: &[SegmentView],
    at: usize,
) -> BTreeMap<RequestClass, u64> {
    let mut grown: BTreeMap<RequestClass, ExpandableSegment> = BTreeMap::new();
    for segment in segments.iter().filter(|segment| segment.expandable) {
        let grown = grown.entry(served(segment)).or_insert(ExpandableSegment {
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
    let later = lowest_addresses(&grown, changes[next..].iter().copied());
    // Played backwards, mapped ranges are unmapped.
    let earlier = changes[..next].iter().rev().map(|change| Change { maps: !change.maps, ..*change });
    let earlier = lowest_addresses(&grown, earlier);
    let lowest = |served: &RequestClass| later[served].lowest.min(earlier[served].lowest);
    grown.keys().map(|served| (*served, lowest(served))).collect()
}

/// Expandable segment.
#[derive(Clone, Copy)]
struct ExpandableSegment {
    lowest: u64,
    mapped: u64,
    /// `true` once it has no memory left: its address space is freed, and the next segment gets another.
    gone: bool,
}

/// Range that was mapped or unmapped.
#[derive(Clone, Copy)]
struct Change {
    place: usize,
    address: u64,
    size: u64,
    stream: Stream,
    pool: Option<PoolId>,
    /// `true` if it was mapped for a small request; `None` if no request follows.
    small: Option<bool>,
    maps: bool,
}

/// Collects changes. Ranges are mapped for the request that follows.
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

/// Lowest addresses of expandable segments after a sequence of changes.
fn lowest_addresses(
    grown: &BTreeMap<RequestClass, ExpandableSegment>,
    changes: impl Iterator<Item = Change>,
) -> BTreeMap<RequestClass, ExpandableSegment> {
    let mut grown = grown.clone();
    for change in changes {
        let is_its = |(stream, small, pool): &RequestClass| {
            *stream == change.stream
                && change.pool.is_none_or(|known| known == *pool)
                && change.small.is_none_or(|known| known == *small)
        };
        let all = grown.iter_mut().filter(|(served, grown)| !grown.gone && is_its(served));
        // The segment that contains the range begins below it; otherwise it is the one that turns out to
        // begin further down.
        let near = |segment: &ExpandableSegment| {
            (segment.lowest > change.address, segment.lowest.abs_diff(change.address))
        };
        let Some((_, segment)) = all.min_by_key(|(_, segment)| near(segment)) else { continue };
        if change.address < segment.lowest
            && segment.lowest - change.address < MAX_DISTANCE
            && change.small.is_some()
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
