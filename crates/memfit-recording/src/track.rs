//! Allocator events of one process.

use std::collections::BTreeMap;

use memfit_vocabulary::{Category, Phase};
use serde::{Deserialize, Serialize};

use crate::table::{BlockTable, Blocks, Moments};
use crate::{StackId, Stacks, TextId, Texts, TracedSettings, Unknown};

/// Index of a moment that never came: for a block that was never freed, or a call that did not end.
pub const NEVER: u32 = u32::MAX;

/// Allocator events of one process, in order. Indices of moments serve as its clock.
///
/// It is filled in order of time: [`Track::alloc`], [`Track::free`] and the like add a moment and update the
/// tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// Process id.
    pub pid: u32,
    /// Rank, if the process is one of several.
    pub rank: Option<u32>,
    /// `true` if the end is missing.
    pub truncated: bool,
    /// Texts that other tables refer to.
    pub texts: Texts,
    /// Stacks that other tables refer to.
    pub stacks: Stacks,
    /// Stream handles. The first is the default stream.
    pub streams: Vec<u64>,
    /// Pool ids. The first is the default pool.
    pub pools: Vec<(u64, u64)>,
    /// Module calls in the order in which they began.
    pub calls: Vec<Call>,
    /// Reserved memory in the order of its allocation. Empty if the source does not report it.
    pub spans: Vec<Span>,
    /// Ranges that the program announced.
    pub ranges: Vec<NamedRange>,
    /// Allocator settings, if the source has them.
    pub settings: Option<TracedSettings>,
    /// Failed requests by their moments, if the source reports more of them than the requested size.
    pub refusals: BTreeMap<u32, Refusal>,
    /// Aspects that this track does not cover, or may state wrongly.
    pub unknown: Vec<Unknown>,
    pub(crate) moments: Moments,
    pub(crate) blocks: Blocks,
}

impl Default for Track {
    fn default() -> Self {
        Self {
            pid: 0,
            rank: None,
            truncated: false,
            texts: Texts::default(),
            stacks: Stacks::default(),
            streams: vec![0],
            pools: vec![(0, 0)],
            calls: Vec::new(),
            spans: Vec::new(),
            ranges: Vec::new(),
            settings: None,
            refusals: BTreeMap::new(),
            unknown: Vec::new(),
            moments: Moments::default(),
            blocks: Blocks::default(),
        }
    }
}

/// Event at a point of the track's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Kind of event.
    pub kind: MomentKind,
    /// Device, for kinds that concern one.
    pub device: u8,
    /// Allocated bytes on the device after the event; zero for kinds that concern no device.
    pub allocated: u64,
    /// Reserved bytes on the device after the event; zero for kinds that concern no device.
    pub reserved: u64,
    /// Time in microseconds of the source's clock, if it has one.
    pub time_us: Option<u64>,
    /// Call stack.
    pub stack: StackId,
}

/// Kind of a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentKind {
    /// A block was allocated: its index in [`Track::blocks`].
    Alloc(u32),
    /// A block's free was requested. The block may still be in use on other streams.
    Free(u32),
    /// A freed block became available. Present only if the source reports it apart from [`MomentKind::Free`].
    FreeCompleted(u32),
    /// A phase began.
    Phase(Phase),
    /// The number of completed steps reached this value.
    Step(u32),
    /// A module call began: its index in [`Track::calls`].
    Enter(u32),
    /// A module call ended.
    Exit(u32),
    /// A request for this many bytes failed.
    Oom(u64),
    /// A segment was allocated on the device: its index in [`Track::spans`].
    SegmentAlloc(u32),
    /// A segment was released to the device.
    SegmentFree(u32),
    /// Memory was mapped into an expandable segment: its index in [`Track::spans`].
    SegmentMap(u32),
    /// Memory was unmapped from an expandable segment: a span of that extent, which is no longer live.
    SegmentUnmap(u32),
    /// A range of the program began: its index in [`Track::ranges`].
    RangeBegin(u32),
    /// A range of the program ended.
    RangeEnd(u32),
    /// A memory snapshot was taken.
    Snapshot,
}

impl MomentKind {
    /// Returns `true` if moments of this kind concern a device and have its totals.
    pub const fn has_totals(self) -> bool {
        !matches!(
            self,
            Self::Phase(_)
                | Self::Step(_)
                | Self::Enter(_)
                | Self::Exit(_)
                | Self::RangeBegin(_)
                | Self::RangeEnd(_)
        )
    }
}

