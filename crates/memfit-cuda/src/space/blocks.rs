//! Size of the memory behind an address: the blocks that PyTorch's allocator has handed out, as the watcher
//! reports them; otherwise the device's own allocation.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use memfit_kernels::memory::Reach;

use super::is_device_address;

/// Blocks by first address.
#[derive(Debug, Default)]
struct Blocks(BTreeMap<u64, u64>);

static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks(BTreeMap::new()));

fn lock() -> std::sync::MutexGuard<'static, Blocks> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a block handed out by an allocator; it replaces any blocks there.
pub(crate) fn record_block(address: u64, size: u64) {
    lock().insert(address, size);
}

/// Removes the blocks in freed device memory.
pub(crate) fn remove_blocks(address: u64, size: u64) {
    lock().clear(address, size);
}

/// Returns the memory that an address leads to; `None` if it is not a device address.
pub(crate) fn reach(address: u64) -> Option<Reach> {
    if !is_device_address(address) {
        return None;
    }
    lock().find(address).or_else(|| {
        let block = super::find(address).filter(super::Block::is_device)?;
        Some(Reach { bytes: block.end() - address, first: block.start == address })
    })
}

impl Blocks {
    fn insert(&mut self, address: u64, size: u64) {
        // Usually the same block is handed out again.
        if let Some(known) = self.0.get_mut(&address)
            && *known >= size
        {
            *known = size;
            return;
        }
        self.clear(address, size);
        self.0.insert(address, size);
    }

    fn clear(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        while let Some((&start, _)) = self.0.range(address..end).next() {
            self.0.remove(&start);
        }
        if let Some((start, length)) = self.0.range_mut(..address).next_back()
            && start.saturating_add(*length) > address
        {
            *length = address - start;
        }
    }

    fn find(&self, address: u64) -> Option<Reach> {
        let (start, length) = self.0.range(..=address).next_back()?;
        let bytes = start.saturating_add(*length).checked_sub(address).filter(|bytes| *bytes > 0)?;
        Some(Reach { bytes, first: *start == address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_the_end_of_its_block() {
        let mut blocks = Blocks::default();
        blocks.insert(1000, 100);
        blocks.insert(1100, 50);
        let reach = |bytes, first| Some(Reach { bytes, first });
        assert_eq!(blocks.find(1000), reach(100, true));
        assert_eq!(blocks.find(1040), reach(60, false));
        assert_eq!(blocks.find(1100), reach(50, true));
        assert_eq!((blocks.find(999), blocks.find(1150)), (None, None));
    }

    #[test]
    fn a_new_block_takes_the_place_of_what_was_there() {
        let mut blocks = Blocks::default();
        blocks.insert(1000, 100);
        blocks.insert(1000, 40);
        assert_eq!(blocks.find(1000).map(|reach| reach.bytes), Some(40), "a block was split");
        assert_eq!(blocks.find(1060), None);
        blocks.insert(1020, 200);
        assert_eq!(blocks.find(1000).map(|reach| reach.bytes), Some(20));
        blocks.insert(900, 1000);
        assert_eq!(
            blocks.find(1020).map(|reach| (reach.bytes, reach.first)),
            Some((880, false)),
            "they were merged"
        );
        blocks.clear(0, 10_000);
        assert_eq!(blocks.find(1020), None);
    }
}
