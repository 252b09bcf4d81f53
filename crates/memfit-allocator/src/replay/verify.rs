//! Whether the allocator, given the calls of a trace, does what the trace says it did.

use std::collections::BTreeMap;

use memfit_recording::{SegmentBlockState, Snapshot, TraceAction, TraceEvent};

use super::history::History;
use super::pools::Pools;
use super::rewind::{pending, rewind};
use super::script::Script;
use super::{ELSEWHERE, Given, Verification, pool_id};
use crate::{Address, Allocator, BlockState, PoolId, PoolOptions, RestoreError, SegmentView, Stream};

/// After so many new beginnings, the rest is counted as wrong.
const MOST_RESUMED: u64 = 64;

/// Replays one device's trace. Given to the replay are the calls and their order, the addresses of new
/// segments, and when blocks used by other streams became free; everything else is predicted. Where the
/// replay parts from the trace, that is counted, and the replay goes on from the state that the trace
/// implies.
pub fn verify(snapshot: &Snapshot, device: usize, given: &Given) -> Result<Verification, RestoreError> {
    follow(snapshot, device, given, |_, _, _| {})
}

/// Replays one device's trace, and shows the allocator to `watch` after each call, with the place of the next
/// event, and whether the state was worked out anew.
pub(super) fn follow(
    snapshot: &Snapshot,
    device: usize,
    given: &Given,
    mut watch: impl FnMut(&Allocator<Script<'_>>, usize, bool),
) -> Result<Verification, RestoreError> {
    let trace = snapshot.trace(device);
    let pools = Pools::of(snapshot, device);
    let mut replay = Replay::begin(snapshot, device, given, Script::new(trace, given.capacity), &pools)?;
    loop {
        watch(&replay.allocator, replay.allocator.device().cursor, true);
        while replay.step() {
            watch(&replay.allocator, replay.allocator.device().cursor, false);
        }
        let stats = *replay.allocator.stats();
        let ages = std::mem::take(&mut replay.allocator.ages);
        // What went before in the same call is not there to be replayed.
        let in_first_call = replay.opening;
        let mut script = replay.allocator.into_device();
        script.found.stats = stats;
        if !script.diverged {
            return Ok(script.found);
        }
        // Past the call that went another way: to the end of its events, and on from the state that the trace
        // implies.
        script.diverged = false;
        script.found.resumed += u64::from(!in_first_call);
        let give_up = script.found.resumed > MOST_RESUMED;
        let end = if give_up { trace.len() } else { end_of_call(trace, script.cursor) };
        if in_first_call {
            script.take_as_told(end);
        } else {
            // The event where they part is counted already.
            for event in trace.get(script.cursor + 1..end).unwrap_or_default() {
                script.tally(event.action, false);
            }
        }
        script.cursor = end;
        if give_up {
            return Ok(script.found);
        }
        replay = Replay::begin(snapshot, device, given, script, &pools)?;
        replay.allocator.recall_ages(ages);
    }
}

/// Whether an event is one of those that a request brings about which gives back the cache, and an emptied
/// cache.
const fn is_of_release(action: TraceAction) -> bool {
    matches!(action, TraceAction::FreeCompleted | TraceAction::SegmentFree | TraceAction::SegmentUnmap)
}

/// The place behind the events of the call that the event at `from` is part of.
fn end_of_call(trace: &[TraceEvent], from: usize) -> usize {
    let mut rest = trace.iter().skip(from).map(|event| event.action);
    let length = match rest.next() {
        // Segments are got for the request that follows.
        Some(TraceAction::SegmentAlloc | TraceAction::SegmentMap) => {
            let request = rest.position(|action| matches!(action, TraceAction::Alloc | TraceAction::Oom));
            request.map_or(trace.len(), |between| between + 2)
        }
        // They are given back for their own sake.
        Some(TraceAction::SegmentFree | TraceAction::SegmentUnmap) => {
            1 + rest.take_while(|action| is_of_release(*action)).count()
        }
        _ => 1,
    };
    from.saturating_add(length).min(trace.len())
}

struct Replay<'trace> {
    allocator: Allocator<Script<'trace>>,
    snapshot: &'trace Snapshot,
    trace: &'trace [TraceEvent],
    device: usize,
    pools: &'trace Pools<'trace>,
    /// Whether what is replayed may be the end of a call that begins before the trace: there was something
    /// before it, and so far it only tells of what is given back.
    opening: bool,
}

