//! Which pool an event is about. Traces of PyTorch up to 2.11 do not name it; the segments that are there at
//! the end do, and what they say holds for their addresses as far back as the segments go.

use std::collections::BTreeMap;

use memfit_recording::{Segment, Snapshot, TraceAction, TraceEvent};

use super::pool_id;
use crate::PoolId;

/// A private pool's range of addresses.
#[derive(Clone, Copy, Debug)]
struct Range {
    end: u64,
    pool: (u64, u64),
    /// The event from which on it is the pool's: an earlier segment at its address may have been another's.
    since: usize,
}

/// The pools of one device's events.
#[derive(Debug)]
pub(super) struct Pools<'trace> {
    snapshot: &'trace Snapshot,
    /// Of private pools, by where they begin.
    ranges: BTreeMap<u64, Range>,
}

impl<'trace> Pools<'trace> {
    pub(super) fn of(snapshot: &'trace Snapshot, device: usize) -> Self {
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
                // Address space of expandable segments stays one pool's: pages that are mapped anew are no
                // other's.
                if event.action == TraceAction::SegmentAlloc
                    && let Some(range) = ranges.get_mut(&event.address)
                {
                    range.since = place;
                }
            }
        }
        Self { snapshot, ranges }
    }

    /// The pool of the event at a place of the trace, by its address where it does not say.
    pub(super) fn of_event(&self, event: &TraceEvent, place: usize) -> (u64, u64) {
        if let Some(named) = self.named(event) {
            return named;
        }
        let near = self.ranges.range(..=event.address).next_back().map(|(_, range)| range);
        let its = near.filter(|range| event.address < range.end && range.since <= place);
        its.map(|range| range.pool).unwrap_or_default()
    }

    /// The pool that an event names.
    pub(super) fn named(&self, event: &TraceEvent) -> Option<(u64, u64)> {
        event.pool_index().and_then(|pool| self.snapshot.pools.get(pool)).copied()
    }

    /// The private pools that hold something at the end.
    pub(super) fn private(&self) -> impl Iterator<Item = PoolId> {
        self.ranges.values().map(|range| pool_id(range.pool))
    }
}
