//! Heap for small allocations: they share the driver's pieces, so `cudaMalloc` of a few bytes does not cost 2
//! MiB.

use std::collections::{BTreeMap, BTreeSet};

use super::GRANULARITY;
use crate::space::Arena;

/// Largest request that shares a piece; larger ones get pieces of their own.
pub(crate) const MAX_SMALL_BYTES: u64 = 1 << 20;
/// Alignment of `cudaMalloc`.
pub(crate) const ALIGNMENT: u64 = 512;

/// Shared pieces of one device.
#[derive(Debug, Default)]
pub(crate) struct SmallHeap {
    /// By their start.
    pieces: BTreeMap<u64, Piece>,
    /// Pieces with free space. Among millions of small blocks, nearly all pieces are full.
    with_room: BTreeSet<u64>,
}

#[derive(Debug)]
struct Piece {
    free: Arena,
    in_use: u64,
}

/// Bytes of a piece that a request of `size` bytes occupies.
pub(crate) fn rounded(size: u64) -> u64 {
    size.max(1).next_multiple_of(ALIGNMENT)
}

impl SmallHeap {
    /// Allocates from a piece with free space.
    pub(crate) fn take(&mut self, size: u64) -> Option<u64> {
        let size = rounded(size);
        let (start, address) = self.with_room.iter().find_map(|start| {
            let address = self.pieces.get_mut(start)?.free.take(size, ALIGNMENT)?;
            Some((*start, address))
        })?;
        let piece = self.pieces.get_mut(&start)?;
        piece.in_use += size;
        if piece.in_use == GRANULARITY {
            self.with_room.remove(&start);
        }
        Some(address)
    }

    /// Adds a piece of [`GRANULARITY`] bytes.
    pub(crate) fn add(&mut self, start: u64) {
        let mut free = Arena::default();
        free.add(start, GRANULARITY);
        self.pieces.insert(start, Piece { free, in_use: 0 });
        self.with_room.insert(start);
    }

    /// Frees an allocation. If its piece becomes empty, removes it from the heap and returns its start.
    pub(crate) fn give_back(&mut self, address: u64, size: u64) -> Option<u64> {
        let size = rounded(size);
        let (&start, piece) = self.pieces.range_mut(..=address).next_back()?;
        piece.free.give_back(address, size);
        piece.in_use -= size;
        let empty = piece.in_use == 0;
        if empty {
            self.pieces.remove(&start);
            self.with_room.remove(&start);
        } else {
            self.with_room.insert(start);
        }
        empty.then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_blocks_share_a_piece_until_the_last_is_gone() {
        let mut heap = SmallHeap::default();
        assert!(heap.take(1).is_none());
        heap.add(GRANULARITY);
        let blocks: Vec<u64> = (0..4096).map(|_| heap.take(1).unwrap()).collect();
        assert!(blocks.iter().all(|block| block % ALIGNMENT == 0));
        assert!(heap.take(1).is_none(), "full");
        for &block in &blocks[1..] {
            assert_eq!(heap.give_back(block, 1), None);
        }
        assert_eq!(heap.take(MAX_SMALL_BYTES), Some(blocks[1]));
        assert_eq!(heap.give_back(blocks[1], MAX_SMALL_BYTES), None);
        assert_eq!(heap.give_back(blocks[0], 1), Some(GRANULARITY));
        assert!(heap.take(1).is_none());
    }
}
