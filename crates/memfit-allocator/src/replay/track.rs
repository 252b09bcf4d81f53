//! From a snapshot to a recording. A trace says what was asked for; what it became, block by block, comes of the replay.

use std::collections::HashMap;

use memfit_levers::Phase;
use memfit_recording::{
    Block, Moment, MomentKind, NEVER, Origin, OriginKind, Recording, Snapshot, StackId, TextId, TraceAction,
    TraceEvent, Track,
};

use super::verify::follow;
use super::{Given, Verification};
use crate::rounding::round_size;
use crate::{Address, Allocator, BlockState, Device, RestoreError};

/// A device's part of a snapshot, as a track.
#[derive(Clone, Debug)]
pub struct Tracked {
    /// What happened.
    pub track: Track,
    /// For each block of the track, where in the program it was asked for: stacks of the snapshot.
    pub stacks: Vec<StackId>,
    /// How well the replay agrees with the trace.
    pub verification: Verification,
}

/// A recording of all devices of a snapshot.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The recording, one track for each device.
    pub recording: Recording,
    /// For each track, the stacks of its blocks.
    pub stacks: Vec<Vec<StackId>>,
    /// For each track, how well the replay agrees with the trace.
    pub verifications: Vec<Verification>,
}

/// A recording of all devices of a snapshot.
pub fn recording(snapshot: &Snapshot, given: &Given) -> Result<Recorded, RestoreError> {
    let origin = Origin { kind: OriginKind::Snapshot, ..Origin::default() };
    let recording = Recording { origin, ..Recording::default() };
    let mut recorded = Recorded { recording, stacks: Vec::new(), verifications: Vec::new() };
    for device in snapshot.devices() {
        let Tracked { track, stacks, verification } = track(snapshot, device, given)?;
        recorded.recording.tracks.push(track);
        recorded.stacks.push(stacks);
        recorded.verifications.push(verification);
    }
    Ok(recorded)
}

/// What happened on one device. Blocks that were alive before the trace began are handed out at its beginning.
pub fn track(snapshot: &Snapshot, device: usize, given: &Given) -> Result<Tracked, RestoreError> {
    let mut tracker = Tracker {
        snapshot,
        given,
        trace: snapshot.trace(device),
        device: device as u8,
        track: Track { texts: snapshot.texts.clone(), ..Track::default() },
        stacks: Vec::new(),
        live: HashMap::new(),
        done: None,
        remarks: Remarks::of(snapshot, device),
        steps: 0,
        phase: Phase::Other,
    };
    let verification = follow(snapshot, device, given, |allocator, next| tracker.follow(allocator, next))?;
    Ok(Tracked { track: tracker.track, stacks: tracker.stacks, verification })
}

/// Phases and steps that annotations tell of, by time.
struct Remarks {
    remarks: Vec<(u64, Remark)>,
    next: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Remark {
    StepBegins,
    StepEnds,
}

impl Remarks {
    /// `torch.optim` announces each optimizer's step under a name like `Optimizer.step#AdamW.step`.
    fn of(snapshot: &Snapshot, device: usize) -> Self {
        let mut remarks: Vec<(u64, Remark)> = snapshot
            .annotations
            .iter()
            .filter(|annotation| annotation.device.is_none_or(|named| named as usize == device))
            .filter(|annotation| snapshot.texts.get(annotation.name).starts_with("Optimizer.step"))
            .map(|annotation| {
                let remark = if annotation.begins { Remark::StepBegins } else { Remark::StepEnds };
                (annotation.time_us, remark)
            })
            .collect();
        remarks.sort_by_key(|(time, _)| *time);
        Self { remarks, next: 0 }
    }

    fn until(&mut self, time: u64) -> Option<Remark> {
        let (_, remark) = *self.remarks.get(self.next).filter(|(begins, _)| *begins <= time)?;
        self.next += 1;
        Some(remark)
    }
}

struct Tracker<'snapshot> {
    snapshot: &'snapshot Snapshot,
    given: &'snapshot Given,
    trace: &'snapshot [TraceEvent],
    device: u8,
    track: Track,
    stacks: Vec<StackId>,
    /// Live blocks by address.
    live: HashMap<u64, u32>,
    /// How many events are in the track.
    done: Option<usize>,
    remarks: Remarks,
    steps: u32,
    phase: Phase,
}