impl<'trace> Replay<'trace> {
    fn begin(
        snapshot: &'trace Snapshot,
        device: usize,
        given: &Given,
        script: Script<'trace>,
        pools: &'trace Pools<'trace>,
    ) -> Result<Self, RestoreError> {
        let rewound = rewind(snapshot, device, given, script.cursor);
        let mut script = script;
        script.quiet = true;
        let begins = script.cursor == 0;
        if begins {
            script.found.uncertain = rewound.uncertain;
        }
        let trace = snapshot.trace(device);
        let history = History::of(snapshot, trace, &rewound.segments, script.cursor);
        let room = given.capacity + given.capacity / 8;
        script.reserved = history.bases().map(|base| (base, base.saturating_add(room))).collect();
        let past = |segment: &SegmentView| history.past_of(segment);
        let mut allocator =
            Allocator::restore(script, given.settings, given.release, &rewound.segments, past)?;
        for address in pending(&rewound.segments) {
            give_back_pending(&mut allocator, address);
        }
        for pool in pools.private() {
            allocator.hold_pool(pool, PoolOptions::default()).unwrap_or_default();
        }
        for pool in &snapshot.pools {
            let pool = pool_id(*pool);
            if pool != PoolId::DEFAULT {
                allocator.hold_pool(pool, PoolOptions::default()).unwrap_or_default();
            }
        }
        allocator.device_mut().quiet = false;
        let opening = begins && !rewound.segments.is_empty();
        Ok(Self { allocator, snapshot, trace, device, pools, opening })
    }

    /// The next call of the trace. Says whether there are more: at the end, and where the replay parts from
    /// the trace, there are none.
    fn step(&mut self) -> bool {
        self.allocator.device_mut().skip_remarks();
        let before = self.allocator.device().cursor;
        let Some(event) = self.allocator.device().next() else {
            self.compare_end();
            return false;
        };
        self.opening &= before.checked_sub(1).is_none_or(|last| is_of_release(self.trace[last].action));
        match event.action {
            TraceAction::FreeRequested => self.free(event),
            TraceAction::FreeCompleted | TraceAction::SegmentFree | TraceAction::SegmentUnmap => {
                let of_request = (self.is_limited() || self.retries()) && self.tries_malloc();
                match event.action {
                    _ if of_request => {}
                    TraceAction::FreeCompleted => {
                        if self.allocator.finish_pending(Address(event.address)).is_err() {
                            self.allocator.device_mut().miss(None);
                        }
                    }
                    _ => {
                        self.let_go_of_pools();
                        self.allocator.empty_cache();
                    }
                }
            }
            TraceAction::Oom => self.fail(event),
            _ => self.malloc(),
        }
        let script = self.allocator.device_mut();
        if script.cursor == before && !script.diverged {
            script.miss(None);
        }
        !script.diverged
    }

    fn free(&mut self, event: &TraceEvent) {
        let script = self.allocator.device();
        let following = self.trace.get(script.cursor + 1);
        let at_once = following
            .is_some_and(|next| next.action == TraceAction::FreeCompleted && next.address == event.address);
        let address = Address(event.address);
        let done = if at_once {
            self.allocator.free(address)
        } else {
            self.allocator.record_stream(address, ELSEWHERE).and_then(|()| self.allocator.free(address))
        };
        if done.is_err() {
            self.allocator.device_mut().miss(None);
        }
    }

    /// Whether a request may give back a part of the cache: then a trace in which segments are given back
    /// before a request is met does not tell what gave them back, the request or `empty_cache()`, until
    /// one of them is tried.
    fn is_limited(&self) -> bool {
        let settings = self.allocator.settings();
        settings.limits_splits() || settings.garbage_collection_threshold > 0.0
    }

    /// Makes the coming request, if that is what these events come of; else leaves all as it is. A private
    /// pool that gives something back may do so for a request of its own, or because nothing holds it any
    /// more: both are tried.
    fn tries_malloc(&mut self) -> bool {
        if self.coming_request().is_none() {
            return false;
        }
        for held in [true, false] {
            let before = self.allocator.clone();
            if !held && !self.let_go_of_pools() {
                return false;
            }
            self.malloc();
            if !self.allocator.device().diverged {
                return true;
            }
            self.allocator = before;
        }
        false
    }

    /// Private pools give back their memory only when nothing holds them any more. Says whether there is such
    /// a pool.
    fn let_go_of_pools(&mut self) -> bool {
        let rest = self.trace.iter().enumerate().skip(self.allocator.device().cursor);
        let run = rest
            .take_while(|(_, event)| is_of_release(event.action))
            .filter(|(_, event)| event.action != TraceAction::FreeCompleted);
        let pools = run.map(|(place, event)| self.pool_of(event, place));
        let gone: Vec<PoolId> = pools.filter(|pool| *pool != PoolId::DEFAULT).collect();
        for pool in &gone {
            while self.allocator.release_pool(*pool).is_ok() {}
        }
        !gone.is_empty()
    }

