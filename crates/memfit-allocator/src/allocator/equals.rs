//! Choice among free blocks of the same size. PyTorch takes the one in the oldest segment; if the ages are
//! unknown, the device is asked (in a replay: the trace).

use std::collections::VecDeque;

use crate::ages::{Ages, End, MAX_COMPARED_SEGMENTS, RankChange};
use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::device::{Action, Device};
use crate::ids::Address;

impl<D: Device> Allocator<D> {
    /// Returns the block in the oldest segment among the free blocks that have the size of `first`. `first`
    /// is the first of them in its pool, and the answer if the ages of the segments are known.
    pub(super) fn oldest_like(&mut self, first: BlockId, coming: Action) -> BlockId {
        if self.is_surely_oldest(first) {
            return first;
        }
        let block = &self.blocks[first];
        let (mut equals, mut last) = (vec![first], block.rank);
        for (rank, id) in self.pools[block.pool.0 as usize].free.alike_behind(block) {
            // Within a segment, the block with the lowest address comes first.
            if rank != last {
                equals.push(id);
                last = rank;
            }
            if equals.len() == MAX_COMPARED_SEGMENTS {
                break;
            }
        }
        let segments: Vec<u32> = equals.iter().map(|id| self.blocks[*id].segment).collect();
        equals[self.first_of(&equals, &segments, coming, End::Oldest)]
    }

    /// Returns `true` if the known ages prove that a block is in the oldest of all segments with a free block
    /// of its size. Called at each allocation of a trace that begins in the middle.
    fn is_surely_oldest(&mut self, first: BlockId) -> bool {
        let block = &self.blocks[first];
        if !self.ages.is_unknown(block.segment) {
            return true;
        }
        let mut behind = self.pools[block.pool.0 as usize].free.alike_behind(block);
        let Some((last, _)) = behind.next_back() else { return true };
        let Some(surely_from) = self.ages.surely_younger_from(block.segment, last) else { return false };
        let is_younger = |id: BlockId| self.ages.is_older(block.segment, self.blocks[id].segment);
        let not_sure = self.pools[block.pool.0 as usize].free.alike_behind(block);
        not_sure.take_while(|(rank, _)| *rank < surely_from).all(|(_, id)| is_younger(id))
    }

    /// Restores the known ages after the state was restored.
    pub(crate) fn recall_ages(&mut self, before: Ages) {
        self.ages.recall(before);
        for pool in &mut self.pools {
            pool.free.sort(&mut self.blocks, |segment| self.ages.rank(segment));
        }
    }

    /// Removes the segment that is released first from a list in pool order or reverse pool order.
    pub(super) fn take_first(&mut self, segments: &mut VecDeque<BlockId>, end: End) -> Option<BlockId> {
        let first = *segments.front()?;
        if !self.ages.is_unknown(self.blocks[first].segment) {
            return segments.pop_front();
        }
        let alike = segments.iter().take_while(|id| self.are_alike(first, **id));
        let equals: Vec<BlockId> = alike.take(MAX_COMPARED_SEGMENTS).copied().collect();
        let numbers: Vec<u32> = equals.iter().map(|id| self.blocks[*id].segment).collect();
        segments.remove(self.first_of(&equals, &numbers, Action::SegmentFree, end))
    }

    fn are_alike(&self, first: BlockId, second: BlockId) -> bool {
        let (first, second) = (&self.blocks[first], &self.blocks[second]);
        (first.size, first.stream) == (second.size, second.stream) && self.ages.is_unknown(second.segment)
    }

    /// Position of the block that comes first: the only possible one, otherwise the device's answer,
    /// otherwise the first in the list.
    fn first_of(&mut self, equals: &[BlockId], segments: &[u32], coming: Action, end: End) -> usize {
        if equals.len() == 1 {
            return 0;
        }
        let possible = self.ages.possible(segments, end);
        if let [only] = possible[..] {
            return only;
        }
        let addresses: Vec<Address> =
            possible.iter().map(|place| Address(self.blocks[equals[*place]].address)).collect();
        let Some(told) = self.device.choose_among_equals(coming, &addresses) else {
            return possible.first().copied().unwrap_or_default();
        };
        let changed = self.ages.learn(segments, possible[told], end);
        self.take_ranks(changed, equals[possible[told]]);
        possible[told]
    }

    /// Re-sorts free blocks after the relative age of the segment of `one` became known.
    fn take_ranks(&mut self, changed: RankChange, one: BlockId) {
        let free = &mut self.pools[self.blocks[one].pool.0 as usize].free;
        match changed {
            RankChange::None => {}
            RankChange::One(segment) => {
                let rank = self.ages.rank(segment);
                let mut next = Some(one);
                while let Some(id) = next {
                    free.move_to(&mut self.blocks[id], rank);
                    next = self.blocks[id].next;
                }
                next = self.blocks[one].previous;
                while let Some(id) = next {
                    free.move_to(&mut self.blocks[id], rank);
                    next = self.blocks[id].previous;
                }
            }
            RankChange::Many => free.sort(&mut self.blocks, |segment| self.ages.rank(segment)),
        }
    }
}
