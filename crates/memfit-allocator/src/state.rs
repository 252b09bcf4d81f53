//! State of the allocator in the form of a snapshot, and consistency checks.

use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::device::Device;
use crate::ids::{Address, PoolId, Stream};

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Allocated.
    Allocated,
    /// Freed, but still in use on other streams.
    Pending,
    /// Free.
    Free,
}

/// Block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    /// Start address.
    pub address: Address,
    /// Size in bytes.
    pub size: u64,
    /// Requested bytes; stale if the block is free.
    pub requested: u64,
    /// State.
    pub state: BlockState,
}

/// Segment, or a mapped range of an expandable one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// Start address.
    pub address: Address,
    /// Size in bytes.
    pub size: u64,
    /// Stream.
    pub stream: Stream,
    /// `true` if it serves small requests.
    pub small: bool,
    /// Pool.
    pub pool: PoolId,
    /// `true` if it is expandable.
    pub expandable: bool,
    /// Blocks by address, without gaps.
    pub blocks: Vec<BlockView>,
}

/// Inconsistency in the allocator's data structures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Inconsistency(String);

impl<D: Device> Allocator<D> {
    /// All segments by address.
    pub fn segments(&self) -> Vec<SegmentView> {
        let heads = self.known_blocks().into_iter().filter(|id| {
            let block = &self.blocks[*id];
            block.mapped && block.previous.is_none_or(|previous| !self.blocks[previous].mapped)
        });
        let mut segments: Vec<SegmentView> = heads.map(|id| self.segment_from(id)).collect();
        segments.sort_unstable_by_key(|segment| segment.address);
        segments
    }

    /// Size of the block allocated at an address.
    pub fn size_of(&self, address: Address) -> Option<u64> {
        self.allocated.get(&address.0).map(|id| self.blocks[*id].size)
    }

    fn known_blocks(&self) -> Vec<BlockId> {
        let free = self.pools.iter().flat_map(|pool| pool.free.iter());
        free.chain(self.allocated.values().copied()).chain(self.pending.iter().copied()).collect()
    }

    fn segment_from(&self, head: BlockId) -> SegmentView {
        let first = &self.blocks[head];
        let pool = &self.pools[first.pool.0 as usize];
        let mut blocks = Vec::new();
        let mut next = Some(head);
        while let Some(block) = next.map(|id| &self.blocks[id]).filter(|block| block.mapped) {
            let state = if block.allocated {
                BlockState::Allocated
            } else if block.is_idle() {
                BlockState::Free
            } else {
                BlockState::Pending
            };
            blocks.push(BlockView {
                address: Address(block.address),
                size: block.size,
                requested: block.requested,
                state,
            });
            next = block.next;
        }
        SegmentView {
            address: Address(first.address),
            size: blocks.iter().map(|block| block.size).sum(),
            stream: first.stream,
            small: pool.small,
            pool: pool.owner,
            expandable: first.reservation.is_some(),
            blocks,
        }
    }

    /// Checks that blocks tile their segments, that lists contain the right blocks, and that statistics are
    /// the sums of the blocks.
    pub fn check(&self) -> Result<(), Inconsistency> {
        let mut end = 0;
        let mut sums = Sums::default();
        for segment in self.segments() {
            ensure(segment.address.0 >= end, || {
                format!("the segment at {} overlaps another", segment.address)
            })?;
            let mut next = segment.address.0;
            let mut was_free = false;
            for block in &segment.blocks {
                ensure(block.address.0 == next && block.size > 0, || {
                    format!("a gap before {}", block.address)
                })?;
                ensure(block.size.is_multiple_of(512), || {
                    format!("{} is not made of 512 bytes", block.address)
                })?;
                let free = block.state == BlockState::Free;
                ensure(!(free && was_free), || format!("{} was not merged", block.address))?;
                was_free = free;
                next = block.address.0 + block.size;
                sums.count(&segment, block);
            }
            end = next;
            sums.reserved += segment.size;
        }
        let stats = &self.stats;
        for (name, counted, kept) in [
            ("allocation", sums.allocations, stats.allocation.all.current),
            ("allocated bytes", sums.allocated as i64, stats.allocated_bytes.all.current),
            ("active", sums.active, stats.active.all.current),
            ("active bytes", sums.active_bytes as i64, stats.active_bytes.all.current),
            ("requested bytes", sums.requested as i64, stats.requested_bytes.all.current),
            ("inactive split", sums.splits, stats.inactive_split.all.current),
            ("inactive split bytes", sums.split_bytes as i64, stats.inactive_split_bytes.all.current),
            ("reserved bytes", sums.reserved as i64, stats.reserved_bytes.all.current),
            ("held bytes", sums.reserved as i64, self.held as i64),
        ] {
            ensure(counted == kept, || format!("{name}: {counted} are there, {kept} are booked"))?;
        }
        for figure in
            [&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split]
        {
            let parts = figure.small_pool.current + figure.large_pool.current;
            ensure(figure.all.current == parts, || "small and large do not add up".to_owned())?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Sums {
    allocations: i64,
    allocated: u64,
    active: i64,
    active_bytes: u64,
    requested: u64,
    splits: i64,
    split_bytes: u64,
    reserved: u64,
}

impl Sums {
    fn count(&mut self, segment: &SegmentView, block: &BlockView) {
        if block.state == BlockState::Allocated {
            self.allocations += 1;
            self.allocated += block.size;
        }
        if block.state != BlockState::Free {
            self.active += 1;
            self.active_bytes += block.size;
            self.requested += block.requested;
        } else if !segment.expandable && segment.blocks.len() > 1 {
            self.splits += 1;
            self.split_bytes += block.size;
        }
    }
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), Inconsistency> {
    if holds { Ok(()) } else { Err(Inconsistency(problem())) }
}
