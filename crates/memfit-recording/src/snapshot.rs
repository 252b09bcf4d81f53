//! PyTorch memory snapshots, read from pickles of every release.
//!
//! A [`Snapshot`] holds the content of the file in tables: allocator events as far as they were recorded,
//! segments and blocks at the end, stacks, settings and annotations. It can be replayed event by event and
//! converted to a [`Recording`](crate::Recording).

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

/// Content of a memory snapshot.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Texts that other tables refer to.
    pub texts: Texts,
    /// Call stacks.
    pub stacks: Stacks,
    /// Events of all devices, each device's in order.
    pub events: Vec<TraceEvent>,
    /// Range of each device's events.
    pub traces: Vec<Range<usize>>,
    /// Stream handles.
    pub streams: Vec<u64>,
    /// Pool ids. The first is the default pool.
    pub pools: Vec<(u64, u64)>,
    /// Segments at the end, in the order of the file.
    pub segments: Vec<Segment>,
    /// Blocks of all segments.
    pub blocks: Vec<SegmentBlock>,
    /// Annotations of the program's progress.
    pub annotations: Vec<Annotation>,
    /// Allocator settings, if the release wrote them.
    pub settings: Option<TracedSettings>,
}

/// Kind of a trace event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TraceAction {
    /// A block was allocated.
    Alloc,
    /// A block's free was requested.
    FreeRequested,
    /// A block became free.
    FreeCompleted,
    /// A segment was allocated on the device.
    SegmentAlloc,
    /// A segment was released to the device.
    SegmentFree,
    /// Memory was mapped into an expandable segment.
    SegmentMap,
    /// Memory was unmapped from an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken; the size is that of the active blocks.
    Snapshot,
    /// An allocation failed; the address field holds the free memory of the device.
    Oom,
    /// A tensor was annotated with a name.
    Annotate,
}

impl TraceAction {
    /// PyTorch's name of the action.
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

/// Event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Address.
    pub address: u64,
    /// Size in bytes: the requested one for blocks, the real one for segments, the rounded one for failures.
    pub size: u64,
    /// Time in microseconds, or zero if the release did not write it.
    pub time_us: u64,
    /// Call stack.
    pub stack: StackId,
    /// User metadata (`_set_memory_metadata`).
    pub metadata: TextId,
    /// Index of the stream in [`Snapshot::streams`].
    pub stream: u16,
    /// Index of the pool in [`Snapshot::pools`], if the release wrote it.
    pub pool: Option<std::num::NonZeroU16>,
    /// Category, if the writer assigned one.
    pub category: Option<Category>,
    /// Kind of event.
    pub action: TraceAction,
}

impl TraceEvent {
    /// Index of the pool in [`Snapshot::pools`], if the release wrote it.
    pub fn pool_index(&self) -> Option<usize> {
        self.pool.map(|pool| usize::from(pool.get()) - 1)
    }
}

/// Category names of PyTorch's memory profiler, and the categories that they stand for here.
const CATEGORIES: [(&str, Category); 7] = [
    ("parameter", Category::Parameters),
    ("gradient", Category::Gradients),
    ("optimizer_state", Category::Optimizer),
    ("activation", Category::Activations),
    ("input", Category::Inputs),
    ("temporary", Category::Temporary),
    ("autograd_detail", Category::Activations),
];

/// Name of a category in PyTorch's memory profiler.
pub(crate) fn category_name(category: Category) -> &'static str {
    CATEGORIES.iter().find(|(_, known)| *known == category).map_or("unknown", |(name, _)| name)
}

/// Category with this name in PyTorch's memory profiler.
fn category_named(name: &str) -> Option<Category> {
    CATEGORIES.iter().find(|(known, _)| *known == name).map(|(_, category)| *category)
}

/// Segment at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Device index.
    pub device: u32,
    /// Start address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Stream handle.
    pub stream: u64,
    /// `true` if it belongs to a pool of small blocks.
    pub small: bool,
    /// Pool id.
    pub pool: (u64, u64),
    /// `true` if it is an expandable segment.
    pub expandable: bool,
    /// Range of its blocks in [`Snapshot::blocks`].
    pub blocks: Range<usize>,
}

/// State of a block at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentBlockState {
    /// Allocated.
    Allocated,
    /// Freed, but still in use on other streams.
    Pending,
    /// Free.
    Inactive,
}

/// Block at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBlock {
    /// Start address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Requested bytes; stale if the block is free.
    pub requested: u64,
    /// State.
    pub state: SegmentBlockState,
    /// Call stack of the allocation.
    pub stack: StackId,
}

/// Begin or end of a `record_function` range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Name of the range.
    pub name: TextId,
    /// `true` at the begin, `false` at the end.
    pub begins: bool,
    /// Device, if one was named.
    pub device: Option<u32>,
    /// Time in microseconds.
    pub time_us: u64,
}

/// Allocator settings that a snapshot contains. It lacks the memory fraction, the segment size for large
/// requests, and the rounding of unsplit blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TracedSettings {
    /// Text that the settings were last parsed from.
    pub text: String,
    /// `max_split_size` in bytes, if there is a limit.
    pub max_split_size: Option<u64>,
    /// Fraction of the memory above which garbage collection starts.
    pub garbage_collection_threshold: f64,
    /// `true` if expandable segments are on.
    pub expandable_segments: bool,
    /// Divisions of `roundup_power2_divisions`, by the power of two in MiB.
    pub roundup_power2_divisions: BTreeMap<u64, u64>,
}

impl Snapshot {
    /// Events of a device.
    pub fn trace(&self, device: usize) -> &[TraceEvent] {
        self.traces.get(device).map_or(&[], |range| &self.events[range.clone()])
    }

    /// Devices that have events or segments.
    pub fn devices(&self) -> Vec<usize> {
        let count = self.segments.iter().map(|segment| segment.device as usize + 1).max().unwrap_or(0);
        (0..self.traces.len().max(count))
            .filter(|device| {
                !self.trace(*device).is_empty()
                    || self.segments.iter().any(|segment| segment.device as usize == *device)
            })
            .collect()
    }

    /// Blocks of a segment.
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
