//! What one process's allocator did.

use std::collections::BTreeMap;

use memfit_vocabulary::{Category, Phase};
use serde::{Deserialize, Serialize};

use crate::table::{BlockTable, Blocks, Moments};
use crate::{StackId, Stacks, TextId, Texts, TracedSettings, Unknown};

/// The index of a moment that did not come: a block that was never given back, a call that did not end.
pub const NEVER: u32 = u32::MAX;

/// What one process's allocator did, in order. Indices of moments are its clock.
///
/// It is filled from the front: [`Track::alloc`], [`Track::free`] and the like add a moment and what belongs
/// to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// The process.
    pub pid: u32,
    /// The process's rank, where it is one of several.
    pub rank: Option<u32>,
    /// Whether the end is missing.
    pub truncated: bool,
    /// The texts that the rest refers to.
    pub texts: Texts,
    /// The stacks that the rest refers to.
    pub stacks: Stacks,
    /// The handles of streams. The first is the default stream.
    pub streams: Vec<u64>,
    /// The identities of pools. The first is the default pool.
    pub pools: Vec<(u64, u64)>,
    /// The modules' calls, in the order in which they began.
    pub calls: Vec<Call>,
    /// Reserved memory, in the order in which it was got. Empty where the source does not tell of it.
    pub spans: Vec<Span>,
    /// What the program said about its own progress.
    pub ranges: Vec<NamedRange>,
    /// The allocator's settings, where the source has them.
    pub settings: Option<TracedSettings>,
    /// Requests that could not be served, by their moments, where the source tells more of them than what
    /// was asked for.
    pub refusals: BTreeMap<u32, Refusal>,
    /// What this track does not say, or may say wrongly.
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

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// What.
    pub kind: MomentKind,
    /// The device, for what concerns one.
    pub device: u8,
    /// Bytes in blocks on the device after it; zero for what concerns no device.
    pub allocated: u64,
    /// Bytes in segments on the device after it; zero for what concerns no device.
    pub reserved: u64,
    /// When, in microseconds of the source's own clock, where it tells.
    pub time_us: Option<u64>,
    /// From where in the program.
    pub stack: StackId,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentKind {
    /// A block was handed out: its index in [`Track::blocks`].
    Alloc(u32),
    /// A block was given back. It may still wait for other streams.
    Free(u32),
    /// A block that was given back became free. Only where the source tells it apart from
    /// [`MomentKind::Free`].
    FreeCompleted(u32),
    /// A phase began.
    Phase(Phase),
    /// So many steps were complete.
    Step(u32),
    /// A module's call began: its index in [`Track::calls`].
    Enter(u32),
    /// A module's call ended.
    Exit(u32),
    /// A request for so many bytes could not be served.
    Oom(u64),
    /// The device gave a segment: its index in [`Track::spans`].
    SegmentAlloc(u32),
    /// A segment went back to the device.
    SegmentFree(u32),
    /// A part of an expandable segment was given memory: its index in [`Track::spans`].
    SegmentMap(u32),
    /// A part of an expandable segment lost its memory: a span of that extent, which lives no longer.
    SegmentUnmap(u32),
    /// A range of the program's own began: its index in [`Track::ranges`].
    RangeBegin(u32),
    /// A range of the program's own ended.
    RangeEnd(u32),
    /// A memory snapshot was taken.
    Snapshot,
}

impl MomentKind {
    /// Whether a moment of this kind concerns a device, and has its totals.
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

/// A place in [`Track::streams`]. Zero is the default stream, and stands where the source tells of none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamRef(pub u16);

/// A place in [`Track::pools`]. Zero is the default pool, and stands where the source tells of none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolRef(pub u16);

/// A block of memory, from when it was handed out to when it was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where it was.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// What was asked for, where that is known.
    pub requested: Option<u64>,
    /// The moment when it was handed out.
    pub born: u32,
    /// The moment when it was given back, or [`NEVER`].
    pub freed: u32,
    /// The moment when it became free, or [`NEVER`]; [`NEVER`] too where the source does not tell it apart
    /// from `freed`.
    pub completed: u32,
    /// The innermost module call that it was made in: its index in [`Track::calls`], or [`NEVER`].
    pub call: u32,
    /// The innermost module that it was made for, in the forward or in the backward.
    pub module: TextId,
    /// The module that its tensor belongs to, where that was told.
    pub owner: TextId,
    /// Steps that were complete when it was made.
    pub step: u32,
    /// The thread that asked for it; 0 where that is not known.
    pub thread: u32,
    /// The device.
    pub device: u8,
    /// The stream that it was asked for on.
    pub stream: StreamRef,
    /// The pool that it came from.
    pub pool: PoolRef,
    /// From where in the program it was asked for: in [`Track::stacks`].
    pub stack: StackId,
    /// The phase in which it was made.
    pub phase: Phase,
    /// What it was told to be for.
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
    /// Whether it was in use right after the moment with this index.
    pub fn is_live_at(&self, moment: u32) -> bool {
        self.born <= moment && moment < self.freed
    }
}

