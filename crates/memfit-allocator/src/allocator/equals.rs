//! Blocks of one size in segments of which nobody knows which is the oldest: the device may be able to tell.

use std::collections::VecDeque;

use crate::ages::{End, MOST_TOLD_APART};
use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::device::{Action, Device};
use crate::ids::Address;

impl<D: Device> Allocator<D> {
    /// The free block that comes first among those of one size: the first in its pool, where segments' ages are known.
    pub(super) fn oldest_like(&mut self, first: BlockId, coming: Action) -> BlockId {
        let block = &self.blocks[first];
        if !self.ages.is_unknown(block.segment) {
            return first;
        }
        let (mut equals, mut segments): (Vec<BlockId>, Vec<u32>) = (Vec::new(), Vec::new());
        let alike = self.pools[block.pool.0 as usize].free.alike(block);
        for (segment, id) in alike.take_while(|(segment, _)| self.ages.is_unknown(*segment)) {
            // Within a segment the lowest comes first.
            if segments.last() != Some(&segment) {
                equals.push(id);
                segments.push(segment);
            }
            if equals.len() == MOST_TOLD_APART {
                break;
            }
        }
        equals[self.first_of(&equals, &segments, coming, End::Oldest)]
    }

    /// Takes the segment that is given back first out of a list that is in the order of its pool, or in the opposite one.
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

    /// The place of the one that comes first of blocks in these segments: the only one that can, else what the device says, else the first in the list.
    fn first_of(&mut self, equals: &[BlockId], segments: &[u32], coming: Action, end: End) -> usize {
        if equals.len() == 1 {
            return 0;
        }
        if let Some(only) = self.ages.only(segments, end) {
            return only;
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
        self.ages.learn(segments, possible[told], end);
        possible[told]
    }
}
