//! Lock-free test for known contents near an address.
//!
//! Almost every launch writes memory with no known contents. A counting filter over address granules detects
//! that with one load; the store is searched only if the filter says "perhaps".

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use super::store::Cover;

/// Granule size as a power of two: PyTorch's blocks, and so most tensors, start at multiples of it.
const GRANULE_BITS: u32 = 9;
const SLOT_BITS: u32 = 16;
/// Maximum granules of a range to test one by one.
const MAX_GRANULES_TESTED: u64 = 64;

/// Number of known pieces that overlap each granule; granules share slots.
pub(super) struct Filter {
    slots: [AtomicU16; 1 << SLOT_BITS],
}

impl Filter {
    /// Creates a filter with nothing known.
    #[expect(clippy::large_stack_arrays, reason = "it is the initial value of a static")]
    pub(super) const fn new() -> Self {
        Self { slots: [const { AtomicU16::new(0) }; 1 << SLOT_BITS] }
    }

    /// Returns `false` if nothing is known about the granule of this address.
    #[inline]
    pub(super) fn perhaps(&self, address: u64) -> bool {
        self.slot(address >> GRANULE_BITS).load(Relaxed) != 0
    }

    /// Returns `false` if nothing is known about this range.
    pub(super) fn perhaps_within(&self, address: u64, length: u64) -> bool {
        if length == 0 {
            return false;
        }
        let (first, last) = (address >> GRANULE_BITS, address.saturating_add(length - 1) >> GRANULE_BITS);
        // Searching the store costs no more than testing many granules.
        last - first >= MAX_GRANULES_TESTED
            || (first..=last).any(|granule| self.slot(granule).load(Relaxed) != 0)
    }

    #[inline]
    fn slot(&self, granule: u64) -> &AtomicU16 {
        // The low bits distinguish neighbours; segments lie megabytes apart, so fold the rest in.
        let mixed = granule ^ (granule >> SLOT_BITS).wrapping_mul(0x9e37);
        &self.slots[mixed as usize & ((1 << SLOT_BITS) - 1)]
    }

    fn each(&self, address: u64, length: usize, change: impl Fn(u16) -> Option<u16>) {
        if length == 0 {
            return;
        }
        for granule in address >> GRANULE_BITS..=(address + length as u64 - 1) >> GRANULE_BITS {
            // Called under the store's lock: no other thread changes a slot between the load and the store.
            let slot = self.slot(granule);
            if let Some(count) = change(slot.load(Relaxed)) {
                slot.store(count, Relaxed);
            }
        }
    }
}

impl Cover for Filter {
    fn add(&self, address: u64, length: usize) {
        self.each(address, length, |count| count.checked_add(1));
    }

    fn remove(&self, address: u64, length: usize) {
        // A slot that ever overflowed stays at "perhaps".
        self.each(address, length, |count| if count == u16::MAX { None } else { count.checked_sub(1) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_every_granule_of_what_was_added_until_it_is_removed() {
        let filter = Filter::new();
        let base = 0x7f12_3400_0000;
        assert!(!filter.perhaps(base));
        filter.add(base + 500, 1024);
        filter.add(base + 700, 8);
        for offset in [0, 511, 512, 1023, 1523] {
            assert!(filter.perhaps(base + offset), "{offset}");
        }
        assert!(!filter.perhaps(base + 2048));
        assert!(filter.perhaps_within(base - 4096, 4097));
        assert!(!filter.perhaps_within(base - 4096, 4096));
        filter.remove(base + 500, 1024);
        assert!(!filter.perhaps(base + 100));
        assert!(filter.perhaps(base + 700), "the other piece is still there");
        filter.remove(base + 700, 8);
        assert!(!filter.perhaps(base + 700));
    }

    #[test]
    fn a_full_slot_never_says_no_again() {
        let filter = Filter::new();
        for _ in 0..=u16::MAX {
            filter.add(4096, 1);
        }
        for _ in 0..=u16::MAX {
            filter.remove(4096, 1);
        }
        assert!(filter.perhaps(4096));
    }
}