/// A module's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The module's name.
    pub module: TextId,
    /// The thread that it ran on.
    pub thread: u32,
    /// The call around it, or [`NEVER`].
    pub parent: u32,
    /// The moment when it began.
    pub began: u32,
    /// The moment when it ended, or [`NEVER`].
    pub ended: u32,
}

/// Reserved memory, from when the device gave it to when it went back: a segment, or a mapped part of an
/// expandable one. Where only a part is unmapped, the span ends and what is left of it goes on as others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The moment when it was got.
    pub born: u32,
    /// The moment when it went back, or [`NEVER`].
    pub freed: u32,
    /// The stream that it is for.
    pub stream: StreamRef,
    /// The pool that it is in.
    pub pool: PoolRef,
    /// The device.
    pub device: u8,
    /// Whether it is for small blocks, where that is known.
    pub small: Option<bool>,
    /// Whether it belongs to an expandable segment.
    pub expandable: bool,
}

impl Span {
    /// Whether it was reserved right after the moment with this index.
    pub const fn is_live_at(&self, moment: u32) -> bool {
        self.born <= moment && moment < self.freed
    }
}

/// A request that could not be served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What the device had left.
    pub left: u64,
    /// The stream that it was for.
    pub stream: StreamRef,
    /// The pool that it was for.
    pub pool: PoolRef,
}

/// Something that the program announced: a `record_function`, an NVTX range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedRange {
    /// Its name.
    pub name: TextId,
    /// Where it was announced.
    pub source: RangeSource,
    /// The thread, where that is known, else 0.
    pub thread: u32,
    /// The moment when it began.
    pub began: u32,
    /// The moment when it ended, or [`NEVER`].
    pub ended: u32,
}

/// Where a range was announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RangeSource {
    /// `torch.profiler.record_function`, or the like.
    Annotation = 0,
    /// NVTX.
    Nvtx = 1,
}

/// A device's totals at a moment, and when it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes in blocks.
    pub allocated: u64,
    /// Bytes in segments.
    pub reserved: u64,
    /// In microseconds, where that is known.
    pub time_us: Option<u64>,
}

impl Track {
    /// One row per event, in order.
    pub const fn moments(&self) -> &Moments {
        &self.moments
    }