/// Index in [`Track::streams`]. Zero is the default stream, and also stands for an unknown one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamRef(pub u16);

/// Index in [`Track::pools`]. Zero is the default pool, and also stands for an unknown one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolRef(pub u16);

/// Block of memory, from its allocation to its free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Address.
    pub address: u64,
    /// Size in bytes, as rounded by the allocator.
    pub bytes: u64,
    /// Requested size, if known.
    pub requested: Option<u64>,
    /// Moment of the allocation.
    pub born: u32,
    /// Moment at which the free was requested, or [`NEVER`].
    pub freed: u32,
    /// Moment at which the block became free, or [`NEVER`]; also [`NEVER`] if the source does not report it
    /// apart from `freed`.
    pub completed: u32,
    /// Innermost module call during the allocation: its index in [`Track::calls`], or [`NEVER`].
    pub call: u32,
    /// Innermost module that the allocation was made for, in the forward or backward pass.
    pub module: TextId,
    /// Module that owns the tensor, if known.
    pub owner: TextId,
    /// Number of completed steps at the allocation.
    pub step: u32,
    /// Thread of the allocation; 0 if unknown.
    pub thread: u32,
    /// Device index.
    pub device: u8,
    /// Stream of the allocation.
    pub stream: StreamRef,
    /// Pool of the block.
    pub pool: PoolRef,
    /// Call stack of the allocation, in [`Track::stacks`].
    pub stack: StackId,
    /// Phase of the allocation.
    pub phase: Phase,
    /// Category that the probe assigned.
    pub noted: Option<Category>,
}

impl Default for Block {
    fn default() -> Self {
        Self {
            address: 0,
            bytes: 0,
            requested: None,
            born: 0,
            freed: NEVER,
            completed: NEVER,
            call: NEVER,
            module: TextId::NONE,
            owner: TextId::NONE,
            step: 0,
            thread: 0,
            device: 0,
            stream: StreamRef::default(),
            pool: PoolRef::default(),
            stack: StackId::NONE,
            phase: Phase::Other,
            noted: None,
        }
    }
}

impl Block {
    /// Returns `true` if the block was in use right after the moment with this index.
    pub fn is_live_at(&self, moment: u32) -> bool {
        self.born <= moment && moment < self.freed
    }
}

/// Call of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Module name.
    pub module: TextId,
    /// Thread.
    pub thread: u32,
    /// Enclosing call, or [`NEVER`].
    pub parent: u32,
    /// Moment of its begin.
    pub began: u32,
    /// Moment of its end, or [`NEVER`].
    pub ended: u32,
}

/// Reserved memory, from its allocation on the device to its release: a segment, or a mapped part of an
/// expandable one. If only a part is unmapped, the span ends and its remainders continue as new spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Start address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Moment of the allocation.
    pub born: u32,
    /// Moment of the release, or [`NEVER`].
    pub freed: u32,
    /// Stream.
    pub stream: StreamRef,
    /// Pool.
    pub pool: PoolRef,
    /// Device index.
    pub device: u8,
    /// `true` if it holds small blocks; `None` if unknown.
    pub small: Option<bool>,
    /// `true` if it belongs to an expandable segment.
    pub expandable: bool,
}

impl Span {
    /// Returns `true` if the memory was reserved right after the moment with this index.
    pub const fn is_live_at(&self, moment: u32) -> bool {
        self.born <= moment && moment < self.freed
    }
}

/// Failed request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Free memory of the device in bytes.
    pub left: u64,
    /// Stream of the request.
    pub stream: StreamRef,
    /// Pool of the request.
    pub pool: PoolRef,
}

/// Range that the program announced: a `record_function` or an NVTX range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedRange {
    /// Name.
    pub name: TextId,
    /// API that announced it.
    pub source: RangeSource,
    /// Thread, or 0 if unknown.
    pub thread: u32,
    /// Moment of its begin.
    pub began: u32,
    /// Moment of its end, or [`NEVER`].
    pub ended: u32,
}

/// API that announced a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RangeSource {
    /// `torch.profiler.record_function` or similar.
    Annotation = 0,
    /// NVTX.
    Nvtx = 1,
}

/// Totals of a device at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Allocated bytes.
    pub allocated: u64,
    /// Reserved bytes.
    pub reserved: u64,
    /// Time in microseconds, if known.
    pub time_us: Option<u64>,
}

