//! Table of blocks and their lifetimes, in some forty bytes each.

use memfit_vocabulary::{Category, Phase};

use super::Moments;
use super::packed::{Addresses, Packed, Sparse};
use crate::{Amendment, Block, NEVER, PoolRef, StreamRef, TextId};

/// Blocks of a track.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocks {
    addresses: Addresses,
    bytes: Packed<9>,
    /// Block size minus requested size, plus one; 0 if the requested size is not known.
    rounding: Packed<0>,
    born: Vec<u32>,
    freed: Vec<u32>,
    /// Index plus one, 0 for never; `calls` is encoded alike.
    completed: Sparse<u32>,
    calls: Sparse<u32>,
    modules: Sparse<u32>,
    owners: Sparse<u32>,
    threads: Sparse<u32>,
    streams: Sparse<u16>,
    pools: Sparse<u16>,
    phases: Vec<u8>,
    /// Category code plus one; 0 for none.
    noted: Vec<u8>,
    changes: ChangeLog,
}

/// Changes to blocks after they were written to a file.
#[derive(Clone, Debug, Default)]
struct ChangeLog {
    /// Number of blocks in the file.
    sealed: u32,
    changes: Vec<BlockChange>,
}

impl PartialEq for ChangeLog {
    fn eq(&self, _: &Self) -> bool {
        // Not part of the table's content.
        true
    }
}

impl Eq for ChangeLog {}

/// Change to a block after it was written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockChange {
    pub(crate) what: Amendment,
    pub(crate) block: u32,
}

impl Blocks {
    /// Number of blocks.
    pub(crate) const fn len(&self) -> usize {
        self.born.len()
    }

    /// Returns `true` if there are no blocks.
    pub(crate) const fn is_empty(&self) -> bool {
        self.born.is_empty()
    }

    /// Adds a block. Its device, stack and step are those of the moment of its allocation.
    pub(crate) fn push(&mut self, block: &Block) -> u32 {
        let row = self.born.len();
        self.addresses.push(block.address);
        self.bytes.push(block.bytes);
        self.rounding.push(encode_rounding(block.bytes, block.requested));
        self.born.push(block.born);
        self.freed.push(block.freed);
        self.completed.set(row, block.completed.wrapping_add(1));
        self.calls.set(row, block.call.wrapping_add(1));
        self.modules.set(row, block.module.0);
        self.owners.set(row, block.owner.0);
        self.threads.set(row, block.thread);
        self.streams.set(row, block.stream.0);
        self.pools.set(row, block.pool.0);
        self.phases.push(block.phase.code());
        self.noted.push(block.noted.map_or(0, |category| category.code() + 1));
        row as u32
    }

    fn get(&self, index: u32, moments: &Moments) -> Option<Block> {
        let row = index as usize;
        let born = *self.born.get(row)?;
        let bytes = self.bytes.get(row);
        Some(Block {
            address: self.addresses.get(row),
            bytes,
            requested: self.rounding.get(row).checked_sub(1).map(|rounding| bytes.saturating_sub(rounding)),
            born,
            freed: self.freed[row],
            completed: self.completed.get(row).wrapping_sub(1),
            call: self.calls.get(row).wrapping_sub(1),
            module: TextId(self.modules.get(row)),
            owner: TextId(self.owners.get(row)),
            step: moments.steps_at(born),
            thread: self.threads.get(row),
            device: moments.device_of(born),
            stream: StreamRef(self.streams.get(row)),
            pool: PoolRef(self.pools.get(row)),
            stack: moments.stack_of(born),
            phase: Phase::from_code(self.phases[row]).unwrap_or(Phase::Other),
            noted: self.noted[row].checked_sub(1).and_then(Category::from_code),
        })
    }
}

impl Blocks {
    /// Address and size of a block.
    pub(crate) fn extent(&self, index: u32) -> Option<(u64, u64)> {
        let row = index as usize;
        (row < self.len()).then(|| (self.addresses.get(row), self.bytes.get(row)))
    }

    fn log_change(&mut self, what: Amendment, block: u32) {
        if block < self.changes.sealed {
            self.changes.changes.push(BlockChange { what, block });
        }
    }

    /// Marks all present blocks as written: later changes to them are logged.
    pub(crate) fn seal(&mut self) {
        self.changes.sealed = self.len() as u32;
    }

