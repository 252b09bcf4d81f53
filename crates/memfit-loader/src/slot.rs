//! Caller-owned memory that a batch is written to, sample by sample.

#![allow(unsafe_code, reason = "calls a C decoder, and fills memory that torch owns")]

/// Size of a page of the host: 4 KiB on x86-64, and 4, 16 or 64 KiB on ARM.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: a query without side effects.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Memory range with a fixed address that only one batch is written to.
#[derive(Debug)]
pub struct Slot {
    address: *mut u8,
    length: usize,
}

// SAFETY: the caller of `new` promises that nothing else uses the bytes until the batch is taken or the
// engine is dropped.
unsafe impl Send for Slot {}
// SAFETY: as above; threads write to places that do not overlap, see `part`.
unsafe impl Sync for Slot {}

impl Slot {
    /// # Safety
    ///
    /// `length` bytes at `address` can be written to, and nothing else reads, writes or frees them until the
    /// batch that the slot was given for has been taken, or the engine that it was given to has been
    /// dropped.
    pub unsafe fn new(address: usize, length: usize) -> Self {
        Self { address: std::ptr::with_exposed_provenance_mut(address), length }
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// One sample's bytes; `None` if they would not lie inside.
    ///
    /// # Safety
    ///
    /// No two borrows of the same sample live at the same time.
    #[expect(clippy::mut_from_ref, reason = "samples do not overlap, and each is borrowed once")]
    pub(crate) unsafe fn part(&self, sample: usize, bytes: usize) -> Option<&mut [u8]> {
        let end = sample.checked_add(1)?.checked_mul(bytes)?;
        if end > self.length {
            return None;
        }
        // SAFETY: the bytes lie inside the slot, which can be written to as `new` was promised; the caller
        // promises that they are borrowed once.
        Some(unsafe { std::slice::from_raw_parts_mut(self.address.add(sample * bytes), bytes) })
    }

    /// Moves one sample's bytes to the place of an earlier one.
    ///
    /// # Safety
    ///
    /// Nothing is borrowed from the slot.
    pub(crate) unsafe fn shift(&self, from: usize, to: usize, bytes: usize) {
        debug_assert!(to <= from && (from + 1) * bytes <= self.length, "samples are moved towards the front");
        // SAFETY: both lie inside the slot, and nothing borrows them.
        unsafe { std::ptr::copy(self.address.add(from * bytes), self.address.add(to * bytes), bytes) }
    }
}
