//! Plays a trace backwards, from the segments at its end to the state in which it began.

use std::collections::{BTreeMap, BTreeSet};

use memfit_recording::{Segment, SegmentBlockState, Snapshot, TraceAction, TraceEvent};

use super::ReplayConditions;
use crate::rounding::{MIN_BLOCK, SMALL_LIMIT, SMALL_SEGMENT, round_size};
use crate::{Address, BlockState, BlockView, PoolId, SegmentView, Stream};

/// Reconstructed state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewound {
    /// Segments by address.
    pub segments: Vec<SegmentView>,
    /// Number of blocks of which only the minimum size is known: they were freed later, and no block was
    /// allocated right after them before.
    pub uncertain: u64,
    /// Number of events that contradict the state after them.
    pub inconsistent: u64,
}

/// Allocated block.
#[derive(Clone, Copy)]
struct UsedBlock {
    size: u64,
    requested: u64,
    pending: bool,
    /// `true` if the size is exact, `false` if it is the minimum.
    exact: bool,
}

/// Reserved memory: a segment, or a mapped range of one.
#[derive(Clone, Copy)]
struct ReservedRange {
    size: u64,
    stream: u64,
    small: bool,
    pool: (u64, u64),
    expandable: bool,
}

/// Returns `true` if a range can exist on a device. Values of a damaged file must not overflow.
pub(super) const fn is_possible(address: u64, size: u64) -> bool {
    address < 1 << 60 && size < 1 << 60
}

#[derive(Default)]
struct State {
    held: BTreeMap<u64, ReservedRange>,
    used: BTreeMap<u64, UsedBlock>,
    inconsistent: u64,
}

/// Reconstructs the state of a device right before one of its events.
pub fn rewind(snapshot: &Snapshot, device: usize, given: &ReplayConditions, before: usize) -> Rewound {
    let trace = snapshot.trace(device);
    let classes = Classes::from_snapshot(snapshot, device, given);
    let mut state = State::at_end(snapshot, device);
    for (place, event) in trace.iter().enumerate().skip(before).rev() {
        state.undo(event, place, snapshot, given, &classes);
    }
    state.settle_tails(&trace[before..], given);
    let uncertain = state.used.values().filter(|used| !used.exact).count() as u64;
    Rewound { segments: state.views(), uncertain, inconsistent: state.inconsistent }
}

/// Classes of requests that ranges of expandable segments served. The trace does not contain them for ranges
/// that are gone at the end.
#[derive(Default)]
struct Classes {
    /// Allocations by address and event, with whether they were small. Collected only if the trace unmaps.
    handed_out: BTreeMap<(u64, usize), (u64, bool)>,
    /// Pools of expandable segments at the end, by stream, block class and address.
    pools: BTreeMap<(u64, bool, u64), (u64, u64)>,
    /// Maximum address space of an expandable segment.
    reach: u64,
}

impl Classes {
    fn from_snapshot(snapshot: &Snapshot, device: usize, given: &ReplayConditions) -> Self {
        let trace = snapshot.trace(device);
        let reach = given.capacity.saturating_add(given.capacity / 8);
        let mut classes = Self { reach, ..Self::default() };
        if !trace.iter().any(|event| event.action == TraceAction::SegmentUnmap) {
            return classes;
        }
        for segment in snapshot.segments.iter().filter(|segment| segment.device as usize == device) {
            if segment.expandable {
                classes.pools.insert((segment.stream, segment.small, segment.address), segment.pool);
            }
        }
        for (place, event) in trace.iter().enumerate().filter(|(_, event)| event.action == TraceAction::Alloc)
        {
            let stream = snapshot.streams[usize::from(event.stream)];
            classes.handed_out.insert((event.address, place), (stream, event.size <= SMALL_LIMIT));
        }
        classes
    }

    /// Class of the range that the event at `place` unmaps: that of the last block allocated from it, or else
    /// derived from its size. The pages of large blocks are much larger, so a range whose size is a
    /// multiple of theirs rarely consists of small pages.
    fn class_of_range(
        &self,
        event: &TraceEvent,
        place: usize,
        stream: u64,
        large_page: u64,
    ) -> (bool, (u64, u64)) {
        let range = (event.address, 0)..(event.address + event.size, 0);
        let before =
            self.handed_out.range(range).filter(|((_, when), class)| *when < place && class.0 == stream);
        let last = before.max_by_key(|((_, when), _)| *when).map(|(_, (_, small))| *small);
        let small = last.unwrap_or(!event.size.is_multiple_of(large_page));
        (small, self.pool_near(stream, small, event.address))
    }