    /// Returns the changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<BlockChange> {
        std::mem::take(&mut self.changes.changes)
    }

    /// Number of blocks allocated before a moment.
    pub(crate) fn born_before(&self, moment: u32) -> u32 {
        self.born.partition_point(|born| *born < moment) as u32
    }

    pub(crate) fn freed(&self, index: u32) -> u32 {
        self.freed.get(index as usize).copied().unwrap_or(NEVER)
    }

    pub(crate) fn set_born(&mut self, index: u32, moment: u32) {
        if let Some(born) = self.born.get_mut(index as usize) {
            *born = moment;
        }
    }

    pub(crate) fn set_freed(&mut self, index: u32, moment: u32) {
        self.log_change(Amendment::Freed, index);
        if let Some(freed) = self.freed.get_mut(index as usize) {
            *freed = moment;
        }
    }

    pub(crate) fn set_completed(&mut self, index: u32, moment: u32) {
        if (index as usize) < self.len() {
            self.completed.set(index as usize, moment.wrapping_add(1));
        }
    }

    pub(crate) fn set_bytes(&mut self, index: u32, bytes: u64) {
        let row = index as usize;
        if row < self.len() {
            let asked = self
                .rounding
                .get(row)
                .checked_sub(1)
                .map(|rounding| self.bytes.get(row).saturating_sub(rounding));
            self.bytes.set(row, bytes);
            self.rounding.set(row, encode_rounding(bytes, asked));
        }
    }

    pub(crate) fn set_requested(&mut self, index: u32, requested: Option<u64>) {
        self.log_change(Amendment::Requested, index);
        let row = index as usize;
        let bytes = self.bytes.get(row);
        self.rounding.set(row, encode_rounding(bytes, requested));
    }

    pub(crate) fn set_noted(&mut self, index: u32, noted: Option<Category>) {
        self.log_change(Amendment::Noted, index);
        if let Some(place) = self.noted.get_mut(index as usize) {
            *place = noted.map_or(0, |category| category.code() + 1);
        }
    }

    pub(crate) fn set_owner(&mut self, index: u32, owner: TextId) {
        self.log_change(Amendment::Owner, index);
        if (index as usize) < self.len() {
            self.owners.set(index as usize, owner.0);
        }
    }

    pub(crate) fn noted(&self, index: u32) -> Option<Category> {
        self.noted.get(index as usize)?.checked_sub(1).and_then(Category::from_code)
    }

    pub(crate) fn owner(&self, index: u32) -> TextId {
        TextId(self.owners.get(index as usize))
    }

    pub(crate) fn shrink(&mut self) {
        self.addresses.shrink();
        self.bytes.shrink();
        self.rounding.shrink();
        self.born.shrink_to_fit();
        self.freed.shrink_to_fit();
        self.phases.shrink_to_fit();
        self.noted.shrink_to_fit();
        for column in
            [&mut self.completed, &mut self.calls, &mut self.modules, &mut self.owners, &mut self.threads]
        {
            column.shrink();
        }
        self.streams.shrink();
        self.pools.shrink();
    }

    pub(crate) fn memory(&self) -> usize {
        let sparse = [&self.completed, &self.calls, &self.modules, &self.owners, &self.threads];
        self.addresses.memory()
            + self.bytes.memory()
            + self.rounding.memory()
            + 4 * (self.born.capacity() + self.freed.capacity())
            + sparse.iter().map(|column| column.memory()).sum::<usize>()
            + self.streams.memory()
            + self.pools.memory()
            + self.phases.capacity()
            + self.noted.capacity()
    }
}

/// Encodes a block's rounding: its size minus the requested size, plus one; 0 if that is not known.
fn encode_rounding(bytes: u64, requested: Option<u64>) -> u64 {
    requested.map_or(0, |requested| bytes.saturating_sub(requested).saturating_add(1))
}

/// Read-only view of a track's blocks.
#[derive(Clone, Copy, Debug)]
pub struct BlockTable<'track> {
    pub(crate) blocks: &'track Blocks,
    pub(crate) moments: &'track Moments,
}

impl<'track> BlockTable<'track> {
    /// Number of blocks.
    pub const fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns `true` if there are no blocks.
    pub const fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Block with this index.
    pub fn get(&self, index: u32) -> Option<Block> {
        self.blocks.get(index, self.moments)
    }

    /// All blocks in order of allocation.
    pub const fn iter(&self) -> BlockIter<'track> {
        BlockIter { table: *self, next: 0, end: self.blocks.len() as u32 }
    }
}

/// Iterator over blocks.
#[derive(Clone, Debug)]
pub struct BlockIter<'track> {
    table: BlockTable<'track>,
    next: u32,
    end: u32,
}

impl Iterator for BlockIter<'_> {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        if self.next >= self.end {
            return None;
        }
        self.next += 1;
        self.table.get(self.next - 1)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end - self.next) as usize;
        (left, Some(left))
    }
}

impl DoubleEndedIterator for BlockIter<'_> {
    fn next_back(&mut self) -> Option<Block> {
        if self.next >= self.end {
            return None;
        }
        self.end -= 1;
        self.table.get(self.end)
    }
}

impl ExactSizeIterator for BlockIter<'_> {}

impl<'track> IntoIterator for BlockTable<'track> {
    type Item = Block;
    type IntoIter = BlockIter<'track>;

    fn into_iter(self) -> BlockIter<'track> {
        self.iter()
    }
}

impl<'track> IntoIterator for &BlockTable<'track> {
    type Item = Block;
    type IntoIter = BlockIter<'track>;

    fn into_iter(self) -> BlockIter<'track> {
        self.iter()
    }
}
