//! Address space: every range known to the device, by its start; the addresses given to device memory; and
//! the blocks that an allocator above the device has made of it.

pub(crate) mod addresses;
mod arena;
pub(crate) mod blocks;
pub(crate) mod pages;

use std::{
    collections::BTreeMap,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

pub(crate) use addresses::is_device_address;
pub(crate) use arena::Arena;

use crate::status::{Outcome, Status};

/// Kind of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Memory of `cudaMalloc` and its relatives, in its own piece or in a piece of the small heap.
    Device,
    /// `cudaMallocAsync`, from a pool.
    Pooled(u64),
    /// `cudaMallocManaged`: device memory that the host can use.
    Managed,
    /// Physical memory mapped by `cuMemMap`, with its handle.
    Mapped(u64),
    /// Another process's memory, opened by `cudaIpcOpenMemHandle`.
    Imported,
    /// A variable of a loaded program; part of the context.
    Variable,
    /// `cudaHostAlloc`.
    HostAllocated(u32),
    /// The program's own memory, page-locked by `cudaHostRegister`.
    HostRegistered(u32),
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// First address.
    pub(crate) start: u64,
    /// Bytes requested.
    pub(crate) size: u64,
    /// Kind of memory.
    pub(crate) kind: Kind,
    /// Ordinal of its device, or of the device that was current when it was created.
    pub(crate) card: u32,
    /// Id that no other block ever has.
    pub(crate) id: u64,
}

impl Block {
    /// One past the last address.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.size
    }

    /// Returns `true` for device memory, which the host cannot use.
    pub(crate) fn is_device(&self) -> bool {
        matches!(
            self.kind,
            Kind::Device | Kind::Pooled(_) | Kind::Mapped(_) | Kind::Imported | Kind::Variable
        )
    }

    /// Returns `true` for page-locked host memory.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.kind, Kind::HostAllocated(_) | Kind::HostRegistered(_))
    }
}

#[derive(Default)]
pub(crate) struct Space {
    blocks: BTreeMap<u64, Block>,
    next_id: u64,
}

static SPACE: RwLock<Space> = RwLock::new(Space { blocks: BTreeMap::new(), next_id: 0 });

pub(crate) fn read() -> RwLockReadGuard<'static, Space> {
    SPACE.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write() -> RwLockWriteGuard<'static, Space> {
    SPACE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Finds the block that contains an address.
pub(crate) fn find(address: u64) -> Option<Block> {
    read().find(address)
}

impl Space {
    /// Finds the block that contains an address.
    pub(crate) fn find(&self, address: u64) -> Option<Block> {
        let (_, block) = self.blocks.range(..=address).next_back()?;
        // An empty block still has its own address.
        (address < block.start + block.size.max(1)).then_some(*block)
    }

    /// Returns `true` if a range touches any block.
    pub(crate) fn overlaps(&self, start: u64, size: u64) -> bool {
        self.blocks
            .range(..start.saturating_add(size))
            .next_back()
            .is_some_and(|(_, block)| block.end() > start)
    }

    /// Adds a block.
    pub(crate) fn insert(&mut self, start: u64, size: u64, kind: Kind, card: u32) -> Block {
        self.next_id += 1;
        let block = Block { start, size, kind, card, id: self.next_id };
        self.blocks.insert(start, block);
        block
    }

    /// Removes the block that starts at an address, if `wanted` accepts it.
    pub(crate) fn remove(&mut self, start: u64, wanted: impl FnOnce(&Block) -> bool) -> Outcome<Block> {
        match self.blocks.get(&start) {
            Some(block) if wanted(block) => {
                let block = *block;
                self.blocks.remove(&start);
                Ok(block)
            }
            _ => Err(Status::INVALID_VALUE),
        }
    }

    /// All blocks, in order of address.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values()
    }

    /// Returns `true` if adjacent blocks cover every address of a range.
    pub(crate) fn covers(&self, start: u64, size: u64) -> bool {
        let Some(end) = start.checked_add(size) else { return false };
        let mut at = start;
        while at < end {
            match self.find(at) {
                Some(block) if block.end() > at => at = block.end(),
                _ => return false,
            }
        }
        true
    }
}
