//! Use of blocks in a run, by which two runs are compared.

use std::collections::BTreeMap;

use memfit_recording::{Block, NEVER, Track};

/// Blocks that a process's allocator handed out during a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockUse {
    /// Number of allocations.
    blocks: u64,
    /// Their bytes in total.
    bytes: u64,
    /// Maximum number of blocks in use at the same time, by size in bytes.
    peak_counts: BTreeMap<u64, u64>,
}

impl BlockUse {
    /// Computes the block use of each process, sorted independently of process ids.
    pub(crate) fn by_process(tracks: &[Track]) -> Vec<Self> {
        let mut all: Vec<Self> =
            tracks.iter().map(|track| Self::from_blocks(track.blocks().iter())).collect();
        all.sort_unstable();
        all
    }

    fn from_blocks(blocks: impl Iterator<Item = Block>) -> Self {
        let mut block_use = Self::default();
        // Frees come before allocations of the same moment.
        let mut changes: Vec<(u32, bool, u64)> = Vec::new();
        for block in blocks {
            block_use.blocks += 1;
            block_use.bytes += block.bytes;
            changes.push((block.born, true, block.bytes));
            if block.freed != NEVER {
                changes.push((block.freed, false, block.bytes));
            }
        }
        changes.sort_unstable();
        let mut in_use: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, allocated, size) in changes {
            let count = in_use.entry(size).or_default();
            *count = if allocated { *count + 1 } else { count.saturating_sub(1) };
            let peak = block_use.peak_counts.entry(size).or_default();
            *peak = (*peak).max(*count);
        }
        block_use
    }

    /// Returns `true` if two runs allocated the same number of blocks and of bytes.
    pub(crate) fn same_totals(first: &[Self], second: &[Self]) -> bool {
        let totals = |all: &[Self]| all.iter().map(|one| (one.blocks, one.bytes)).collect::<Vec<_>>();
        totals(first) == totals(second)
    }

    /// Returns `true` if two runs had the same maximum number of blocks of each size in use at the same time.
    /// The number of allocations may differ: more passes need no more memory.
    pub(crate) fn same_peak_counts(first: &[Self], second: &[Self]) -> bool {
        first.iter().map(|one| &one.peak_counts).eq(second.iter().map(|one| &one.peak_counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks, each with its bytes and the moments at which it was allocated and freed.
    fn block_use(blocks: &[(u64, u32, u32)]) -> Vec<BlockUse> {
        let block =
            |&(bytes, born, freed): &(u64, u32, u32)| Block { bytes, born, freed, ..Block::default() };
        vec![BlockUse::from_blocks(blocks.iter().map(block))]
    }

    #[test]
    fn more_passes_have_the_same_peak_counts() {
        let one = block_use(&[(512, 0, NEVER), (1024, 1, 2), (1024, 2, 3)]);
        let more = block_use(&[(512, 0, NEVER), (1024, 1, 2), (1024, 2, 3), (1024, 4, 5)]);
        assert!(BlockUse::same_peak_counts(&one, &more) && !BlockUse::same_totals(&one, &more));
    }

    #[test]
    fn kept_blocks_and_other_sizes_change_the_peak_counts() {
        let one = block_use(&[(1024, 1, 2), (1024, 2, 3)]);
        for other in [&[(1024, 1, NEVER), (1024, 2, 3)][..], &[(1024, 1, 2), (1536, 2, 3)]] {
            assert!(!BlockUse::same_peak_counts(&one, &block_use(other)));
        }
        let processes = [one.clone(), one.clone()].concat();
        assert!(!BlockUse::same_peak_counts(&one, &processes), "another process");
    }
}
