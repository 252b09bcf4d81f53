//! Blocks: parts of segments, linked to their neighbours, in one array.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::ages::Rank;
use crate::ids::Stream;

/// Index of a block in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockId(u32);

/// Index of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolIndex(pub(crate) u32);

/// Index of an expandable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReservationId(pub(crate) u32);

#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Requested bytes; stale after the block is free.
    pub(crate) requested: u64,
    pub(crate) stream: Stream,
    /// Number of the block's segment in order of allocation, for releases that use it; otherwise zero.
    /// Expandable segments have none.
    pub(crate) segment: u32,
    /// Sort key of a free block's segment in its pool.
    pub(crate) rank: Rank,
    /// The pool's search count when the block became free.
    pub(crate) idle_since: u64,
    pub(crate) previous: Option<BlockId>,
    pub(crate) next: Option<BlockId>,
    pub(crate) pool: PoolIndex,
    /// Expandable segment of the block, if it has one.
    pub(crate) reservation: Option<ReservationId>,
    /// Number of events of other streams that the block waits for.
    pub(crate) events: u32,
    pub(crate) allocated: bool,
    /// `true` if memory is mapped; `false` only in expandable segments.
    pub(crate) mapped: bool,
    /// `true` if other streams have used the block since its allocation.
    pub(crate) used_elsewhere: bool,
}

impl Block {
    pub(crate) const fn new(address: u64, size: u64, stream: Stream, pool: PoolIndex) -> Self {
        Self {
            address,
            size,
            requested: 0,
            stream,
            segment: 0,
            rank: Rank::FIRST,
            idle_since: 0,
            previous: None,
            next: None,
            pool,
            reservation: None,
            events: 0,
            allocated: false,
            mapped: true,
            used_elsewhere: false,
        }
    }

    pub(crate) const fn is_split(&self) -> bool {
        self.previous.is_some() || self.next.is_some()
    }

    /// Returns `true` if the block is neither allocated nor waiting for a stream.
    pub(crate) const fn is_idle(&self) -> bool {
        !self.allocated && self.events == 0 && !self.used_elsewhere
    }
}

/// Array of blocks with reused indices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    vacant: Vec<BlockId>,
}

impl Blocks {
    pub(crate) fn insert(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.vacant.pop() {
            self.blocks[id.0 as usize] = block;
            return id;
        }
        let id = BlockId(u32::try_from(self.blocks.len()).expect("there are fewer than 2^32 blocks"));
        self.blocks.push(block);
        id
    }

    pub(crate) fn remove(&mut self, id: BlockId) {
        self.vacant.push(id);
    }

    /// Inserts `low` between `id` and its previous block.
    pub(crate) fn insert_before(&mut self, id: BlockId, mut low: Block) -> BlockId {
        low.previous = self[id].previous;
        low.next = Some(id);
        let previous = low.previous;
        let low = self.insert(low);
        if let Some(previous) = previous {
            self[previous].next = Some(low);
        }
        self[id].previous = Some(low);
        low
    }

    /// Inserts `high` between `id` and its next block.
    pub(crate) fn insert_after(&mut self, id: BlockId, mut high: Block) -> BlockId {
        high.previous = Some(id);
        high.next = self[id].next;
        let next = high.next;
        let high = self.insert(high);
        if let Some(next) = next {
            self[next].previous = Some(high);
        }
        self[id].next = Some(high);
        high
    }
}

impl std::ops::Index<BlockId> for Blocks {
    type Output = Block;

    fn index(&self, id: BlockId) -> &Block {
        &self.blocks[id.0 as usize]
    }
}

impl std::ops::IndexMut<BlockId> for Blocks {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id.0 as usize]
    }
}

/// Hash of addresses by one multiplication. They are multiples of 512 chosen by the allocator itself, so
/// nothing better is needed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// Map with addresses as keys.
pub(crate) type ByAddress<T> = HashMap<u64, T, BuildHasherDefault<AddressHasher>>;
