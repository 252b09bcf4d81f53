//! Memory pool of each trace event. Traces written before PyTorch 2.12 do not record it. It is derived from
//! the final segments: an event belongs to the pool of the segment at its address, from that segment's
//! allocation on.

use std::collections::BTreeMap;

use memfit_recording::{Segment, Snapshot, TraceAction, TraceEvent};

use super::pool_id;
use crate::PoolId;

/// Address range of a private pool.
#[derive(Clone, Copy, Debug)]
struct Range {
    end: u64,
    pool: (u64, u64),
    /// First event from which the range belongs to the pool; an earlier segment at its address may have been
    /// another pool's.
    since: usize,
}

/// Pools of one device's events.
#[derive(Debug)]
pub(super) struct Pools<'trace> {
    snapshot: &'trace Snapshot,
    /// Ranges of private pools by start address.
    ranges: BTreeMap<u64, Range>,
}

impl<'trace> Pools<'trace> {
    pub(super) fn from_snapshot(snapshot: &'trace Snapshot, device: usize) -> Self {
        let is_private = |segment: &&Segment| {
            segment.device as usize == device && pool_id(segment.pool) != PoolId::DEFAULT
        };
        let mut ranges: BTreeMap<u64, Range> = snapshot
            .segments
            .iter()
            .filter(is_private)
            .map(|segment| {
                let end = segment.address.saturating_add(segment.size);
                (segment.address, Range { end, pool: segment.pool, since: 0 })
            })
            .collect();
        if !ranges.is_empty() {
            for (index, event) in snapshot.trace(device).iter().enumerate() {
                // Only `SegmentAlloc` starts a new owner: pages mapped later into an expandable segment keep
                // its pool.
                if event.action == TraceAction::SegmentAlloc
                    && let Some(range) = ranges.get_mut(&event.address)
                {
                    range.since = index;
                }
            }
        }
        Self { snapshot, ranges }
    }

    /// Pool of the trace's event number `index`, derived from its address if the event does not contain it.
    pub(super) fn pool_of_event(&self, event: &TraceEvent, index: usize) -> (u64, u64) {
        if let Some(named) = self.named(event) {
            return named;
        }
        let candidate = self.ranges.range(..=event.address).next_back().map(|(_, range)| range);
        let owner = candidate.filter(|range| event.address < range.end && range.since <= index);
        owner.map(|range| range.pool).unwrap_or_default()
    }

    /// Pool that an event contains.
    pub(super) fn named(&self, event: &TraceEvent) -> Option<(u64, u64)> {
        event.pool_index().and_then(|pool| self.snapshot.pools.get(pool)).copied()
    }

    /// Private pools that hold memory at the end.
    pub(super) fn private(&self) -> impl Iterator<Item = PoolId> {
        self.ranges.values().map(|range| pool_id(range.pool))
    }
}