impl Track {
    /// Events in order.
    pub const fn moments(&self) -> &Moments {
        &self.moments
    }

    /// Blocks in order of allocation.
    pub const fn blocks(&self) -> BlockTable<'_> {
        BlockTable { blocks: &self.blocks, moments: &self.moments }
    }

    /// Block with this index.
    pub fn block(&self, index: u32) -> Option<Block> {
        self.blocks().get(index)
    }

    /// Moment with this index.
    pub fn moment(&self, index: u32) -> Option<Moment> {
        self.moments.get(index)
    }

    /// Index of the next moment.
    pub const fn next_moment(&self) -> u32 {
        self.moments.len() as u32
    }

    /// Devices with allocations, in ascending order.
    pub fn devices(&self) -> Vec<u8> {
        let mut seen = [false; 256];
        for moment in &self.moments {
            if matches!(moment.kind, MomentKind::Alloc(_)) {
                seen[usize::from(moment.device)] = true;
            }
        }
        (0..=u8::MAX).filter(|&device| seen[usize::from(device)]).collect()
    }

    /// Moments at which phases began, with the phase.
    pub fn phases(&self) -> impl Iterator<Item = (u32, Phase)> + '_ {
        (0..).zip(&self.moments).filter_map(|(index, moment)| match moment.kind {
            MomentKind::Phase(phase) => Some((index, phase)),
            _ => None,
        })
    }

    /// Adds a block that is allocated now and returns its index. Its step follows from the moments before it.
    pub fn alloc(&mut self, block: &Block, totals: Totals) -> u32 {
        let index = self.blocks.push(&Block { born: self.next_moment(), ..*block });
        self.add_moment(MomentKind::Alloc(index), block.device, block.stack, totals);
        index
    }

    /// Adds the free of a block.
    pub fn free(&mut self, index: u32, device: u8, stack: StackId, totals: Totals) -> u32 {
        self.blocks.set_freed(index, self.next_moment());
        self.add_moment(MomentKind::Free(index), device, stack, totals)
    }

    /// Adds the completion of a block's free.
    pub fn complete(&mut self, index: u32, device: u8, totals: Totals) -> u32 {
        self.blocks.set_completed(index, self.next_moment());
        self.add_moment(MomentKind::FreeCompleted(index), device, StackId::NONE, totals)
    }

    /// Ends the lifetime of a block whose free was not logged. Adds no moment.
    pub fn lose(&mut self, index: u32) {
        self.blocks.set_freed(index, self.next_moment());
    }

    /// Adds reserved memory and returns the span's index.
    pub fn reserve(&mut self, span: Span, stack: StackId, totals: Totals) -> u32 {
        let index = self.spans.len() as u32;
        let kind =
            if span.expandable { MomentKind::SegmentMap(index) } else { MomentKind::SegmentAlloc(index) };
        self.spans.push(Span { born: self.next_moment(), freed: NEVER, ..span });
        self.add_moment(kind, span.device, stack, totals);
        index
    }

    /// Adds the release of a segment.
    pub fn release(&mut self, index: u32, device: u8, stack: StackId, totals: Totals) {
        let now = self.next_moment();
        if let Some(span) = self.spans.get_mut(index as usize) {
            span.freed = now;
        }
        self.add_moment(MomentKind::SegmentFree(index), device, stack, totals);
    }

    /// Unmaps a part of an expandable segment. The remainders of the affected spans continue as new spans.
    /// `live` holds the indices of live spans by device and address.
    pub fn unmap(&mut self, live: &mut BTreeMap<(u8, u64), u32>, gone: Span, stack: StackId, totals: Totals) {
        let (device, start, now) = (gone.device, gone.address, self.next_moment());
        let end = start.saturating_add(gone.bytes);
        let first =
            live.range((device, 0)..=(device, start)).next_back().map_or(start, |((_, address), _)| *address);
        let cut: Vec<_> =
            live.range((device, first)..(device, end.max(first))).map(|(key, span)| (*key, *span)).collect();
        for (key, index) in cut {
            let Some(span) = self.spans.get(index as usize).copied() else { continue };
            let (address, span_end) = (span.address, span.address.saturating_add(span.bytes));
            if span_end <= start {
                continue;
            }
            live.remove(&key);
            self.spans[index as usize].freed = now;
            for (from, to) in [(address, start.min(span_end)), (end.max(address), span_end)] {
                if from < to {
                    live.insert((device, from), self.spans.len() as u32);
                    self.spans.push(Span {
                        address: from,
                        bytes: to - from,
                        born: now,
                        freed: NEVER,
                        ..span
                    });
                }
            }
        }
        let index = self.spans.len() as u32;
        self.spans.push(Span { born: now, freed: now, ..gone });
        self.add_moment(MomentKind::SegmentUnmap(index), device, stack, totals);
    }

    /// Begins a range of the program and returns its index.
    pub fn begin_range(
        &mut self,
        name: TextId,
        source: RangeSource,
        thread: u32,
        time_us: Option<u64>,
    ) -> u32 {
        let index = self.ranges.len() as u32;
        self.ranges.push(NamedRange { name, source, thread, began: self.next_moment(), ended: NEVER });
        self.add_moment(
            MomentKind::RangeBegin(index),
            0,
            StackId::NONE,
            Totals { time_us, ..Totals::default() },
        );
        index
    }

    /// Ends a range of the program.
    pub fn end_range(&mut self, index: u32, time_us: Option<u64>) {
        let now = self.next_moment();
        if let Some(range) = self.ranges.get_mut(index as usize) {
            range.ended = now;
        }
        self.add_moment(
            MomentKind::RangeEnd(index),
            0,
            StackId::NONE,
            Totals { time_us, ..Totals::default() },
        );
    }

    /// Adds a moment that changes no table and returns its index.
    pub fn add_moment(&mut self, kind: MomentKind, device: u8, stack: StackId, totals: Totals) -> u32 {
        let Totals { allocated, reserved, time_us } = totals;
        self.moments.push(Moment { kind, device, allocated, reserved, time_us, stack })
    }

    /// Last failed request on a device: its size, its moment, and the free memory of the device.
    pub fn last_refusal(&self, device: u8) -> Option<(u64, Moment, Refusal)> {
        let failed = |(place, refusal): (&u32, &Refusal)| {
            let moment = self.moment(*place).filter(|moment| moment.device == device)?;
            let MomentKind::Oom(requested) = moment.kind else { return None };
            Some((requested, moment, *refusal))
        };
        self.refusals.iter().rev().find_map(failed)
    }

    /// Memory of the device that was reserved or free when the last request on it failed.
    pub fn limit_at_oom(&self, device: u8) -> Option<u64> {
        self.last_refusal(device).map(|(_, moment, refusal)| moment.reserved.saturating_add(refusal.left))
    }

    /// Sets the requested size of a block.
    pub fn set_requested(&mut self, index: u32, requested: Option<u64>) {
        self.blocks.set_requested(index, requested);
    }

    /// Sets the category of a block.
    pub fn set_noted(&mut self, index: u32, noted: Option<Category>) {
        self.blocks.set_noted(index, noted);
    }

    /// Sets the module that owns a block's tensor.
    pub fn set_owner(&mut self, index: u32, owner: TextId) {
        self.blocks.set_owner(index, owner);
    }

    /// Corrects the size of a block after its allocation.
    pub fn set_bytes(&mut self, index: u32, bytes: u64) {
        self.blocks.set_bytes(index, bytes);
    }

    /// Index of a stream handle; a new handle is added.
    pub fn stream(&mut self, handle: u64) -> StreamRef {
        StreamRef(index_of(&mut self.streams, handle))
    }

    /// Index of a pool; a new pool is added.
    pub fn pool(&mut self, pool: (u64, u64)) -> PoolRef {
        PoolRef(index_of(&mut self.pools, pool))
    }

    /// Releases unused capacity.
    pub fn shrink(&mut self) {
        self.moments.shrink();
        self.blocks.shrink();
        self.calls.shrink_to_fit();
        self.spans.shrink_to_fit();
        self.ranges.shrink_to_fit();
    }

    /// Memory in bytes, without texts and stacks.
    pub fn memory(&self) -> usize {
        self.moments.memory()
            + self.blocks.memory()
            + self.calls.capacity() * size_of::<Call>()
            + self.spans.capacity() * size_of::<Span>()
            + self.ranges.capacity() * size_of::<NamedRange>()
    }
}

/// Returns the index of an element in a short list and adds it if it is new; 0 if there are too many.
fn index_of<T: PartialEq>(known: &mut Vec<T>, element: T) -> u16 {
    let place = known.iter().position(|other| *other == element).unwrap_or_else(|| {
        if known.len() < 4096 {
            known.push(element);
            known.len() - 1
        } else {
            0
        }
    });
    place as u16
}
