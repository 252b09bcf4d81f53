//! Release of cached memory to the device: garbage collection, oversize blocks, everything.

use std::collections::VecDeque;

use crate::ages::End;
use crate::allocator::{Allocator, LARGE, Request, SMALL};
use crate::block::{BlockId, PoolIndex};
use crate::device::{Action, Device};
use crate::error::PoolError;
use crate::ids::{Address, PoolId};

/// Position of a pool in PyTorch's hash table, which multiplies by 2^64 over the golden ratio and takes the
/// upper bits. Their number depends on the table's size, so that two close positions may be in reverse order.
const fn place_in_table(owner: PoolId) -> u64 {
    let key = if owner.0 == 0 { owner.1 } else { owner.0 };
    key.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl<D: Device> Allocator<D> {
    /// `torch.cuda.empty_cache()`.
    pub fn empty_cache(&mut self) {
        self.release_cached();
    }

    /// Releases the cached memory of a private pool without users.
    pub fn empty_pool(&mut self, owner: PoolId) -> Result<(), PoolError> {
        let private = self.private.get(&owner).ok_or(PoolError::NoSuchPool(owner))?;
        if private.is_freeable() {
            self.free_events_of(|pool| pool == owner);
            self.release_private(owner);
        }
        Ok(())
    }

    /// Returns `true` if garbage collection is enabled, which needs the ages of cached blocks.
    pub(super) fn collects_garbage(&self) -> bool {
        self.settings.garbage_collection_threshold > 0.0 && self.settings.arms_collection(self.release)
    }

    /// Releases unused large blocks, the longest unused first, until the memory is below the threshold.
    pub(super) fn collect_garbage(&mut self) {
        let allowed = self.allowed.unwrap_or_default();
        let threshold = (self.settings.garbage_collection_threshold * allowed as f64) as u64;
        if self.held <= threshold {
            return;
        }
        let target = self.held - threshold;
        let searches = self.pools[LARGE.0 as usize].searches;
        let mut whole: Vec<(BlockId, u64)> = self.pools[LARGE.0 as usize]
            .free
            .iter()
            .filter(|id| !self.blocks[*id].is_split() && self.blocks[*id].reservation.is_none())
            .map(|id| (id, searches - self.blocks[id].idle_since))
            .collect();
        let mut total_age: u64 = whole.iter().map(|(_, age)| *age).sum();
        let mut reclaimed = 0;
        while reclaimed < target && !whole.is_empty() {
            let average = total_age as f64 / whole.len() as f64;
            // Blocks older than the mean age are all released, even beyond the target, so that the collection
            // is not needed again at once.
            let (stay, go): (Vec<_>, Vec<_>) =
                whole.into_iter().partition(|(_, age)| (*age as f64) < average);
            whole = stay;
            if go.is_empty() {
                break;
            }
            reclaimed += go.iter().map(|(id, _)| self.blocks[*id].size).sum::<u64>();
            total_age -= go.iter().map(|(_, age)| age).sum::<u64>();
            self.release_oldest_first(go.into_iter().map(|(id, _)| id).collect());
        }
    }

    /// With a limit on splitting, releases one oversize block that is large enough, or the largest ones until
    /// they are enough together. Returns whether they are; released blocks stay released either way.
    pub(super) fn release_oversize(&mut self, request: &Request) -> bool {
        if !self.settings.limits_splits() {
            return false;
        }
        let limit = self.settings.max_split_size;
        let wanted = request.rounded.max(limit);
        let free = &self.pools[request.pool.0 as usize].free;
        let expandable = |id: &BlockId| self.blocks[*id].reservation.is_some();
        let one = free.at_least(request.stream, wanted).next().filter(|id| !expandable(id));
        if let Some(one) = one {
            let one = self.oldest_like(one, Action::SegmentFree);
            self.release_segment(one);
            return true;
        }
        let largest_first = free.below(request.stream, wanted);
        let oversize = largest_first.take_while(|id| self.blocks[*id].size >= limit);
        let mut left: VecDeque<BlockId> = oversize.filter(|id| !expandable(id)).collect();
        let mut released = 0;
        while released < wanted
            && let Some(id) = self.take_first(&mut left, End::Youngest)
        {
            released += self.blocks[id].size;
            self.release_segment(id);
        }
        released >= wanted
    }

    /// Releases all unused memory, after waiting for blocks in use on other streams.
    pub(super) fn release_cached(&mut self) {
        if self.captures.is_empty() {
            self.synchronize_and_free_events();
            self.release_pool_blocks(LARGE);
            self.release_pool_blocks(SMALL);
        }
        let mut freeable: Vec<PoolId> =
            self.private.iter().filter(|(_, private)| private.is_freeable()).map(|(id, _)| *id).collect();
        freeable.sort_by_key(|owner| place_in_table(*owner));
        for owner in freeable {
            self.release_private(owner);
        }
    }

    fn release_private(&mut self, owner: PoolId) {
        let Some(private) = self.private.get(&owner) else { return };
        let (small, large) = (private.small, private.large);
        self.release_pool_blocks(small);
        self.release_pool_blocks(large);
        if self.private.get(&owner).is_some_and(|private| private.segments == 0) {
            self.forget_pool(owner);
        }
    }

    /// Releases unsplit segments in pool order, then the whole pages of expandable ones.
    fn release_pool_blocks(&mut self, pool: PoolIndex) {
        let free: Vec<BlockId> = self.pools[pool.0 as usize].free.iter().collect();
        let (expandable, plain): (Vec<_>, Vec<_>) =
            free.into_iter().partition(|id| self.blocks[*id].reservation.is_some());
        self.release_oldest_first(plain.into_iter().filter(|id| !self.blocks[*id].is_split()).collect());
        for id in expandable {
            self.unmap(id);
        }
    }

    /// Releases segments in pool order.
    fn release_oldest_first(&mut self, mut segments: VecDeque<BlockId>) {
        while let Some(id) = self.take_first(&mut segments, End::Oldest) {
            self.release_segment(id);
        }
    }

    fn release_segment(&mut self, id: BlockId) {
        let (address, size, pool) = (self.blocks[id].address, self.blocks[id].size, self.blocks[id].pool);
        if self.blocks[id].is_split() {
            return;
        }
        self.stats.num_device_free += 1;
        self.trace(Action::SegmentFree, id, size);
        self.device.free(Address(address), size);
        self.held -= size;
        if let Some(private) = self.private_pool_of(pool) {
            private.segments = private.segments.saturating_sub(1);
        }
        let small = self.is_small(pool);
        self.stats.segment.take(small, 1);
        self.stats.reserved_bytes.take(small, size);
        if size >= self.settings.max_split_size {
            self.stats.oversize_segments.take(1);
        }
        self.unlist(id);
        self.blocks.remove(id);
    }
}
