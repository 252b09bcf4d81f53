//! Blocks of one size in segments of which nobody knows which is the oldest: the device may be able to tell.

use std::collections::VecDeque;

use crate::ages::{Ages, Changed, End, MOST_TOLD_APART};
use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::device::{Action, Device};
use crate::ids::Address;

impl<D: Device> Allocator<D> {
    /// The free block that comes first among those of one size: the first in its pool, where segments' ages
    /// are known.
    pub(super) fn oldest_like(&mut self, first: BlockId, coming: Action) -> BlockId {
        if self.is_surely_oldest(first) {
            return first;
        }
        let block = &self.blocks[first];
        let (mut equals, mut last) = (vec![first], block.rank);
        for (rank, id) in self.pools[block.pool.0 as usize].free.alike_behind(block) {
            // Within a segment the lowest comes first.
            if rank != last {
                equals.push(id);
                last = rank;
            }
            if equals.len() == MOST_TOLD_APART {
                break;
            }
        }
        let segments: Vec<u32> = equals.iter().map(|id| self.blocks[*id].segment).collect();
        equals[self.first_of(&equals, &segments, coming, End::Oldest)]
    }

    /// Whether the first of those of its size in its pool is in the oldest segment of all of them, after all
    /// that is known. A trace that begins in the middle asks at each block of the sizes in question.
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

    /// What came out of the ages of segments before the state was worked out anew.
    pub(crate) fn recall_ages(&mut self, before: Ages) {
        self.ages.recall(before);
        for pool in &mut self.pools {
            pool.free.sort(&mut self.blocks, |segment| self.ages.rank(segment));
        }
    }

    /// Takes the segment that is given back first out of a list that is in the order of its pool, or in the
    /// opposite one.
    pub(super) fn take_first(&mut self, segments: &mut VecDeque<BlockId>, end: End) -> Option<BlockId> {
        let first = *segments.front()?;
        if !self.ages.is_unknown(self.blocks[first].segment) {
            return segments.pop_front();
        }
        let alike = segments.iter().take_while(|id| self.are_alike(first, **id));
        let equals: Vec<BlockId> = alike.take(MOST_TOLD_APART).copied().collect();
        let numbers: Vec<u32> = equals.iter().map(|id| self.blocks[*id].segment).collect();
        segments.remove(self.first_of(&equals, &numbers, Action::SegmentFree, end))
    }

    fn are_alike(&self, first: BlockId, second: BlockId) -> bool {
        let (first, second) = (&self.blocks[first], &self.blocks[second]);
        (first.size, first.stream) == (second.size, second.stream) && self.ages.is_unknown(second.segment)
    }

    /// The place of the one that comes first of blocks in these segments: the only one that can, else what
    /// the device says, else the first in the list.
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
        let Some(told) = self.device.tell_apart(coming, &addresses) else {
            return possible.first().copied().unwrap_or_default();
        };
        let changed = self.ages.learn(segments, possible[told], end);
        self.take_ranks(changed, equals[possible[told]]);
        possible[told]
    }

    /// Puts free blocks where they belong after something came out about the segment of `one`.
    fn take_ranks(&mut self, changed: Changed, one: BlockId) {
        let free = &mut self.pools[self.blocks[one].pool.0 as usize].free;
        match changed {
            Changed::None => {}
            Changed::One(segment) => {
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
            Changed::Many => free.sort(&mut self.blocks, |segment| self.ages.rank(segment)),
        }
    }
}
