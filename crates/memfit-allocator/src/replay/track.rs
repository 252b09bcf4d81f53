//! Conversion of a snapshot to a recording. The trace contains requests; the replay yields the blocks.

use std::collections::{BTreeMap, HashMap, HashSet};

use memfit_recording::{
    Annotation, Block, MomentKind, NEVER, Origin, OriginKind, PoolRef, RangeSource, Recording, Refusal,
    Snapshot, Span, StackId, StreamRef, Totals, TraceAction, TraceEvent, Track, Unknown,
};
use memfit_vocabulary::Phase;

use super::pools::Pools;
use super::verify::replay_trace;
use super::{ReplayConditions, Verification};
use crate::rounding::round_size;
use crate::{Address, Allocator, BlockState, Device, RestoreError};

/// Track of a device of a snapshot.
#[derive(Clone, Debug)]
pub struct VerifiedTrack {
    /// Events.
    pub track: Track,
    /// Agreement of the replay with the trace.
    pub verification: Verification,
}

/// Recording of all devices of a snapshot.
#[derive(Clone, Debug)]
pub struct VerifiedRecording {
    /// Recording with one track for each device.
    pub recording: Recording,
    /// Agreement of the replay with the trace, for each track.
    pub verifications: Vec<Verification>,
}

/// Builds a recording of all devices of a snapshot.
pub fn recording(snapshot: &Snapshot, given: &ReplayConditions) -> Result<VerifiedRecording, RestoreError> {
    let origin = Origin { kind: OriginKind::Snapshot, ..Origin::default() };
    let recording = Recording { origin, ..Recording::default() };
    let mut recorded = VerifiedRecording { recording, verifications: Vec::new() };
    for device in snapshot.devices() {
        let VerifiedTrack { track, verification } = track(snapshot, device, given)?;
        recorded.recording.tracks.push(track);
        recorded.verifications.push(verification);
    }
    Ok(recorded)
}

/// Builds the track of one device. Segments and blocks from before the trace are at its beginning.
pub fn track(
    snapshot: &Snapshot,
    device: usize,
    given: &ReplayConditions,
) -> Result<VerifiedTrack, RestoreError> {
    let mut empty = Track::default();
    empty.texts = snapshot.texts.clone();
    empty.stacks = snapshot.stacks.clone();
    empty.settings.clone_from(&snapshot.settings);
    let mut tracker = Tracker {
        snapshot,
        given,
        trace: snapshot.trace(device),
        pools: Pools::from_snapshot(snapshot, device),
        device: device as u8,
        track: empty,
        live: HashMap::new(),
        pending: HashMap::new(),
        spans: BTreeMap::new(),
        done: None,
        remarks: Annotations::from_snapshot(snapshot, device),
        open: Vec::new(),
        steps: 0,
        phase: Phase::Other,
        before: (0, 0),
    };
    let verification = replay_trace(snapshot, device, given, |allocator, next, anew| {
        tracker.follow(allocator, next);
        if anew {
            tracker.take_sizes(allocator);
        }
    })?;
    let mut track = tracker.finish(&verification);
    track.shrink();
    Ok(VerifiedTrack { track, verification })
}

/// Annotations by time.
struct Annotations {
    remarks: Vec<Annotation>,
    next: usize,
}

impl Annotations {
    fn from_snapshot(snapshot: &Snapshot, device: usize) -> Self {
        let named = |annotation: &&Annotation| annotation.device.is_none_or(|named| named as usize == device);
        let mut remarks: Vec<Annotation> = snapshot.annotations.iter().filter(named).copied().collect();
        remarks.sort_by_key(|annotation| annotation.time_us);
        Self { remarks, next: 0 }
    }

    fn until(&mut self, time: u64) -> Option<Annotation> {
        let annotation = *self.remarks.get(self.next).filter(|annotation| annotation.time_us <= time)?;
        self.next += 1;
        Some(annotation)
    }
}

struct Tracker<'snapshot> {
    snapshot: &'snapshot Snapshot,
    given: &'snapshot ReplayConditions,
    trace: &'snapshot [TraceEvent],
    pools: Pools<'snapshot>,
    device: u8,
    track: Track,
    /// Live blocks by address.
    live: HashMap<u64, u32>,
    /// Freed blocks that wait for other streams, by address.
    pending: HashMap<u64, u32>,
    /// Live spans by device and address.
    spans: BTreeMap<(u8, u64), u32>,
    /// Number of events that are in the track.
    done: Option<usize>,
    remarks: Annotations,
    /// Open ranges, the innermost last.
    open: Vec<u32>,
    steps: u32,
    phase: Phase,
    /// Number and bytes of blocks in use before the trace began.
    before: (u64, u64),
}