    /// Pool of the nearest segment that may be the same: a pool has one reservation for each stream and block
    /// class while its address space lasts.
    fn pool_near(&self, stream: u64, small: bool, address: u64) -> (u64, u64) {
        let below = self.pools.range((stream, small, 0)..=(stream, small, address)).next_back();
        let above = self.pools.range((stream, small, address)..=(stream, small, u64::MAX)).next();
        let near = below.into_iter().chain(above).map(|((_, _, at), pool)| (at.abs_diff(address), *pool));
        let nearest =
            near.filter(|(distance, _)| *distance < self.reach).min_by_key(|(distance, _)| *distance);
        nearest.map(|(_, pool)| pool).unwrap_or_default()
    }
}

impl State {
    fn at_end(snapshot: &Snapshot, device: usize) -> Self {
        let mut state = Self::default();
        let own = |segment: &&Segment| {
            segment.device as usize == device && is_possible(segment.address, segment.size)
        };
        for segment in snapshot.segments.iter().filter(own) {
            let held = ReservedRange {
                size: segment.size,
                stream: segment.stream,
                small: segment.small,
                pool: segment.pool,
                expandable: segment.expandable,
            };
            state.held.insert(segment.address, held);
            for block in snapshot.blocks_of(segment) {
                if block.state != SegmentBlockState::Inactive {
                    let pending = block.state == SegmentBlockState::Pending;
                    let used =
                        UsedBlock { size: block.size, requested: block.requested, pending, exact: true };
                    state.used.insert(block.address, used);
                }
            }
        }
        state
    }

    fn undo(
        &mut self,
        event: &TraceEvent,
        place: usize,
        snapshot: &Snapshot,
        given: &ReplayConditions,
        classes: &Classes,
    ) {
        let TraceEvent { address, size, .. } = *event;
        if !is_possible(address, size) {
            self.inconsistent += 1;
            return;
        }
        let stream = snapshot.streams[usize::from(event.stream)];
        let fits = match event.action {
            TraceAction::Alloc => self.used.remove(&address).is_some(),
            TraceAction::FreeRequested => match self.used.get_mut(&address) {
                Some(used) => {
                    used.pending = false;
                    true
                }
                None => false,
            },
            TraceAction::FreeCompleted => {
                let least = round_size(size, &given.settings);
                let used = UsedBlock { size: least, requested: size, pending: true, exact: false };
                self.used.insert(address, used).is_none()
            }
            TraceAction::SegmentAlloc => self.held.remove(&address).is_some_and(|held| held.size == size),
            TraceAction::SegmentFree => {
                let small = size == SMALL_SEGMENT;
                let pool = event.pool_index().map_or((0, 0), |pool| snapshot.pools[pool]);
                self.held
                    .insert(address, ReservedRange { size, stream, small, pool, expandable: false })
                    .is_none()
            }
            TraceAction::SegmentMap => self.unmap(address, size),
            TraceAction::SegmentUnmap => {
                let (small, pool) =
                    classes.class_of_range(event, place, stream, given.settings.large_segment_size);
                let pool = event.pool_index().map_or(pool, |pool| snapshot.pools[pool]);
                self.map(address, ReservedRange { size, stream, small, pool, expandable: true });
                true
            }
            _ => true,
        };
        self.inconsistent += u64::from(!fits);
    }

    /// Adds a range and merges it with adjacent ones.
    fn map(&mut self, address: u64, range: ReservedRange) {
        let (mut start, mut joined) = (address, range);
        let joins = |other: &ReservedRange| {
            other.expandable && (other.stream, other.small) == (range.stream, range.small)
        };
        if let Some((&before, held)) = self.held.range(..address).next_back()
            && before + held.size == address
            && joins(held)
        {
            start = before;
            joined.size += held.size;
            self.held.remove(&before);
        }
        if let Some(held) = self.held.get(&(address + range.size)).filter(|held| joins(held)).copied() {
            joined.size += held.size;
            self.held.remove(&(address + range.size));
        }
        self.held.insert(start, joined);
    }