    /// Whether what becomes free now does so in the midst of a request: one that was neither met from the
    /// cache nor, at first, by the device, so that everything was given back before it was tried again.
    /// The cache is not looked at again then, although what became free may be just what was wanted.
    fn retries(&self) -> bool {
        let rest = &self.trace[self.allocator.device().cursor..];
        let mut rest = rest
            .iter()
            .map(|event| event.action)
            .skip_while(|action| *action == TraceAction::FreeCompleted)
            .peekable();
        let mut released = false;
        while rest
            .next_if(|action| matches!(action, TraceAction::SegmentFree | TraceAction::SegmentUnmap))
            .is_some()
        {
            released = true;
        }
        let tried_again = match rest.next() {
            Some(TraceAction::Oom) => true,
            // Where segments grow by pages, what is left of one may do without any more.
            Some(TraceAction::SegmentAlloc | TraceAction::SegmentMap | TraceAction::Alloc) => released,
            _ => false,
        };
        tried_again
            && self.coming_request().is_some_and(|(request, pool)| {
                !self.allocator.is_cached(pool, request.size, self.stream(request))
            })
    }

    /// A request that failed without a trace of anything tried. During a capture nothing is given back, and a
    /// trace does not tell of captures: what can be said is that the request could not be met from what
    /// was cached. What other streams gave back while it was tried is not looked at again, so after that
    /// even this cannot be said.
    fn fail(&mut self, event: &TraceEvent) {
        let pool = self.pool_of(event, self.allocator.device().cursor);
        let cached = self.allocator.is_cached(pool, event.size, self.stream(event));
        let script = self.allocator.device_mut();
        let before = script.cursor.checked_sub(1).map(|before| self.trace[before].action);
        if cached && before != Some(TraceAction::FreeCompleted) {
            script.miss(None);
        } else {
            script.cursor += 1;
            self.allocator.stats.num_ooms += 1;
        }
    }

    fn malloc(&mut self) {
        let Some((request, pool)) = self.coming_request() else { return };
        let stream = self.stream(request);
        // A request that fails is traced with the size that it was rounded to, which rounds to itself.
        let _ = self.allocator.malloc_in(pool, request.size, stream);
    }

    /// The request that the coming events are about.
    fn coming_request(&self) -> Option<(&'trace TraceEvent, PoolId)> {
        let mut rest = self.trace.iter().enumerate().skip(self.allocator.device().cursor);
        let (place, request) = rest.find(|(_, event)| {
            matches!(event.action, TraceAction::Alloc | TraceAction::Oom | TraceAction::FreeRequested)
        })?;
        let pool = self.pool_of(request, place);
        (request.action != TraceAction::FreeRequested).then_some((request, pool))
    }

    /// The pool of an event: what stands in place of an address where a request failed is none.
    fn pool_of(&self, event: &TraceEvent, place: usize) -> PoolId {
        match event.action {
            TraceAction::Oom => self.pools.named(event).map_or(PoolId::DEFAULT, pool_id),
            _ => pool_id(self.pools.of_event(event, place)),
        }
    }

    fn stream(&self, event: &TraceEvent) -> Stream {
        Stream(self.snapshot.streams[usize::from(event.stream)])
    }

    /// Compares the blocks at the end.
    fn compare_end(&mut self) {
        let mut replayed = BTreeMap::new();
        for segment in self.allocator.segments() {
            for block in segment.blocks {
                replayed.insert(block.address.0, (block.size, block.state));
            }
        }
        let device = self.device;
        let segments = self.snapshot.segments.iter().filter(|segment| segment.device as usize == device);
        let found = &mut self.allocator.device_mut().found;
        for block in segments.flat_map(|segment| self.snapshot.blocks_of(segment)) {
            let state = match block.state {
                SegmentBlockState::Allocated => BlockState::Allocated,
                SegmentBlockState::Pending => BlockState::Pending,
                SegmentBlockState::Inactive => BlockState::Free,
            };
            found.blocks.count(replayed.get(&block.address) == Some(&(block.size, state)));
        }
    }
}

fn give_back_pending(allocator: &mut Allocator<Script<'_>>, address: Address) {
    // The block is there, since it was restored from the same list.
    if allocator.record_stream(address, ELSEWHERE).is_ok() {
        let _ = allocator.free(address);
    }
}