impl Tracker<'_> {
    fn follow<D: Device>(&mut self, allocator: &Allocator<D>, next: usize) {
        let done = self.done.unwrap_or_else(|| {
            self.begin(allocator);
            0
        });
        for (place, event) in (done..).zip(&self.trace[done..next]) {
            self.apply_annotations(event.time_us);
            self.event(event, place, allocator);
        }
        self.done = Some(next);
    }

    /// Takes over the block sizes of a restored state, since earlier replayed sizes may have been wrong.
    fn take_sizes<D: Device>(&mut self, allocator: &Allocator<D>) {
        let blocks = allocator.segments().into_iter().flat_map(|segment| segment.blocks);
        for block in blocks.filter(|block| block.state != BlockState::Free) {
            let address = block.address.0;
            let index = self.live.get(&address).or_else(|| self.pending.get(&address)).copied();
            let differs =
                |index: &u32| self.track.block(*index).is_some_and(|known| known.bytes != block.size);
            if let Some(index) = index.filter(differs) {
                self.track.set_bytes(index, block.size);
            }
        }
    }

    fn finish(mut self, verification: &Verification) -> Track {
        self.apply_annotations(u64::MAX);
        let unknown = &mut self.track.unknown;
        if let (blocks @ 1.., bytes) = self.before {
            unknown.push(Unknown::Before { blocks, bytes });
        }
        if verification.uncertain > 0 {
            unknown.push(Unknown::Sizes { blocks: verification.uncertain });
        }
        if verification.resumed > 0 {
            unknown.push(Unknown::Resumed { times: verification.resumed });
        }
        if self.track.stacks.is_empty() {
            unknown.push(Unknown::Stacks);
        }
        if self.trace.iter().all(|event| event.time_us == 0) {
            unknown.push(Unknown::Times);
        }
        if self.steps == 0 {
            unknown.push(Unknown::Steps);
        }
        unknown.push(Unknown::Modules);
        self.track
    }

    /// Adds the segments and blocks of the initial state.
    fn begin<D: Device>(&mut self, allocator: &Allocator<D>) {
        let device = usize::from(self.device);
        let known = self.snapshot.segments.iter().filter(|segment| segment.device as usize == device);
        let known: HashMap<u64, StackId> = known
            .flat_map(|segment| self.snapshot.blocks_of(segment))
            .map(|block| (block.address, block.stack))
            .collect();
        let reused = self.first_uses();
        let time_us = self.trace.first().map(|event| event.time_us).filter(|time| *time != 0);
        let mut totals = Totals { time_us, ..Totals::default() };
        let segments = allocator.segments();
        for segment in &segments {
            totals.reserved += segment.size;
            let span = Span {
                address: segment.address.0,
                bytes: segment.size,
                stream: self.track.stream(segment.stream.0),
                pool: self.track.pool((segment.pool.0, segment.pool.1)),
                small: Some(segment.small),
                expandable: segment.expandable,
                ..self.span()
            };
            let index = self.track.reserve(span, StackId::NONE, totals);
            self.spans.insert((self.device, span.address), index);
        }
        for segment in &segments {
            let stream = self.track.stream(segment.stream.0);
            let pool = self.track.pool((segment.pool.0, segment.pool.1));
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Free) {
                let address = block.address.0;
                totals.allocated += block.size;
                self.before = (self.before.0 + 1, self.before.1 + block.size);
                // A block's stack is known from the end, unless its address was reused in between.
                let stack = known.get(&address).filter(|_| !reused.contains(&address));
                let handed_out = Block {
                    address,
                    bytes: block.size,
                    requested: Some(block.requested.min(block.size)).filter(|requested| *requested > 0),
                    device: self.device,
                    stack: stack.copied().unwrap_or_default(),
                    stream,
                    pool,
                    ..Block::default()
                };
                self.hand_out(&handed_out, totals);
            }
        }
        let pending = segments.iter().flat_map(|segment| &segment.blocks);
        for block in pending.filter(|block| block.state == BlockState::Pending) {
            totals.allocated -= block.size;
            self.take_back(block.address.0, StackId::NONE, totals);
        }
    }

    const fn span(&self) -> Span {
        Span {
            address: 0,
            bytes: 0,
            born: 0,
            freed: NEVER,
            stream: StreamRef(0),
            pool: PoolRef(0),
            device: self.device,
            small: None,
            expandable: false,
        }
    }

    /// Addresses that the trace allocates.
    fn first_uses(&self) -> HashSet<u64> {
        let allocs = self.trace.iter().filter(|event| event.action == TraceAction::Alloc);
        allocs.map(|event| event.address).collect()
    }

    /// Adds ranges, phases and steps from annotations. `torch.optim` announces each optimizer step with a
    /// name like `Optimizer.step#AdamW.step`.
    fn apply_annotations(&mut self, time: u64) {
        while let Some(annotation) = self.remarks.until(time) {
            let time_us = Some(annotation.time_us).filter(|time| *time != 0);
            let of_optimizer = self.snapshot.texts.get(annotation.name).starts_with("Optimizer.step");
            if annotation.begins {
                let range = self.track.begin_range(annotation.name, RangeSource::Annotation, 0, time_us);
                self.open.push(range);
            } else {
                let same = |range: &u32| self.track.ranges[*range as usize].name == annotation.name;
                let place = self.open.iter().rposition(same);
                if let Some(place) = place {
                    let range = self.open.remove(place);
                    self.track.end_range(range, time_us);
                }
            }
            if of_optimizer {
                self.phase = if annotation.begins { Phase::Optimizer } else { Phase::Other };
                let totals = Totals { time_us, ..Totals::default() };
                self.track.add_moment(MomentKind::Phase(self.phase), self.device, StackId::NONE, totals);
                if !annotation.begins {
                    self.steps += 1;
                    self.track.add_moment(MomentKind::Step(self.steps), self.device, StackId::NONE, totals);
                }
            }
        }
    }

    fn event<D: Device>(&mut self, event: &TraceEvent, place: usize, allocator: &Allocator<D>) {
        let stats = allocator.stats();
        let totals = Totals {
            allocated: stats.allocated_bytes.all.current.max(0) as u64,
            reserved: stats.reserved_bytes.all.current.max(0) as u64,
            time_us: Some(event.time_us).filter(|time| *time != 0),
        };
        match event.action {
            TraceAction::Alloc => {
                let size = allocator.size_of(Address(event.address));
                let size = size.unwrap_or_else(|| round_size(event.size.min(1 << 60), &self.given.settings));
                let block = Block {
                    address: event.address,
                    bytes: size.max(event.size),
                    requested: Some(event.size),
                    module: event.metadata,
                    device: self.device,
                    stack: event.stack,
                    stream: self.stream(event),
                    pool: self.pool(event, place),
                    phase: self.phase,
                    noted: event.category,
                    ..Block::default()
                };
                self.hand_out(&block, totals);
            }
            TraceAction::FreeRequested => self.take_back(event.address, event.stack, totals),
            TraceAction::FreeCompleted => {
                if let Some(index) = self.pending.remove(&event.address) {
                    self.track.complete(index, self.device, totals);
                }
            }
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => {
                let span = Span {
                    address: event.address,
                    bytes: event.size,
                    stream: self.stream(event),
                    pool: self.pool(event, place),
                    expandable: event.action == TraceAction::SegmentMap,
                    ..self.span()
                };
                let index = self.track.reserve(span, event.stack, totals);
                self.spans.insert((self.device, event.address), index);
            }
            TraceAction::SegmentFree => {
                if let Some(index) = self.spans.remove(&(self.device, event.address)) {
                    self.track.release(index, self.device, event.stack, totals);
                }
            }
            TraceAction::SegmentUnmap => self.unmap(event, place, totals),
            TraceAction::Oom => {
                // The address field holds the free memory of the device.
                let oom =
                    self.track.add_moment(MomentKind::Oom(event.size), self.device, event.stack, totals);
                let named = self.pools.named(event).unwrap_or_default();
                let pool = self.track.pool(named);
                let refusal = Refusal { left: event.address, stream: self.stream(event), pool };
                self.track.refusals.insert(oom, refusal);
            }
            TraceAction::Snapshot => {
                self.track.add_moment(MomentKind::Snapshot, self.device, event.stack, totals);
            }
            TraceAction::Annotate => {
                if let Some(index) = self.live.get(&event.address) {
                    self.track.set_owner(*index, event.metadata);
                }
            }
            _ => {}
        }
    }

    fn stream(&mut self, event: &TraceEvent) -> StreamRef {
        let handle = self.snapshot.streams.get(usize::from(event.stream)).copied().unwrap_or(0);
        self.track.stream(handle)
    }

    fn pool(&mut self, event: &TraceEvent, place: usize) -> PoolRef {
        self.track.pool(self.pools.pool_of_event(event, place))
    }

    fn hand_out(&mut self, block: &Block, totals: Totals) {
        if let Some(lost) = self.live.remove(&block.address) {
            self.track.lose(lost);
        }
        self.pending.remove(&block.address);
        let index = self.track.alloc(block, totals);
        self.live.insert(block.address, index);
    }

    fn take_back(&mut self, address: u64, stack: StackId, totals: Totals) {
        if let Some(index) = self.live.remove(&address) {
            self.track.free(index, self.device, stack, totals);
            self.pending.insert(address, index);
        }
    }

    fn unmap(&mut self, event: &TraceEvent, place: usize, totals: Totals) {
        let gone = Span {
            address: event.address,
            bytes: event.size,
            stream: self.stream(event),
            pool: self.pool(event, place),
            expandable: true,
            ..self.span()
        };
        self.track.unmap(&mut self.spans, gone, event.stack, totals);
    }
}
