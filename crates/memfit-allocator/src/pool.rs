//! Pools of free blocks in search order.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::ages::Rank;
use crate::block::{Block, BlockId, Blocks, PoolIndex};
use crate::ids::{PoolId, Stream};

/// Free blocks by stream, then size, then the age of their segment, then address.
///
/// PyTorch keeps one set ordered by all of these. One tree for each stream is equivalent with shorter keys,
/// since no search crosses streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeBlocks {
    streams: Vec<(Stream, BySize)>,
}

/// Blocks by size, then the rank of their segment, then address.
type BySize = BTreeMap<(u64, Rank, u64), BlockId>;

impl FreeBlocks {
    fn find(&self, stream: Stream) -> Option<&BySize> {
        // There are usually one or two streams.
        self.streams.iter().find(|(known, _)| *known == stream).map(|(_, blocks)| blocks)
    }

    pub(crate) fn insert(&mut self, block: &Block, id: BlockId) {
        let stream = block.stream;
        let place = self.streams.partition_point(|(known, _)| *known < stream);
        if self.streams.get(place).is_none_or(|(known, _)| *known != stream) {
            self.streams.insert(place, (stream, BySize::new()));
        }
        self.streams[place].1.insert(key(block), id);
    }

    pub(crate) fn remove(&mut self, block: &Block) {
        if let Some((_, blocks)) = self.streams.iter_mut().find(|(known, _)| *known == block.stream) {
            blocks.remove(&key(block));
        }
    }

    /// Blocks of `stream` with at least `size` bytes, the smallest first.
    pub(crate) fn at_least(&self, stream: Stream, size: u64) -> impl Iterator<Item = BlockId> {
        self.find(stream)
            .into_iter()
            .flat_map(move |blocks| blocks.range((size, Rank::FIRST, 0)..))
            .map(|(_, id)| *id)
    }

    /// Blocks of `stream` with less than `size` bytes, the largest first.
    pub(crate) fn below(&self, stream: Stream, size: u64) -> impl Iterator<Item = BlockId> {
        self.find(stream)
            .into_iter()
            .flat_map(move |blocks| blocks.range(..(size, Rank::FIRST, 0)).rev())
            .map(|(_, id)| *id)
    }

    /// Blocks of the same size in segments of unknown age that rank after this block's, each with the rank of
    /// its segment.
    pub(crate) fn alike_behind(&self, block: &Block) -> impl DoubleEndedIterator<Item = (Rank, BlockId)> {
        let own = Bound::Excluded((block.size, block.rank, u64::MAX));
        let known = Bound::Excluded((block.size, Rank::KNOWN, 0));
        let of_stream = self.find(block.stream).filter(|_| block.rank < Rank::KNOWN);
        let same_size = of_stream.into_iter().flat_map(move |blocks| blocks.range((own, known)));
        same_size.map(|((_, rank, _), id)| (*rank, *id))
    }

    /// Moves a block to the position of a new rank, if it is in this pool.
    pub(crate) fn move_to(&mut self, block: &mut Block, rank: Rank) {
        let blocks =
            self.streams.iter_mut().find(|(known, _)| *known == block.stream).map(|(_, blocks)| blocks);
        if let Some(blocks) = blocks
            && let Some(id) = blocks.remove(&key(block))
        {
            block.rank = rank;
            blocks.insert(key(block), id);
        }
    }

    /// Re-sorts all blocks by the current ranks of their segments.
    pub(crate) fn sort(&mut self, all: &mut Blocks, rank: impl Fn(u32) -> Rank) {
        for (_, blocks) in &mut self.streams {
            let moved = std::mem::take(blocks).into_values().map(|id| {
                let block = &mut all[id];
                block.rank = rank(block.segment);
                (key(block), id)
            });
            *blocks = moved.collect();
        }
    }

    /// All blocks in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> {
        self.streams.iter().flat_map(|(_, blocks)| blocks.values().copied())
    }
}

const fn key(block: &Block) -> (u64, Rank, u64) {
    (block.size, block.rank, block.address)
}

/// Pool of small or large blocks, default or private.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) small: bool,
    pub(crate) owner: PoolId,
    pub(crate) free: FreeBlocks,
    /// Unmapped ranges of expandable segments, by stream and address.
    pub(crate) unmapped: BTreeMap<(Stream, u64), BlockId>,
    /// Number of searches while garbage collection is enabled: the clock for the ages of blocks.
    pub(crate) searches: u64,
}

impl Pool {
    pub(crate) fn new(small: bool, owner: PoolId) -> Self {
        Self { small, owner, free: FreeBlocks::default(), unmapped: BTreeMap::new(), searches: 0 }
    }
}

/// Private pool of a capture or a `MemPool`.
#[derive(Clone, Debug)]
pub(crate) struct PrivatePool {
    pub(crate) small: PoolIndex,
    pub(crate) large: PoolIndex,
    /// Number of graphs and `MemPool`s that use it.
    pub(crate) users: u32,
    /// Number of its segments on the device.
    pub(crate) segments: u64,
    pub(crate) options: PoolOptions,
}

impl PrivatePool {
    /// Returns `true` if it has no users, so that its cached segments may be released.
    pub(crate) const fn is_freeable(&self) -> bool {
        self.users == 0
    }
}

/// Options of a `MemPool`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolOptions {
    /// Its cached blocks serve requests of the default pool that would fail otherwise (2.9 and later).
    pub use_on_oom: bool,
    /// Segments are never split (2.10 and later).
    pub no_split: bool,
    /// It has its own allocator.
    pub own_allocator: bool,
}
