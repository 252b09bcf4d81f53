//! Pixel buffers whose memory returns to the operating system when they are dropped.
//!
//! Memory freed to the C library may stay in its heaps, up to tens of megabytes in each thread's, which no
//! budget accounts for. Large buffers are therefore mapped separately.

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// Size from which a buffer is mapped.
const MIN_MAPPED_BYTES: usize = 256 << 10;

/// Byte buffer that is reused between images.
#[derive(Default)]
pub(crate) struct Buffer(Memory);

enum Memory {
    Heap(Vec<u8>),
    Mapped(MmapMut),
}

impl Default for Memory {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }
}

impl Buffer {
    /// Capacity in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.0.len()
    }

    /// Mapped capacity in bytes, which is not on the heap.
    pub(crate) fn mapped(&self) -> usize {
        match &self.0 {
            Memory::Heap(_) => 0,
            Memory::Mapped(bytes) => bytes.len(),
        }
    }

    /// Returns the first `bytes` bytes with unspecified content; grows if necessary.
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.0.len() < bytes {
            // The old content is not needed, so it is freed before a larger buffer is allocated.
            self.0 = Memory::default();
            // If mapping fails, the heap is tried, whose allocator reports the failure.
            let mapped = if bytes >= MIN_MAPPED_BYTES { MmapMut::map_anon(bytes).ok() } else { None };
            self.0 = mapped.map_or_else(|| Memory::Heap(vec![0; bytes]), Memory::Mapped);
        }
        &mut self.0[..bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_grows_and_is_used_again() {
        let mut buffer = Buffer::default();
        for (asked, held) in [
            (10, 10),
            (4, 10),
            (MIN_MAPPED_BYTES, MIN_MAPPED_BYTES),
            (10, MIN_MAPPED_BYTES),
            (MIN_MAPPED_BYTES + 5, MIN_MAPPED_BYTES + 5),
            (0, MIN_MAPPED_BYTES + 5),
        ] {
            let room = buffer.room(asked);
            assert_eq!(room.len(), asked);
            room.fill(7);
            assert_eq!(buffer.capacity(), held);
        }
    }
}
