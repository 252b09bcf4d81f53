//! Verification that the allocator reproduces a trace from its calls.

use std::collections::BTreeMap;

use memfit_recording::{SegmentBlockState, Snapshot, TraceAction, TraceEvent};

use super::history::History;
use super::pools::Pools;
use super::rewind::{pending, rewind};
use super::script::Script;
use super::{OTHER_STREAM, ReplayConditions, Verification, pool_id};
use crate::{Address, Allocator, BlockState, PoolId, PoolOptions, RestoreError, SegmentView, Stream};

/// Maximum number of resets of the state; after them, the rest counts as wrong.
const MAX_RESUMES: u64 = 64;

/// Replays one device's trace. The inputs are the calls and their order, the addresses of new segments, and
/// the completion of frees that wait for other streams; everything else is predicted. A deviation is counted,
/// and the replay continues from the state that the trace implies.
pub fn verify(
    snapshot: &Snapshot,
    device: usize,
    given: &ReplayConditions,
) -> Result<Verification, RestoreError> {
    replay_trace(snapshot, device, given, |_, _, _| {})
}

/// Replays one device's trace and calls `watch` after each call with the allocator, the position of the next
/// event, and whether the state was restored.
pub(super) fn replay_trace(
    snapshot: &Snapshot,
    device: usize,
    given: &ReplayConditions,
    mut watch: impl FnMut(&Allocator<Script<'_>>, usize, bool),
) -> Result<Verification, RestoreError> {
    let trace = snapshot.trace(device);
    let pools = Pools::from_snapshot(snapshot, device);
    let mut replay = Replay::begin(snapshot, device, given, Script::new(trace, given.capacity), &pools)?;
    loop {
        watch(&replay.allocator, replay.allocator.device().cursor, true);
        while replay.step() {
            watch(&replay.allocator, replay.allocator.device().cursor, false);
        }
        let stats = *replay.allocator.stats();
        let ages = std::mem::take(&mut replay.allocator.ages);
        // Earlier events of the same call are not in the trace.
        let in_first_call = replay.opening;
        let mut script = replay.allocator.into_device();
        script.found.stats = stats;
        if !script.diverged {
            return Ok(script.found);
        }
        // After a deviating call: skips to the end of its events, and continues from the state that the trace
        // implies.
        script.diverged = false;
        script.found.resumed += u64::from(!in_first_call);
        let give_up = script.found.resumed > MAX_RESUMES;
        let end = if give_up { trace.len() } else { end_of_call(trace, script.cursor) };
        if in_first_call {
            script.accept_unpredicted(end);
        } else {
            // The event of the deviation is counted already.
            for event in trace.get(script.cursor + 1..end).unwrap_or_default() {
                script.tally(event.action, false);
            }
        }
        if give_up {
            return follow_without_replay(snapshot, device, given, script, &pools, watch);
        }
        script.cursor = end;
        replay = Replay::begin(snapshot, device, given, script, &pools)?;
        replay.allocator.recall_ages(ages);
    }
}

/// Number of states that are taken from the rest of a trace that is no longer replayed.
const STATES: usize = 64;

/// Follows the rest of a trace that deviates too often: no call is predicted, and the allocator's state is
/// taken from the trace after each failed request and at regular intervals.
fn follow_without_replay<'trace>(
    snapshot: &'trace Snapshot,
    device: usize,
    given: &ReplayConditions,
    mut script: Script<'trace>,
    pools: &'trace Pools<'trace>,
    mut watch: impl FnMut(&Allocator<Script<'_>>, usize, bool),
) -> Result<Verification, RestoreError> {
    let trace = snapshot.trace(device);
    let rest = script.cursor..trace.len();
    let interval = rest.len().div_ceil(STATES).max(1);
    let mut ends: Vec<usize> = rest.clone().skip(interval).step_by(interval).collect();
    let failed = rest.filter(|place| trace[*place].action == TraceAction::Oom).map(|place| place + 1);
    ends.extend(failed.take(STATES));
    ends.push(trace.len());
    ends.sort_unstable();
    ends.dedup();
    for end in ends {
        script.cursor = end;
        let replay = Replay::begin(snapshot, device, given, script, pools)?;
        watch(&replay.allocator, end, true);
        script = replay.allocator.into_device();
    }
    Ok(script.found)
}

/// Returns `true` for events caused by a request that releases the cache, or by emptying the cache.
const fn is_release(action: TraceAction) -> bool {
    matches!(action, TraceAction::FreeCompleted | TraceAction::SegmentFree | TraceAction::SegmentUnmap)
}

/// Position after the events of the call that the event at `from` belongs to.
fn end_of_call(trace: &[TraceEvent], from: usize) -> usize {
    let mut rest = trace.iter().skip(from).map(|event| event.action);
    let length = match rest.next() {
        // Segments are allocated for the request that follows.
        Some(TraceAction::SegmentAlloc | TraceAction::SegmentMap) => {
            let request = rest.position(|action| matches!(action, TraceAction::Alloc | TraceAction::Oom));
            request.map_or(trace.len(), |between| between + 2)
        }
        // These segments are released without a request.
        Some(TraceAction::SegmentFree | TraceAction::SegmentUnmap) => {
            1 + rest.take_while(|action| is_release(*action)).count()
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
    /// `true` while the replayed events may belong to a call that began before the trace: memory was in use
    /// before it, and only releases have been seen.
    opening: bool,
}

impl<'trace> Replay<'trace> {
    fn begin(
        snapshot: &'trace Snapshot,
        device: usize,
        given: &ReplayConditions,
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
        let history = History::from_snapshot(snapshot, trace, &rewound.segments, script.cursor);
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

    /// Replays the next call. Returns `false` at the end, and after a deviation.
    fn step(&mut self) -> bool {
        self.allocator.device_mut().skip_annotations();
        let before = self.allocator.device().cursor;
        let Some(event) = self.allocator.device().next() else {
            self.compare_end();
            return false;
        };
        self.opening &= before.checked_sub(1).is_none_or(|last| is_release(self.trace[last].action));
        match event.action {
            TraceAction::FreeRequested => self.free(event),
            TraceAction::FreeCompleted | TraceAction::SegmentFree | TraceAction::SegmentUnmap => {
                let of_request = (self.is_limited() || self.retries()) && self.try_malloc();
                match event.action {
                    _ if of_request => {}
                    TraceAction::FreeCompleted => {
                        if self.allocator.finish_pending(Address(event.address)).is_err() {
                            self.allocator.device_mut().miss(None);
                        }
                    }
                    _ => {
                        self.release_unused_pools();
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
            self.allocator.record_stream(address, OTHER_STREAM).and_then(|()| self.allocator.free(address))
        };
        if done.is_err() {
            self.allocator.device_mut().miss(None);
        }
    }

    /// Returns `true` if a request may release a part of the cache. Released segments before a request then
    /// belong either to the request or to `empty_cache()`, which only a trial decides.
    fn is_limited(&self) -> bool {
        let settings = self.allocator.settings();
        settings.limits_splits() || settings.garbage_collection_threshold > 0.0
    }

    /// Makes the coming request if it causes these events; otherwise changes nothing. A private pool releases
    /// segments for a request of its own, or because it has no users left: both are tried.
    fn try_malloc(&mut self) -> bool {
        if self.coming_request().is_none() {
            return false;
        }
        for held in [true, false] {
            let before = self.allocator.clone();
            if !held && !self.release_unused_pools() {
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

    /// Removes the users of private pools, which release their memory only without users. Returns `true` if
    /// there is such a pool.
    fn release_unused_pools(&mut self) -> bool {
        let rest = self.trace.iter().enumerate().skip(self.allocator.device().cursor);
        let run = rest
            .take_while(|(_, event)| is_release(event.action))
            .filter(|(_, event)| event.action != TraceAction::FreeCompleted);
        let pools = run.map(|(place, event)| self.pool_of(event, place));
        let gone: Vec<PoolId> = pools.filter(|pool| *pool != PoolId::DEFAULT).collect();
        for pool in &gone {
            while self.allocator.release_pool(*pool).is_ok() {}
        }
        !gone.is_empty()
    }

    /// Returns `true` if the blocks that become free now do so during a request that was served neither from
    /// the cache nor, at first, by the device, so that everything was released before a retry. The retry does
    /// not search the cache again, even if the freed blocks fit.
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
            // With expandable segments, a remainder may suffice without further memory.
            Some(TraceAction::SegmentAlloc | TraceAction::SegmentMap | TraceAction::Alloc) => released,
            _ => false,
        };
        tried_again
            && self.coming_request().is_some_and(|(request, pool)| {
                !self.allocator.is_cached(pool, request.size, self.stream(request))
            })
    }

    /// Handles a failed request without a trace of any attempt. During a capture nothing is released, and a
    /// trace does not contain captures: the only check is that the request could not be served from the
    /// cache. After frees of other streams completed during the request, even that cannot be checked.
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
        // A failed request is traced with its rounded size, which rounds to itself.
        let _ = self.allocator.malloc_in(pool, request.size, stream);
    }

    /// Request that the coming events belong to.
    fn coming_request(&self) -> Option<(&'trace TraceEvent, PoolId)> {
        let mut rest = self.trace.iter().enumerate().skip(self.allocator.device().cursor);
        let (place, request) = rest.find(|(_, event)| {
            matches!(event.action, TraceAction::Alloc | TraceAction::Oom | TraceAction::FreeRequested)
        })?;
        let pool = self.pool_of(request, place);
        (request.action != TraceAction::FreeRequested).then_some((request, pool))
    }

    /// Pool of an event. The address field of a failed request is not an address.
    fn pool_of(&self, event: &TraceEvent, place: usize) -> PoolId {
        match event.action {
            TraceAction::Oom => self.pools.named(event).map_or(PoolId::DEFAULT, pool_id),
            _ => pool_id(self.pools.pool_of_event(event, place)),
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
    // The block exists, since it was restored from the same list.
    if allocator.record_stream(address, OTHER_STREAM).is_ok() {
        let _ = allocator.free(address);
    }
}
