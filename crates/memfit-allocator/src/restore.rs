//! Restoring an allocator from a state of a snapshot, or one reconstructed from it.

use std::collections::BTreeMap;

use crate::ages::Ages;
use crate::allocator::{Allocator, PoolOptions};
use crate::block::{Block, BlockId, PoolIndex, ReservationId};
use crate::device::Device;
use crate::error::RestoreError;
use crate::ids::{Address, PoolId, Stream};
use crate::release::Release;
use crate::rounding::SMALL_SEGMENT;
use crate::settings::Settings;
use crate::state::{BlockState, BlockView, SegmentView};

/// Facts about a segment's past that a state does not contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// Lowest address at which an expandable segment ever had memory.
    pub lowest: Option<Address>,
    /// Order of allocation: a smaller value was allocated earlier, and segments without one before all
    /// others.
    pub allocated_at: Option<u64>,
}

impl<D: Device> Allocator<D> {
    /// Restores an allocator from a state. Blocks that wait for other streams are treated as allocated; the
    /// caller frees them when their events are done.
    ///
    /// Mapped ranges of expandable segments of one stream and pool form one reservation, up to its size. It
    /// begins at the lowest range, or at a lower address given by `past`.
    pub fn restore(
        device: D,
        settings: Settings,
        release: Release,
        segments: &[SegmentView],
        past: impl Fn(&SegmentView) -> Past,
    ) -> Result<Self, RestoreError> {
        let allocator = Self::new(device, settings, release);
        let mut restorer = Restorer { allocator, free: Vec::new(), growing: BTreeMap::new() };
        let mut segments: Vec<&SegmentView> = segments.iter().collect();
        segments.sort_by_key(|segment| segment.address);
        let numbers = restorer.number(&segments, &past);
        let mut end = 0;
        for segment in segments {
            if segment.address.0 < end {
                return Err(RestoreError::Overlap(segment.address));
            }
            end = checked_end(segment)?;
            let pool = restorer.pool(segment);
            if segment.expandable {
                restorer.run(segment, pool, past(segment).lowest);
            } else {
                let number = numbers.get(&segment.address).copied().unwrap_or_default();
                restorer.segment(segment, pool, number);
            }
        }
        Ok(restorer.finish())
    }
}

/// End of a segment, if its blocks fill it.
fn checked_end(segment: &SegmentView) -> Result<u64, RestoreError> {
    let mut next = segment.address.0;
    for block in &segment.blocks {
        if block.address.0 != next || block.size == 0 {
            return Err(RestoreError::Size(block.address));
        }
        next = next.checked_add(block.size).ok_or(RestoreError::Size(block.address))?;
    }
    let blocks = next - segment.address.0;
    if blocks != segment.size || segment.size == 0 {
        return Err(RestoreError::NotFilled { address: segment.address, blocks, segment: segment.size });
    }
    Ok(next)
}

/// Class of requests that an expandable segment serves.
type RequestClass = (Stream, bool, PoolId);

/// Expandable segment under construction.
#[derive(Clone, Copy)]
struct Growing {
    reservation: ReservationId,
    /// End address.
    end: u64,
    /// End of the blocks so far, and the last block.
    filled: u64,
    last: Option<BlockId>,
}

struct Restorer<D> {
    allocator: Allocator<D>,
    /// Free blocks, which are added to their pool once all their neighbours are known.
    free: Vec<BlockId>,
    growing: BTreeMap<RequestClass, Growing>,
}

impl<D: Device> Restorer<D> {
    fn pool(&mut self, segment: &SegmentView) -> PoolIndex {
        if segment.pool == PoolId::DEFAULT {
            return PoolIndex(u32::from(!segment.small));
        }
        // The users of the pool are unknown; it is assumed to be in use.
        let private = self.allocator.make_pool(segment.pool, PoolOptions::default());
        private.users = private.users.max(1);
        private.segments += 1;
        if segment.small { private.small } else { private.large }
    }

    /// Numbers segments in order of allocation, for releases that use it. Segments with an unknown past come
    /// first, by address.
    fn number(
        &mut self,
        segments: &[&SegmentView],
        past: impl Fn(&SegmentView) -> Past,
    ) -> BTreeMap<Address, u32> {
        if !self.allocator.release.prefers_older_segments() {
            return BTreeMap::new();
        }
        let plain = segments.iter().filter(|segment| !segment.expandable);
        let mut order: Vec<(Option<u64>, Address)> =
            plain.map(|segment| (past(segment).allocated_at, segment.address)).collect();
        order.sort_unstable();
        let unknown = order.iter().take_while(|(allocated_at, _)| allocated_at.is_none());
        self.allocator.ages = Ages::unknown(unknown.map(|(_, address)| address.0).collect());
        let numbers: BTreeMap<Address, u32> =
            order.into_iter().map(|(_, address)| address).zip(1..).collect();
        self.allocator.segments_got = numbers.len() as u32;
        numbers
    }