    /// Removes a range from the one that contains it.
    fn unmap(&mut self, address: u64, size: u64) -> bool {
        let Some((&start, &held)) = self.held.range(..=address).next_back() else { return false };
        let (end, whole_end) = (address + size, start + held.size);
        if !held.expandable || end > whole_end {
            return false;
        }
        self.held.remove(&start);
        if start < address {
            self.held.insert(start, ReservedRange { size: address - start, ..held });
        }
        if end < whole_end {
            self.held.insert(end, ReservedRange { size: whole_end - end, ..held });
        }
        true
    }

    /// Determines the remainders after large blocks, which may have kept up to 1 MiB unsplit. The large pool
    /// has no free blocks of that size, so a gap of up to 1 MiB is such a remainder; in a wider gap, the
    /// first block allocated in it shows where the gap begins.
    fn settle_tails(&mut self, trace: &[TraceEvent], given: &ReplayConditions) {
        let mut open = BTreeMap::new();
        let starts: Vec<u64> = self.used.keys().copied().collect();
        for (place, &address) in starts.iter().enumerate() {
            let used = self.used[&address];
            if used.exact {
                continue;
            }
            let Some((&start, held)) = self.held.range(..=address).next_back() else { continue };
            let end = start + held.size;
            let next = starts.get(place + 1).map_or(end, |next| (*next).min(end));
            let gap = next.saturating_sub(address + used.size);
            let unsplit = held.small || held.expandable;
            let oversize = used.size >= given.settings.max_split_size;
            let settled = if gap == 0 || unsplit {
                Some(used.size)
            } else if gap <= SMALL_LIMIT || oversize {
                Some(used.size + gap)
            } else {
                open.insert(address, (address + used.size, next));
                None
            };
            if let Some(size) = settled {
                self.used.insert(address, UsedBlock { size, exact: true, ..used });
            }
        }
        self.settle_by_neighbours(trace, open);
    }

    fn settle_by_neighbours(&mut self, trace: &[TraceEvent], mut open: BTreeMap<u64, (u64, u64)>) {
        // Gaps by start address.
        let mut gaps: BTreeMap<u64, u64> = open.iter().map(|(block, (start, _))| (*start, *block)).collect();
        for event in trace {
            if open.is_empty() {
                break;
            }
            match event.action {
                TraceAction::FreeCompleted => {
                    if let Some((start, _)) = open.remove(&event.address) {
                        gaps.remove(&start);
                    }
                }
                TraceAction::Alloc => {
                    let Some((&start, &block)) = gaps.range(..=event.address).next_back() else { continue };
                    let (_, end) = open[&block];
                    if event.address >= end {
                        continue;
                    }
                    open.remove(&block);
                    gaps.remove(&start);
                    let tail = event.address - start;
                    if tail <= SMALL_LIMIT
                        && tail.is_multiple_of(MIN_BLOCK)
                        && let Some(used) = self.used.get_mut(&block)
                    {
                        used.size += tail;
                        used.exact = true;
                    }
                }
                _ => {}
            }
        }
    }

    fn views(&self) -> Vec<SegmentView> {
        self.held.iter().map(|(start, held)| self.view(*start, held)).collect()
    }

    fn view(&self, start: u64, held: &ReservedRange) -> SegmentView {
        let end = start + held.size;
        let mut blocks = Vec::new();
        let mut next = start;
        let mut push = |from: u64, to: u64, requested: u64, state: BlockState| {
            if from < to {
                blocks.push(BlockView { address: Address(from), size: to - from, requested, state });
            }
        };
        for (&address, used) in self.used.range(start..end) {
            push(next, address, 0, BlockState::Free);
            let state = if used.pending { BlockState::Pending } else { BlockState::Allocated };
            next = (address + used.size).min(end);
            push(address.max(next.min(address)), next, used.requested, state);
        }
        push(next, end, 0, BlockState::Free);
        SegmentView {
            address: Address(start),
            size: held.size,
            stream: Stream(held.stream),
            small: held.small,
            pool: PoolId(held.pool.0, held.pool.1),
            expandable: held.expandable,
            blocks,
        }
    }
}

/// Addresses of all blocks of a state that wait for other streams.
pub(super) fn pending(segments: &[SegmentView]) -> BTreeSet<Address> {
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    blocks.filter(|block| block.state == BlockState::Pending).map(|block| block.address).collect()
}
