//! PyTorch's memory snapshots: what is in them, read from pickles of every release.
//!
//! A [`Snapshot`] is what the file says, in tables: the allocator's events as far as they were recorded, the
//! segments and blocks at the end, stacks, settings and annotations. It can be replayed event by event, and
//! made into a [`Recording`](crate::Recording).

mod keys;
mod read;
mod shape;
mod stacks;

pub use read::{Problem, SnapshotError};
pub use stacks::{Frame, FrameId, StackId, Stacks};

use std::collections::BTreeMap;
use std::ops::Range;

use memfit_vocabulary::Category;
use serde::{Deserialize, Serialize};

use crate::{TextId, Texts};

/// What a memory snapshot says.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The texts that the rest refers to.
    pub texts: Texts,
    /// Stacks of calls.
    pub stacks: Stacks,
    /// All devices' events, each device's in order.
    pub events: Vec<TraceEvent>,
    /// Each device's part of the events.
    pub traces: Vec<Range<usize>>,
    /// The handles of streams.
    pub streams: Vec<u64>,
    /// The identities of pools. The first is the default pool.
    pub pools: Vec<(u64, u64)>,
    /// The segments at the end, as they were listed.
    pub segments: Vec<Segment>,
    /// All segments' blocks.
    pub blocks: Vec<SegmentBlock>,
    /// What the program said about its own progress.
    pub annotations: Vec<Annotation>,
    /// The allocator's settings, where the release wrote them.
    pub settings: Option<TracedSettings>,
}

/// What an event of a trace says happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TraceAction {
    /// A block was handed out.
    Alloc,
    /// A block was given back.
    FreeRequested,
    /// A block became free.
    FreeCompleted,
    /// The device gave a segment.
    SegmentAlloc,
    /// A segment went back to the device.
    SegmentFree,
    /// A part of an expandable segment was given memory.
    SegmentMap,
    /// A part of an expandable segment lost its memory.
    SegmentUnmap,
    /// A snapshot was taken; the size is that of the active blocks.
    Snapshot,
    /// A request failed; the address is what the device had left.
    Oom,
    /// A tensor was given a name.
    Annotate,
}

impl TraceAction {
    /// What PyTorch calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Oom => "oom",
            Self::Annotate => "annotate",
        }
    }
}

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Where.
    pub address: u64,
    /// How many bytes: as requested for blocks, real ones for segments, rounded for failures.
    pub size: u64,
    /// When, in microseconds, or zero where the release did not write it.
    pub time_us: u64,
    /// From where in the program.
    pub stack: StackId,
    /// What the program had set as metadata.
    pub metadata: TextId,
    /// The stream: its place in [`Snapshot::streams`].
    pub stream: u16,
    /// The pool, where the release wrote it: its place in [`Snapshot::pools`].
    pub pool: Option<std::num::NonZeroU16>,
    /// What it is for, where the writer judged that.
    pub category: Option<Category>,
    /// What happened.
    pub action: TraceAction,
}

impl TraceEvent {
    /// The pool's place in [`Snapshot::pools`], where the release wrote it.
    pub fn pool_index(&self) -> Option<usize> {
        self.pool.map(|pool| usize::from(pool.get()) - 1)
    }
}

/// The names that PyTorch's memory profiler gives to categories, and ours.
const CATEGORIES: [(&str, Category); 7] = [
    ("parameter", Category::Parameters),
    ("gradient", Category::Gradients),
    ("optimizer_state", Category::Optimizer),
    ("activation", Category::Activations),
    ("input", Category::Inputs),
    ("temporary", Category::Temporary),
    ("autograd_detail", Category::Activations),
];

/// The name that PyTorch's memory profiler gives to a category.
pub(crate) fn category_name(category: Category) -> &'static str {
    CATEGORIES.iter().find(|(_, known)| *known == category).map_or("unknown", |(name, _)| name)
}

/// The category that PyTorch's memory profiler gives this name.
fn category_named(name: &str) -> Option<Category> {
    CATEGORIES.iter().find(|(known, _)| *known == name).map(|(_, category)| *category)
}

/// A segment at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The device.
    pub device: u32,
    /// Where it begins.
    pub address: u64,
    /// How many bytes it has.
    pub size: u64,
    /// The stream's handle.
    pub stream: u64,
    /// Whether it is in a pool of small blocks.
    pub small: bool,
    /// The pool.
    pub pool: (u64, u64),
    /// Whether it can grow.
    pub expandable: bool,
    /// Its blocks' places in [`Snapshot::blocks`].
    pub blocks: Range<usize>,
}

/// What a block is doing at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentBlockState {
    /// Handed out.
    Allocated,
    /// Given back, and waiting for other streams.
    Pending,
    /// Free.
    Inactive,
}

/// A block at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBlock {
    /// Where it begins.
    pub address: u64,
    /// How many bytes it has.
    pub size: u64,
    /// How many were asked for; stale where it is free.
    pub requested: u64,
    /// What it is doing.
    pub state: SegmentBlockState,
    /// Where in the program it was asked for.
    pub stack: StackId,
}

/// A beginning or an end that the program announced (`record_function`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Its name.
    pub name: TextId,
    /// Whether it began, or ended.
    pub begins: bool,
    /// The device, where one was named.
    pub device: Option<u32>,
    /// When, in microseconds.
    pub time_us: u64,
}

/// The settings that a snapshot repeats. Not among them: the memory fraction, the segment size for large
/// requests, and the rounding of unsplit blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TracedSettings {
    /// The text that they were last set from.
    pub text: String,
    /// In bytes, where there is a limit.
    pub max_split_size: Option<u64>,
    /// The share above which garbage is collected.
    pub garbage_collection_threshold: f64,
    /// Whether segments grow.
    pub expandable_segments: bool,
    /// Divisions of powers of two, by the power in MiB.
    pub roundup_power2_divisions: BTreeMap<u64, u64>,
}

impl Snapshot {
    /// The events of a device.
    pub fn trace(&self, device: usize) -> &[TraceEvent] {
        self.traces.get(device).map_or(&[], |range| &self.events[range.clone()])
    }

    /// The devices that have events or segments.
    pub fn devices(&self) -> Vec<usize> {
        let count = self.segments.iter().map(|segment| segment.device as usize + 1).max().unwrap_or(0);
        (0..self.traces.len().max(count))
            .filter(|device| {
                !self.trace(*device).is_empty()
                    || self.segments.iter().any(|segment| segment.device as usize == *device)
            })
            .collect()
    }

    /// A segment's blocks.
    pub fn blocks_of(&self, segment: &Segment) -> &[SegmentBlock] {
        &self.blocks[segment.blocks.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_of_millions_of_events_takes_forty_bytes_for_each() {
        assert_eq!(size_of::<TraceEvent>(), 40);
    }
}