    fn segment(&mut self, segment: &SegmentView, pool: PoolIndex, number: u32) {
        let mut last = None;
        for view in &segment.blocks {
            let id = self.block(segment, view, pool, None, last);
            self.allocator.blocks[id].segment = number;
            last = Some(id);
        }
        let allocator = &mut self.allocator;
        allocator.held += segment.size;
        allocator.stats.segment.add(segment.small, 1);
        allocator.stats.reserved_bytes.add(segment.small, segment.size);
        if segment.size >= allocator.settings.max_split_size {
            allocator.stats.oversize_segments.add(1);
        }
    }

    /// Adds a mapped range of an expandable segment, and the unmapped range before it.
    fn run(&mut self, segment: &SegmentView, pool: PoolIndex, lowest: Option<Address>) {
        let served = (segment.stream, segment.small, segment.pool);
        let fits = |growing: &Growing| segment.address.0 + segment.size <= growing.end;
        let known = self.growing.get(&served).copied().filter(fits);
        let mut growing = known.unwrap_or_else(|| {
            self.close(served, pool);
            self.reserve(segment, lowest)
        });
        if growing.filled < segment.address.0 {
            growing.last = Some(self.unmapped(served, pool, &growing, segment.address.0));
        }
        for view in &segment.blocks {
            growing.last = Some(self.block(segment, view, pool, Some(growing.reservation), growing.last));
        }
        growing.filled = segment.address.0 + segment.size;
        self.growing.insert(served, growing);
        self.allocator.held += segment.size;
        self.allocator.stats.reserved_bytes.add(segment.small, segment.size);
    }

    fn reserve(&mut self, segment: &SegmentView, lowest: Option<Address>) -> Growing {
        let page = if segment.small { SMALL_SEGMENT } else { self.allocator.settings.large_segment_size };
        let total = self.allocator.device().total();
        let size = (total + total / 8).max(segment.size).next_multiple_of(page);
        let base = lowest.map_or(segment.address.0, |lowest| lowest.0.min(segment.address.0));
        let base = if segment.address.0 + segment.size > base + size { segment.address.0 } else { base };
        let reservation = self.allocator.add_reservation(base, size, page);
        Growing { reservation, end: base + size, filled: base, last: None }
    }

    fn unmapped(&mut self, served: RequestClass, pool: PoolIndex, growing: &Growing, to: u64) -> BlockId {
        let mut block = Block::new(growing.filled, to - growing.filled, served.0, pool);
        block.mapped = false;
        block.reservation = Some(growing.reservation);
        let id = self.insert(block, growing.last);
        self.free.push(id);
        id
    }

    /// Adds the unmapped rest of an expandable segment.
    fn close(&mut self, served: RequestClass, pool: PoolIndex) {
        if let Some(growing) = self.growing.remove(&served).filter(|growing| growing.filled < growing.end) {
            self.unmapped(served, pool, &growing, growing.end);
        }
    }

    fn insert(&mut self, block: Block, after: Option<BlockId>) -> BlockId {
        match after {
            Some(after) => self.allocator.blocks.insert_after(after, block),
            None => self.allocator.blocks.insert(block),
        }
    }

    fn block(
        &mut self,
        segment: &SegmentView,
        view: &BlockView,
        pool: PoolIndex,
        reservation: Option<ReservationId>,
        after: Option<BlockId>,
    ) -> BlockId {
        let mut block = Block::new(view.address.0, view.size, segment.stream, pool);
        block.requested = view.requested;
        block.allocated = view.state != BlockState::Free;
        block.reservation = reservation;
        let allocated = block.allocated;
        let id = self.insert(block, after);
        if allocated {
            let allocator = &mut self.allocator;
            allocator.allocated.insert(view.address.0, id);
            let stats = &mut allocator.stats;
            stats.allocation.add(segment.small, 1);
            stats.allocated_bytes.add(segment.small, view.size);
            stats.active.add(segment.small, 1);
            stats.active_bytes.add(segment.small, view.size);
            stats.requested_bytes.add(segment.small, view.requested);
            if view.size >= allocator.settings.max_split_size {
                stats.oversize_allocations.add(1);
            }
        } else {
            self.free.push(id);
        }
        id
    }

    fn finish(mut self) -> Allocator<D> {
        let open: Vec<RequestClass> = self.growing.keys().copied().collect();
        for served in open {
            let (_, small, owner) = served;
            let private = self.allocator.private.get(&owner);
            let pool = private.map_or(PoolIndex(u32::from(!small)), |private| {
                if small { private.small } else { private.large }
            });
            self.close(served, pool);
        }
        for id in self.free {
            self.allocator.list(id);
            let block = &self.allocator.blocks[id];
            if block.mapped && block.reservation.is_none() && block.is_split() {
                let (size, small) = (block.size, self.allocator.pools[block.pool.0 as usize].small);
                self.allocator.stats.inactive_split.add(small, 1);
                self.allocator.stats.inactive_split_bytes.add(small, size);
            }
        }
        self.allocator.stats.reset_peaks();
        self.allocator
    }
}
