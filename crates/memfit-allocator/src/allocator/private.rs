//! Private memory pools of CUDA graphs and `MemPool`s, and the captures that direct requests to them.

use crate::allocator::{Allocator, Request};
use crate::block::{BlockId, PoolIndex};
use crate::device::Device;
use crate::error::PoolError;
use crate::ids::{PoolId, Stream};
use crate::pool::{Pool, PoolOptions, PrivatePool};

/// Requests that a capture redirects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFilter {
    /// All requests.
    Everything,
    /// Requests on one stream.
    Stream(Stream),
}

impl CaptureFilter {
    fn holds(self, stream: Stream) -> bool {
        match self {
            Self::Everything => true,
            Self::Stream(own) => own == stream,
        }
    }
}

impl<D: Device> Allocator<D> {
    /// Adds a user to a private pool, which is created if necessary (`torch.cuda.MemPool(...)`).
    pub fn hold_pool(&mut self, owner: PoolId, options: PoolOptions) -> Result<(), PoolError> {
        if options.use_on_oom && !self.release.has_pools_on_oom() {
            return Err(PoolError::Unsupported { release: self.release, what: "pools used on OOM" });
        }
        if options.no_split && !self.release.has_unsplit_pools() {
            return Err(PoolError::Unsupported { release: self.release, what: "pools without splits" });
        }
        if options.use_on_oom && !self.pools_on_oom.contains(&owner) {
            self.pools_on_oom.push(owner);
        }
        self.make_pool(owner, options).users += 1;
        Ok(())
    }

    pub(crate) fn make_pool(&mut self, owner: PoolId, options: PoolOptions) -> &mut PrivatePool {
        let pools = &mut self.pools;
        self.private.entry(owner).or_insert_with(|| {
            let small = PoolIndex(pools.len() as u32);
            pools.push(Pool::new(true, owner));
            pools.push(Pool::new(false, owner));
            PrivatePool { small, large: PoolIndex(small.0 + 1), users: 0, segments: 0, options }
        })
    }

    /// Begins to direct requests to a private pool, and adds a user to it.
    pub fn begin_capture(&mut self, owner: PoolId, filter: CaptureFilter) -> Result<(), PoolError> {
        if self.captures.iter().any(|(recording, _)| *recording == owner) {
            return Err(PoolError::AlreadyRecording(owner));
        }
        self.make_pool(owner, PoolOptions::default()).users += 1;
        self.captures.push((owner, filter));
        Ok(())
    }

    /// Stops directing requests to it.
    pub fn end_capture(&mut self, owner: PoolId) -> Result<(), PoolError> {
        let place = self.captures.iter().position(|(recording, _)| *recording == owner);
        self.captures.remove(place.ok_or(PoolError::NotRecording(owner))?);
        Ok(())
    }

    /// Removes a user from a private pool. Without users, its cached memory may be released.
    pub fn release_pool(&mut self, owner: PoolId) -> Result<(), PoolError> {
        let private = self.private.get_mut(&owner).ok_or(PoolError::NoSuchPool(owner))?;
        private.users = private.users.checked_sub(1).ok_or(PoolError::NotInUse(owner))?;
        if private.users == 0 {
            self.pools_on_oom.retain(|pool| *pool != owner);
        }
        Ok(())
    }

    /// Pool that the active captures select for a stream.
    pub(super) fn capturing_pool(&self, stream: Stream) -> PoolId {
        let claims = |capture: &&(PoolId, CaptureFilter)| capture.1.holds(stream);
        let capture = if self.release.last_capture_wins() {
            self.captures.iter().rev().find(claims)
        } else {
            self.captures.iter().find(claims)
        };
        capture.map_or(PoolId::DEFAULT, |capture| capture.0)
    }

    /// Takes a cached block from a pool marked `use_on_oom` for a request that would fail otherwise.
    pub(super) fn take_from_pools_on_oom(&mut self, request: &mut Request) -> Option<BlockId> {
        if self.pools[request.pool.0 as usize].owner != PoolId::DEFAULT {
            return None;
        }
        let pools: Vec<PoolIndex> =
            self.pools_on_oom.iter().filter_map(|owner| self.pool_for(*owner, request.rounded)).collect();
        for pool in pools {
            let there = Request { pool, ..*request };
            if let Some(block) = self.take_cached(&there) {
                *request = there;
                return Some(block);
            }
        }
        None
    }

    pub(super) fn forget_pool(&mut self, owner: PoolId) {
        self.private.remove(&owner);
        self.pools_on_oom.retain(|pool| *pool != owner);
    }
}
