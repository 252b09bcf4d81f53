//! Addresses: every range that means something to the device, by its start; the addresses that device memory
//! is given; the blocks that an allocator above the device has made of it.

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

/// What an address range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cudaMalloc` and its relatives, with a share of a piece of its own or of the small heap's.
    Device,
    /// `cudaMallocAsync`, from a pool.
    Pooled(u64),
    /// `cudaMallocManaged`: device memory that the host can use.
    Managed,
    /// Physical memory mapped by `cuMemMap`, by its handle.
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
    /// Its first address.
    pub(crate) start: u64,
    /// Bytes that were asked for.
    pub(crate) size: u64,
    /// What it is.
    pub(crate) kind: Kind,
    /// The ordinal of the card it is on, or that was current when it was made.
    pub(crate) card: u32,
    /// A number that no other block ever has.
    pub(crate) id: u64,
}

impl Block {
    /// One past its last address.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.size
    }

    /// Whether it is memory of a card, which the host cannot use.
    pub(crate) fn is_device(&self) -> bool {
        matches!(
            self.kind,
            Kind::Device | Kind::Pooled(_) | Kind::Mapped(_) | Kind::Imported | Kind::Variable
        )
    }

    /// Whether it is page-locked memory of the host.
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

/// The block that an address is in.
pub(crate) fn find(address: u64) -> Option<Block> {
    read().find(address)
}

impl Space {
    /// The block that an address is in.
    pub(crate) fn find(&self, address: u64) -> Option<Block> {
        let (_, block) = self.blocks.range(..=address).next_back()?;
        // A block of no bytes still has its own address.
        (address < block.start + block.size.max(1)).then_some(*block)
    }

    /// Whether a range touches any block.
    pub(crate) fn overlaps(&self, start: u64, size: u64) -> bool {
        self.blocks
            .range(..start.saturating_add(size))
            .next_back()
            .is_some_and(|(_, block)| block.end() > start)
    }

    /// Enters a block.
    pub(crate) fn insert(&mut self, start: u64, size: u64, kind: Kind, card: u32) -> Block {
        self.next_id += 1;
        let block = Block { start, size, kind, card, id: self.next_id };
        self.blocks.insert(start, block);
        block
    }

    /// Takes out the block that starts at an address, if it is of the right kind.
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

    /// The blocks of some kind, in order of address.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.values()
    }

    /// Whether every address of a range belongs to blocks, one after the other without a gap.
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