impl Tracker<'_> {
    fn follow<D: Device>(&mut self, allocator: &Allocator<D>, next: usize) {
        let done = self.done.unwrap_or_else(|| {
            self.begin(allocator);
            0
        });
        for event in &self.trace[done..next] {
            self.remark(event.time_us);
            self.event(event, allocator);
        }
        self.done = Some(next);
    }

    /// Blocks that are there already.
    fn begin<D: Device>(&mut self, allocator: &Allocator<D>) {
        let reserved = allocator.stats().reserved_bytes.all.current as u64;
        let device = usize::from(self.device);
        let known = self.snapshot.segments.iter().filter(|segment| segment.device as usize == device);
        let known: HashMap<u64, StackId> = known
            .flat_map(|segment| self.snapshot.blocks_of(segment))
            .map(|block| (block.address, block.stack))
            .collect();
        let reused = self.first_uses();
        let mut allocated = 0;
        for segment in allocator.segments() {
            for block in segment.blocks.iter().filter(|block| block.state == BlockState::Allocated) {
                allocated += block.size;
                // A block's stack is known from the end, unless another was placed there in between.
                let stack = known.get(&block.address.0).filter(|_| !reused.contains(&block.address.0));
                let stack = stack.copied().unwrap_or_default();
                self.hand_out(
                    block.address.0,
                    block.size,
                    block.requested,
                    stack,
                    TextId::NONE,
                    (allocated, reserved),
                );
            }
        }
    }

    /// Addresses that the trace hands out.
    fn first_uses(&self) -> std::collections::HashSet<u64> {
        let allocs = self.trace.iter().filter(|event| event.action == TraceAction::Alloc);
        allocs.map(|event| event.address).collect()
    }

    fn remark(&mut self, time: u64) {
        while let Some(remark) = self.remarks.until(time) {
            let (phase, ends) = match remark {
                Remark::StepBegins => (Phase::Optimizer, false),
                Remark::StepEnds => (Phase::Other, true),
            };
            self.phase = phase;
            self.moment(MomentKind::Phase(phase), (0, 0));
            if ends {
                self.steps += 1;
                self.moment(MomentKind::Step(self.steps), (0, 0));
            }
        }
    }

    fn event<D: Device>(&mut self, event: &TraceEvent, allocator: &Allocator<D>) {
        let stats = allocator.stats();
        let totals = (stats.allocated_bytes.all.current as u64, stats.reserved_bytes.all.current as u64);
        match event.action {
            TraceAction::Alloc => {
                let size = allocator.size_of(Address(event.address));
                let size = size.unwrap_or_else(|| round_size(event.size.min(1 << 60), &self.given.settings));
                self.hand_out(event.address, size, event.size, event.stack, event.metadata, totals);
            }
            TraceAction::FreeRequested => {
                if let Some(index) = self.live.remove(&event.address) {
                    self.track.blocks[index as usize].freed = self.now();
                    self.moment(MomentKind::Free(index), totals);
                }
            }
            TraceAction::Oom => self.moment(MomentKind::Oom(event.size), totals),
            _ => {}
        }
    }

    fn hand_out(
        &mut self,
        address: u64,
        bytes: u64,
        requested: u64,
        stack: StackId,
        module: TextId,
        totals: (u64, u64),
    ) {
        let index = self.track.blocks.len() as u32;
        let born = self.now();
        if let Some(lost) = self.live.insert(address, index) {
            self.track.blocks[lost as usize].freed = born;
        }
        self.stacks.push(stack);
        self.track.blocks.push(Block {
            address,
            bytes,
            requested: Some(requested),
            born,
            freed: NEVER,
            call: NEVER,
            module,
            owner: TextId::NONE,
            step: self.steps,
            thread: 0,
            device: self.device,
            phase: self.phase,
            noted: None,
        });
        self.moment(MomentKind::Alloc(index), totals);
    }

    fn now(&self) -> u32 {
        self.track.moments.len() as u32
    }

    fn moment(&mut self, kind: MomentKind, (allocated, reserved): (u64, u64)) {
        self.track.moments.push(Moment { kind, device: self.device, allocated, reserved });
    }
}
