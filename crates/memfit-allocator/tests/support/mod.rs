//! Generated traces: programs, a device that records their events, and snapshots.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::num::NonZeroU16;

use memfit_allocator::{
    Address, Allocator, BlockState, CaptureFilter, Device, Entry, PoolId, Release, ReplayConditions,
    Settings, SimulatedDevice, Stream, Ticket,
};
use memfit_recording::{Segment, SegmentBlock, SegmentBlockState, Snapshot, StackId, TextId, TraceEvent};
use proptest::prelude::*;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const CAPACITY: u64 = 400 * MIB;

/// Device that records the trace.
#[derive(Clone)]
pub(crate) struct Traced {
    pub(crate) device: SimulatedDevice,
    /// Address space is never reused. A trace that begins between two expandable segments at the same address
    /// could not distinguish them.
    reserved: u64,
    pub(crate) trace: Vec<Entry>,
}

impl Device for Traced {
    fn malloc(&mut self, size: u64) -> Option<Address> {
        self.device.malloc(size)
    }
    fn free(&mut self, address: Address, size: u64) {
        self.device.free(address, size);
    }
    fn reserve(&mut self, size: u64) -> Address {
        self.reserved += size;
        Address(0x5000_0000_0000 + self.reserved - size)
    }
    fn unreserve(&mut self, _address: Address, _size: u64) {}
    fn map(&mut self, address: Address, size: u64) -> bool {
        self.device.map(address, size)
    }
    fn unmap(&mut self, address: Address, size: u64) {
        self.device.unmap(address, size);
    }
    fn total(&self) -> u64 {
        self.device.total()
    }
    fn available(&self) -> u64 {
        self.device.available()
    }
    fn record_event(&mut self, stream: Stream) -> Ticket {
        self.device.record_event(stream)
    }
    fn is_done(&mut self, ticket: Ticket) -> bool {
        self.device.is_done(ticket)
    }
    fn synchronize(&mut self, ticket: Ticket) {
        self.device.synchronize(ticket);
    }
    fn traced(&mut self, entry: Entry) {
        self.trace.push(entry);
    }
}

/// Choice of one of several: position in the list as a fraction of 2^64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Which(pub(crate) u64);

impl Which {
    pub(crate) fn index(self, count: usize) -> usize {
        ((u128::from(self.0) * count as u128) >> 64) as usize
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Alloc { size: u64, stream: u64 },
    Free { which: Which },
    RecordStream { which: Which, stream: u64 },
    FinishEvents,
    EmptyCache,
    Capture,
    EndCapture,
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let which = || any::<u64>().prop_map(Which);
    let size = prop_oneof![
        4 => 1_u64..4096,
        3 => 1_u64..=MIB,
        4 => MIB..10 * MIB,
        2 => 10 * MIB..80 * MIB,
    ];
    prop_oneof![
        24 => (size, 0_u64..2).prop_map(|(size, stream)| Step::Alloc { size, stream }),
        20 => which().prop_map(|which| Step::Free { which }),
        2 => (which(), 2_u64..4).prop_map(|(which, stream)| Step::RecordStream { which, stream }),
        2 => Just(Step::FinishEvents),
        1 => Just(Step::EmptyCache),
        1 => Just(Step::Capture),
        1 => Just(Step::EndCapture),
    ]
}

pub(crate) fn run(conf: &str, steps: Vec<Step>) -> Allocator<Traced> {
    let settings = Settings::parse(conf, Release::NEWEST).expect("the settings are valid");
    let mut device = Traced { device: SimulatedDevice::new(CAPACITY), reserved: 0, trace: Vec::new() };
    device.device.hold_events();
    let mut allocator = Allocator::new(device, settings, Release::NEWEST);
    let mut live: Vec<Address> = Vec::new();
    for step in steps {
        match step {
            Step::Alloc { size, stream } => live.extend(allocator.malloc(size, Stream(stream))),
            Step::Free { which } if !live.is_empty() => {
                let address = live.swap_remove(which.index(live.len()));
                allocator.free(address).expect("it was handed out");
            }
            Step::RecordStream { which, stream } if !live.is_empty() => {
                allocator
                    .record_stream(live[which.index(live.len())], Stream(stream))
                    .expect("it was handed out");
            }
            Step::FinishEvents => allocator.device_mut().device.finish_events(),
            Step::EmptyCache => allocator.empty_cache(),
            Step::Capture => {
                let _ = allocator.begin_capture(PoolId(0, 1), CaptureFilter::Stream(Stream(1)));
            }
            Step::EndCapture => {
                let _ = allocator.end_capture(PoolId(0, 1));
            }
            _ => {}
        }
    }
    allocator
}

/// Snapshot as PyTorch would have written it at the end, with a ring buffer that has dropped all but the last
/// events.
pub(crate) fn snapshot(allocator: &Allocator<Traced>, kept: usize) -> Snapshot {
    let trace = &allocator.device().trace;
    let mut snapshot =
        Snapshot { streams: (0..4).collect(), pools: vec![(0, 0), (0, 1)], ..Snapshot::default() };
    for entry in &trace[trace.len() - kept.min(trace.len())..] {
        snapshot.events.push(TraceEvent {
            category: None,
            address: entry.address.0,
            size: entry.size,
            time_us: 0,
            stack: StackId::NONE,
            metadata: TextId::NONE,
            stream: entry.stream.0 as u16,
            pool: NonZeroU16::new(1 + entry.pool.1 as u16),
            action: entry.action.into(),
        });
    }
    snapshot.traces.push(0..snapshot.events.len());
    for segment in allocator.segments() {
        let start = snapshot.blocks.len();
        snapshot.blocks.extend(segment.blocks.iter().map(|block| SegmentBlock {
            address: block.address.0,
            size: block.size,
            requested: block.requested,
            state: match block.state {
                BlockState::Allocated => SegmentBlockState::Allocated,
                BlockState::Pending => SegmentBlockState::Pending,
                BlockState::Free => SegmentBlockState::Inactive,
            },
            stack: StackId::NONE,
        }));
        snapshot.segments.push(Segment {
            device: 0,
            address: segment.address.0,
            size: segment.size,
            stream: segment.stream.0,
            small: segment.small,
            pool: (segment.pool.0, segment.pool.1),
            expandable: segment.expandable,
            blocks: start..snapshot.blocks.len(),
        });
    }
    snapshot
}

pub(crate) fn given(conf: &str) -> ReplayConditions {
    let settings = Settings::parse(conf, Release::NEWEST).expect("the settings are valid");
    ReplayConditions { settings, release: Release::NEWEST, capacity: CAPACITY }
}

pub(crate) fn conf() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "roundup_power2_divisions:4",
        "expandable_segments:True",
        "large_segment_size_mb:32",
        "expandable_segments:True,large_segment_size_mb:32",
    ])
}

pub(crate) fn alloc(size: u64, stream: u64) -> Step {
    Step::Alloc { size, stream }
}

pub(crate) fn free(which: u64) -> Step {
    Step::Free { which: Which(which) }
}
