//! What the allocators of a run handed out, to compare two runs by.

use std::collections::BTreeMap;

use memfit_recording::{Block, NEVER, Track};

/// Blocks that a process's allocator handed out over a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HandedOut {
    blocks: u64,
    bytes: u64,
    /// Maximum blocks of each size that were in use at once.
    at_once: BTreeMap<u64, u64>,
}

impl HandedOut {
    /// Those of each process, sorted independently of process ids.
    pub(crate) fn by_process(tracks: &[Track]) -> Vec<Self> {
        let mut all: Vec<Self> = tracks.iter().map(|track| Self::of(track.blocks().iter())).collect();
        all.sort_unstable();
        all
    }

    fn of(blocks: impl Iterator<Item = Block>) -> Self {
        let mut handed_out = Self::default();
        // Frees come before allocations of the same moment.
        let mut changes: Vec<(u32, bool, u64)> = Vec::new();
        for block in blocks {
            handed_out.blocks += 1;
            handed_out.bytes += block.bytes;
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
            let most = handed_out.at_once.entry(size).or_default();
            *most = (*most).max(*count);
        }
        handed_out
    }

    /// Returns `true` if two runs handed out as many blocks and bytes.
    pub(crate) fn same_totals(first: &[Self], second: &[Self]) -> bool {
        let totals = |all: &[Self]| all.iter().map(|one| (one.blocks, one.bytes)).collect::<Vec<_>>();
        totals(first) == totals(second)
    }

    /// Returns `true` if two runs had blocks of the same sizes, and as many of each at once. One of them may
    /// have had them more often: more passes need no more memory.
    pub(crate) fn same_at_once(first: &[Self], second: &[Self]) -> bool {
        first.iter().map(|one| &one.at_once).eq(second.iter().map(|one| &one.at_once))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks, each with its bytes and the moments at which it was allocated and freed.
    fn handed_out(blocks: &[(u64, u32, u32)]) -> Vec<HandedOut> {
        let block =
            |&(bytes, born, freed): &(u64, u32, u32)| Block { bytes, born, freed, ..Block::default() };
        vec![HandedOut::of(blocks.iter().map(block))]
    }

    #[test]
    fn more_passes_have_as_many_blocks_at_once() {
        let one = handed_out(&[(512, 0, NEVER), (1024, 1, 2), (1024, 2, 3)]);
        let more = handed_out(&[(512, 0, NEVER), (1024, 1, 2), (1024, 2, 3), (1024, 4, 5)]);
        assert!(HandedOut::same_at_once(&one, &more) && !HandedOut::same_totals(&one, &more));
    }

    #[test]
    fn kept_blocks_and_other_sizes_are_not_the_same_at_once() {
        let one = handed_out(&[(1024, 1, 2), (1024, 2, 3)]);
        for other in [&[(1024, 1, NEVER), (1024, 2, 3)][..], &[(1024, 1, 2), (1536, 2, 3)]] {
            assert!(!HandedOut::same_at_once(&one, &handed_out(other)));
        }
        let processes = [one.clone(), one.clone()].concat();
        assert!(!HandedOut::same_at_once(&one, &processes), "another process");
    }
}
