//! Memory for pixels that goes back to the system when it is let go.
//!
//! What the C library frees may stay in its heaps: those of threads keep up to tens of megabytes each, which
//! no budget sees. So large buffers are mapped by themselves.

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// A buffer this large is mapped.
const LARGE: usize = 256 << 10;

/// Bytes that are used again from image to image.
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
    /// What it holds, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.0.len()
    }

    /// What of it stands in no heap, in bytes.
    pub(crate) fn mapped(&self) -> usize {
        match &self.0 {
            Memory::Heap(_) => 0,
            Memory::Mapped(bytes) => bytes.len(),
        }
    }

    /// Its first bytes, whatever stands in them; it grows when it must.
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.0.len() < bytes {
            // What is there is worth nothing, so it need not be moved, and is let go before there is more.
            self.0 = Memory::default();
            // Where a mapping is refused, the heap may still have room, or says that there is none.
            let mapped = if bytes >= LARGE { MmapMut::map_anon(bytes).ok() } else { None };
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
        for (asked, held) in
            [(10, 10), (4, 10), (LARGE, LARGE), (10, LARGE), (LARGE + 5, LARGE + 5), (0, LARGE + 5)]
        {
            let room = buffer.room(asked);
            assert_eq!(room.len(), asked);
            room.fill(7);
            assert_eq!(buffer.capacity(), held);
        }
    }
}
