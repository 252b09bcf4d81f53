//! The same calls under other settings, on another card, or without some of them.

use std::collections::HashMap;

use memfit_recording::{Snapshot, TraceAction, TraceEvent};

use super::rewind::rewind;
use super::{ELSEWHERE, Given, pool_id};
use crate::{
    Address, AllocationError, Allocator, BlockState, OutOfMemory, PoolId, PoolOptions, SimulatedDevice,
    Stats, Stream,
};

/// What would have come of a trace's calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhatIf {
    /// The statistics at the end, peaks among them.
    pub stats: Stats,
    /// The event at which memory would have run out, and the figures of that moment. Calls after it were not made.
    pub died: Option<(usize, OutOfMemory)>,
    /// The bytes of blocks that were alive before the trace began. Where they lay follows from calls that were not
    /// recorded, so they are placed one after another: what is reserved for them is the least that it can be.
    pub before: u64,
}

/// Makes a device's calls once more, as `given`, with addresses of their own. `skip` says of a request, by its place in the
/// trace, whether it is left out.
pub fn what_if(
    snapshot: &Snapshot,
    device: usize,
    recorded: &Given,
    given: &Given,
    skip: impl Fn(usize) -> bool,
) -> WhatIf {
    let mut simulated = SimulatedDevice::new(given.capacity);
    simulated.hold_events();
    let mut caller = Caller {
        snapshot,
        trace: snapshot.trace(device),
        allocator: Allocator::new(simulated, given.settings, given.release),
        places: HashMap::new(),
        waiting: HashMap::new(),
    };
    for pool in snapshot.pools.iter().copied().map(pool_id).filter(|pool| *pool != PoolId::DEFAULT) {
        caller.allocator.hold_pool(pool, PoolOptions::default()).unwrap_or_default();
    }
    let (before, mut died) = caller.begin(device, recorded);
    if died.is_none() {
        for (place, event) in caller.trace.iter().enumerate() {
            died = caller.event(place, event, &skip).map(|error| (place, error));
            if died.is_some() {
                break;
            }
        }
    }
    WhatIf { stats: *caller.allocator.stats(), died, before }
}

struct Caller<'snapshot> {
    snapshot: &'snapshot Snapshot,
    trace: &'snapshot [TraceEvent],
    allocator: Allocator<SimulatedDevice>,
    /// Where the trace's blocks are here.
    places: HashMap<u64, Address>,
    /// Where those are that were given back and are not free.
    waiting: HashMap<u64, Address>,
}

impl Caller<'_> {
    /// Blocks from before the trace began.
    fn begin(&mut self, device: usize, recorded: &Given) -> (u64, Option<(usize, OutOfMemory)>) {
        let mut before = 0;
        for segment in rewind(self.snapshot, device, recorded, 0).segments {
            if segment.pool != PoolId::DEFAULT {
                self.allocator.hold_pool(segment.pool, PoolOptions::default()).unwrap_or_default();
            }
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Free) {
                before += block.size;
                match self.allocator.malloc_in(segment.pool, block.requested.max(1), segment.stream) {
                    Ok(address) if block.state == BlockState::Pending => {
                        self.give_back(address);
                        self.waiting.insert(block.address.0, address);
                    }
                    Ok(address) => {
                        self.places.insert(block.address.0, address);
                    }
                    Err(AllocationError::OutOfMemory(error)) => return (before, Some((0, error))),
                    Err(_) => {}
                }
            }
        }
        (before, None)
    }

    fn event(
        &mut self,
        place: usize,
        event: &TraceEvent,
        skip: impl Fn(usize) -> bool,
    ) -> Option<OutOfMemory> {
        match event.action {
            TraceAction::Alloc | TraceAction::Oom if skip(place) => None,
            TraceAction::Alloc | TraceAction::Oom => self.malloc(event),
            TraceAction::FreeRequested => {
                if let Some(address) = self.places.remove(&event.address) {
                    let next = self.trace.get(place + 1);
                    let at_once = next.is_some_and(|next| {
                        next.action == TraceAction::FreeCompleted && next.address == event.address
                    });
                    if at_once {
                        self.allocator.free(address).unwrap_or_default();
                    } else {
                        self.give_back(address);
                        self.waiting.insert(event.address, address);
                    }
                }
                None
            }
            TraceAction::FreeCompleted => {
                if let Some(address) = self.waiting.remove(&event.address) {
                    // It may be free already: a request that was tried again waited for it.
                    self.allocator.finish_pending(address).unwrap_or_default();
                }
                None
            }
            TraceAction::SegmentFree | TraceAction::SegmentUnmap => {
                if self.empties_cache(place) {
                    self.allocator.empty_cache();
                }
                None
            }
            _ => None,
        }
    }

    fn malloc(&mut self, event: &TraceEvent) -> Option<OutOfMemory> {
        let pool = event.pool_index().map_or(PoolId::DEFAULT, |pool| pool_id(self.snapshot.pools[pool]));
        let stream = Stream(self.snapshot.streams[usize::from(event.stream)]);
        match self.allocator.malloc_in(pool, event.size, stream) {
            // Where there had been no room, nothing is known of what would have come after.
            Ok(address) if event.action == TraceAction::Oom => {
                self.allocator.free(address).unwrap_or_default();
                None
            }
            Ok(address) => {
                self.places.insert(event.address, address);
                None
            }
            Err(AllocationError::OutOfMemory(error)) => Some(error),
            Err(_) => None,
        }
    }

    fn give_back(&mut self, address: Address) {
        if self.allocator.record_stream(address, ELSEWHERE).is_ok() {
            self.allocator.free(address).unwrap_or_default();
        }
    }

    /// Whether the program emptied the cache here: the last of a run of segments that are given back, with no segment got
    /// behind it. With one behind it, a request had failed at first, and here it may not.
    fn empties_cache(&self, place: usize) -> bool {
        let next = self.trace.get(place + 1).map(|event| event.action);
        !matches!(
            next,
            Some(
                TraceAction::SegmentFree
                    | TraceAction::SegmentUnmap
                    | TraceAction::SegmentAlloc
                    | TraceAction::SegmentMap
                    | TraceAction::Oom
            )
        )
    }
}
