//! Small allocations share the driver's pieces: `cudaMalloc` of a few bytes does not cost 2 MiB each time.

use super::{GRANULARITY, arena::Arena};

/// Requests up to this size share a piece; larger ones get pieces of their own.
pub(crate) const LARGEST: u64 = 1 << 20;
/// What `cudaMalloc` aligns to.
pub(crate) const ALIGNMENT: u64 = 512;

/// The shared pieces of one card.
#[derive(Debug, Default)]
pub(crate) struct SmallHeap {
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    free: Arena,
    in_use: u64,
}

/// What a request of `size` bytes takes of a piece.
pub(crate) fn rounded(size: u64) -> u64 {
    size.max(1).next_multiple_of(ALIGNMENT)
}

impl SmallHeap {
    /// Takes room from a piece that has it.
    pub(crate) fn take(&mut self, size: u64) -> Option<u64> {
        let size = rounded(size);
        self.pieces.iter_mut().find_map(|piece| {
            let address = piece.free.take(size, ALIGNMENT)?;
            piece.in_use += size;
            Some(address)
        })
    }

    /// Adds a piece of [`GRANULARITY`] bytes.
    pub(crate) fn add(&mut self, start: u64) {
        let mut free = Arena::default();
        free.add(start, GRANULARITY);
        self.pieces.push(Piece { start, free, in_use: 0 });
    }

    /// Gives room back. A piece that is empty then leaves the heap, and its start is returned.
    pub(crate) fn give_back(&mut self, address: u64, size: u64) -> Option<u64> {
        let size = rounded(size);
        let index = self
            .pieces
            .iter()
            .position(|piece| (piece.start..piece.start + GRANULARITY).contains(&address))?;
        let piece = &mut self.pieces[index];
        piece.free.give_back(address, size);
        piece.in_use -= size;
        (piece.in_use == 0).then(|| self.pieces.swap_remove(index).start)
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
        assert_eq!(heap.take(LARGEST), Some(blocks[1]));
        assert_eq!(heap.give_back(blocks[1], LARGEST), None);
        assert_eq!(heap.give_back(blocks[0], 1), Some(GRANULARITY));
        assert!(heap.take(1).is_none());
    }
}