    /// The blocks, in the order in which they were handed out.
    pub const fn blocks(&self) -> BlockTable<'_> {
        BlockTable { blocks: &self.blocks, moments: &self.moments }
    }

    /// The block with this index.
    pub fn block(&self, index: u32) -> Option<Block> {
        self.blocks().get(index)
    }

    /// The moment with this index.
    pub fn moment(&self, index: u32) -> Option<Moment> {
        self.moments.get(index)
    }

    /// The index of the moment that comes next.
    pub const fn now(&self) -> u32 {
        self.moments.len() as u32
    }

    /// The devices that blocks were on, in ascending order.
    pub fn devices(&self) -> Vec<u8> {
        let mut seen = [false; 256];
        for moment in &self.moments {
            if matches!(moment.kind, MomentKind::Alloc(_)) {
                seen[usize::from(moment.device)] = true;
            }
        }
        (0..=u8::MAX).filter(|&device| seen[usize::from(device)]).collect()
    }

    /// The moments when phases began, with the phase.
    pub fn phases(&self) -> impl Iterator<Item = (u32, Phase)> + '_ {
        (0..).zip(&self.moments).filter_map(|(index, moment)| match moment.kind {
            MomentKind::Phase(phase) => Some((index, phase)),
            _ => None,
        })
    }

    /// Adds a block that is handed out now: its index is returned. Its step follows from the moments before
    /// it.
    pub fn alloc(&mut self, block: &Block, totals: Totals) -> u32 {
        let index = self.blocks.push(&Block { born: self.now(), ..*block });
        self.tell(MomentKind::Alloc(index), block.device, block.stack, totals);
        index
    }

    /// A block is given back now.
    pub fn free(&mut self, index: u32, device: u8, stack: StackId, totals: Totals) -> u32 {
        self.blocks.set_freed(index, self.now());
        self.tell(MomentKind::Free(index), device, stack, totals)
    }

    /// A block that was given back is free now.
    pub fn complete(&mut self, index: u32, device: u8, totals: Totals) -> u32 {
        self.blocks.set_completed(index, self.now());
        self.tell(MomentKind::FreeCompleted(index), device, StackId::NONE, totals)
    }

    /// A block must have been given back by now, though nothing told when: no moment is added.
    pub fn lose(&mut self, index: u32) {
        self.blocks.set_freed(index, self.now());
    }

    /// The device gives memory now: the span's index is returned.
    pub fn reserve(&mut self, span: Span, stack: StackId, totals: Totals) -> u32 {
        let index = self.spans.len() as u32;
        let kind =
            if span.expandable { MomentKind::SegmentMap(index) } else { MomentKind::SegmentAlloc(index) };
        self.spans.push(Span { born: self.now(), freed: NEVER, ..span });
        self.tell(kind, span.device, stack, totals);
        index
    }

    /// A segment goes back to the device now.
    pub fn release(&mut self, index: u32, device: u8, stack: StackId, totals: Totals) {
        let now = self.now();
        if let Some(span) = self.spans.get_mut(index as usize) {
            span.freed = now;
        }
        self.tell(MomentKind::SegmentFree(index), device, stack, totals);
    }

    /// A part of an expandable segment loses its memory now: what is left of the spans that it was part of
    /// goes on as others. `live` has the places of the spans that live, by device and address.
    pub fn unmap(&mut self, live: &mut BTreeMap<(u8, u64), u32>, gone: Span, stack: StackId, totals: Totals) {
        let (device, start, now) = (gone.device, gone.address, self.now());
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
        self.tell(MomentKind::SegmentUnmap(index), device, stack, totals);
    }

    /// A range of the program's own begins now: its index is returned.
    pub fn begin_range(
        &mut self,
        name: TextId,
        source: RangeSource,
        thread: u32,
        time_us: Option<u64>,
    ) -> u32 {
        let index = self.ranges.len() as u32;
        self.ranges.push(NamedRange { name, source, thread, began: self.now(), ended: NEVER });
        self.tell(MomentKind::RangeBegin(index), 0, StackId::NONE, Totals { time_us, ..Totals::default() });
        index
    }

    /// A range of the program's own ends now.
    pub fn end_range(&mut self, index: u32, time_us: Option<u64>) {
        let now = self.now();
        if let Some(range) = self.ranges.get_mut(index as usize) {
            range.ended = now;
        }
        self.tell(MomentKind::RangeEnd(index), 0, StackId::NONE, Totals { time_us, ..Totals::default() });
    }

    /// Adds a moment to which nothing else belongs: its index is returned.
    pub fn tell(&mut self, kind: MomentKind, device: u8, stack: StackId, totals: Totals) -> u32 {
        let Totals { allocated, reserved, time_us } = totals;
        self.moments.push(Moment { kind, device, allocated, reserved, time_us, stack })
    }

    /// What the allocator could have had when the last request on a device failed: what it held, and what the
    /// device had left.
    pub fn limit_at_oom(&self, device: u8) -> Option<u64> {
        let failed = |(place, refusal): (&u32, &Refusal)| {
            let moment = self.moment(*place).filter(|moment| moment.device == device)?;
            matches!(moment.kind, MomentKind::Oom(_)).then(|| moment.reserved.saturating_add(refusal.left))
        };
        self.refusals.iter().rev().find_map(failed)
    }

    /// What was asked for, for a block.
    pub fn set_requested(&mut self, index: u32, requested: Option<u64>) {
        self.blocks.set_requested(index, requested);
    }

    /// What a block is for.
    pub fn set_noted(&mut self, index: u32, noted: Option<Category>) {
        self.blocks.set_noted(index, noted);
    }

    /// The module that a block's tensor belongs to.
    pub fn set_owner(&mut self, index: u32, owner: TextId) {
        self.blocks.set_owner(index, owner);
    }

    /// What a block has, where it turns out to be something else than was thought when it was handed out.
    pub fn set_bytes(&mut self, index: u32, bytes: u64) {
        self.blocks.set_bytes(index, bytes);
    }

    /// The place of a stream's handle among the track's streams.
    pub fn stream(&mut self, handle: u64) -> StreamRef {
        StreamRef(place_of(&mut self.streams, handle))
    }

    /// The place of a pool among the track's pools.
    pub fn pool(&mut self, pool: (u64, u64)) -> PoolRef {
        PoolRef(place_of(&mut self.pools, pool))
    }

    /// Gives back room that was kept for more.
    pub fn shrink(&mut self) {
        self.moments.shrink();
        self.blocks.shrink();
        self.calls.shrink_to_fit();
        self.spans.shrink_to_fit();
        self.ranges.shrink_to_fit();
    }

    /// How many bytes it takes, apart from its texts and stacks.
    pub fn memory(&self) -> usize {
        self.moments.memory()
            + self.blocks.memory()
            + self.calls.capacity() * size_of::<Call>()
            + self.spans.capacity() * size_of::<Span>()
            + self.ranges.capacity() * size_of::<NamedRange>()
    }
}

/// The place of an element among the few that there are; the first where there are too many to count.
fn place_of<T: PartialEq>(known: &mut Vec<T>, element: T) -> u16 {
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
