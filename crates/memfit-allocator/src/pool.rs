//! Pools of free blocks, in the order in which they are searched.

use std::collections::BTreeMap;

use crate::block::{Block, BlockId, PoolIndex};
use crate::ids::{PoolId, Stream};

/// Free blocks by stream, then size, then the age of their segment, then address.
///
/// PyTorch keeps one set ordered by all of these. One tree for each stream is the same order with shorter keys, since no
/// search crosses streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeBlocks {
    streams: Vec<(Stream, BySize)>,
}

/// Blocks by size, then segment, then address.
type BySize = BTreeMap<(u64, u32, u64), BlockId>;

impl FreeBlocks {
    fn find(&self, stream: Stream) -> Option<&BySize> {
        // There are one or two streams nearly always.
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
        self.find(stream).into_iter().flat_map(move |blocks| blocks.range((size, 0, 0)..)).map(|(_, id)| *id)
    }

    /// Blocks of `stream` with less than `size` bytes, the largest first.
    pub(crate) fn below(&self, stream: Stream, size: u64) -> impl Iterator<Item = BlockId> {
        self.find(stream)
            .into_iter()
            .flat_map(move |blocks| blocks.range(..(size, 0, 0)).rev())
            .map(|(_, id)| *id)
    }

    /// This block and those of the same size behind it in the order of its stream, each with its segment.
    pub(crate) fn alike(&self, block: &Block) -> impl Iterator<Item = (u32, BlockId)> {
        let (first, last) = (key(block), (block.size, u32::MAX, u64::MAX));
        let same_size =
            self.find(block.stream).into_iter().flat_map(move |blocks| blocks.range(first..=last));
        same_size.map(|((_, segment, _), id)| (*segment, *id))
    }

    /// All, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> {
        self.streams.iter().flat_map(|(_, blocks)| blocks.values().copied())
    }
}

const fn key(block: &Block) -> (u64, u32, u64) {
    (block.size, block.segment, block.address)
}

/// One pool: small or large blocks of the default pool or of a private one.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) small: bool,
    pub(crate) owner: PoolId,
    pub(crate) free: FreeBlocks,
    /// Ranges of expandable segments without memory, by stream and address.
    pub(crate) unmapped: BTreeMap<(Stream, u64), BlockId>,
    /// How often the pool was searched while garbage was collected: the clock of its blocks' ages.
    pub(crate) searches: u64,
}

impl Pool {
    pub(crate) fn new(small: bool, owner: PoolId) -> Self {
        Self { small, owner, free: FreeBlocks::default(), unmapped: BTreeMap::new(), searches: 0 }
    }
}

/// A pool of a capture or a `MemPool`.
#[derive(Clone, Debug)]
pub(crate) struct PrivatePool {
    pub(crate) small: PoolIndex,
    pub(crate) large: PoolIndex,
    /// Graphs and `MemPool`s that hold it.
    pub(crate) users: u32,
    /// Segments got for it and not given back.
    pub(crate) segments: u64,
    pub(crate) options: PoolOptions,
}

impl PrivatePool {
    /// Nothing holds it, so its cached segments may go back to the device.
    pub(crate) const fn is_freeable(&self) -> bool {
        self.users == 0
    }
}

/// What a `MemPool` may be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolOptions {
    /// Requests of the default pool that would fail are served from it (2.9 and later).
    pub use_on_oom: bool,
    /// Its segments are never split (2.10 and later).
    pub no_split: bool,
    /// It brings its own allocator.
    pub own_allocator: bool,
}
