//! Pools of events. Traces up to PyTorch 2.11 do not contain them; the segments at the end do, which
//! determines the pool of their addresses since their allocation.

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
            for (place, event) in snapshot.trace(device).iter().enumerate() {
                // The address space of an expandable segment stays with one pool, also for pages mapped
                // later.
                if event.action == TraceAction::SegmentAlloc
                    && let Some(range) = ranges.get_mut(&event.address)
                {
                    range.since = place;
                }
            }
        }
        Self { snapshot, ranges }
    }

    /// Pool of an event at a position of the trace, derived from its address if the event does not contain
    /// it.
    pub(super) fn pool_of_event(&self, event: &TraceEvent, place: usize) -> (u64, u64) {
        if let Some(named) = self.named(event) {
            return named;
        }
        let near = self.ranges.range(..=event.address).next_back().map(|(_, range)| range);
        let its = near.filter(|range| event.address < range.end && range.since <= place);
        its.map(|range| range.pool).unwrap_or_default()
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
