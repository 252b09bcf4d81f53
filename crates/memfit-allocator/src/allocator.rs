//! The caching allocator: the order of attempts for a request, splitting and merging of blocks, frees.

mod equals;
mod expand;
mod private;
mod reclaim;
mod streams;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ages::Ages;
use crate::block::{Block, BlockId, Blocks, ByAddress, PoolIndex, ReservationId};
use crate::device::{Action, Device, Entry, Ticket};
use crate::error::{AllocationError, FreeError, OutOfMemory};
use crate::ids::{Address, PoolId, Stream};
pub use crate::pool::PoolOptions;
use crate::pool::{Pool, PrivatePool};
use crate::release::Release;
use crate::rounding::{MIN_BLOCK, SMALL_LIMIT, round_size, segment_size};
use crate::settings::Settings;
use crate::stats::Stats;
use expand::Reservation;
pub use private::CaptureFilter;

/// Maximum size of a request; a larger one fails before the allocator is reached.
const MAX_REQUEST: u64 = 1 << 60;

const SMALL: PoolIndex = PoolIndex(0);
const LARGE: PoolIndex = PoolIndex(1);

/// PyTorch's caching allocator on one device.
#[derive(Clone, Debug)]
pub struct Allocator<D> {
    pub(crate) device: D,
    pub(crate) settings: Settings,
    pub(crate) release: Release,
    pub(crate) blocks: Blocks,
    /// The two default pools, followed by two for each private pool.
    pub(crate) pools: Vec<Pool>,
    pub(crate) private: BTreeMap<PoolId, PrivatePool>,
    /// Pools with `use_on_oom`, in the order in which they were marked.
    pools_on_oom: Vec<PoolId>,
    captures: Vec<(PoolId, CaptureFilter)>,
    /// Allocated blocks by address.
    pub(crate) allocated: ByAddress<BlockId>,
    /// Freed blocks that wait for other streams.
    pub(crate) pending: BTreeSet<BlockId>,
    /// Streams, other than their own, that used each block.
    uses: BTreeMap<BlockId, BTreeSet<Stream>>,
    /// Of those, streams recorded during a capture.
    uses_in_captures: BTreeMap<BlockId, BTreeSet<Stream>>,
    /// Blocks freed during a capture, whose events are recorded when it ends.
    deferred: Vec<BlockId>,
    events: BTreeMap<Stream, VecDeque<(Ticket, BlockId)>>,
    pub(crate) reservations: Vec<Option<Reservation>>,
    pub(crate) segments_got: u32,
    pub(crate) ages: Ages,
    /// Bytes reserved on the device.
    pub(crate) held: u64,
    /// Limit set by the memory fraction, if any.
    allowed: Option<u64>,
    pub(crate) stats: Stats,
}

/// Request being served.
#[derive(Clone, Copy, Debug)]
struct Request {
    requested: u64,
    rounded: u64,
    segment: u64,
    stream: Stream,
    pool: PoolIndex,
    /// `true` if it was rejected before the device was asked.
    rejected: bool,
}

impl<D: Device> Allocator<D> {
    /// Creates an allocator without memory.
    pub fn new(device: D, settings: Settings, release: Release) -> Self {
        let mut allocator = Self {
            device,
            settings,
            release,
            blocks: Blocks::default(),
            pools: vec![Pool::new(true, PoolId::DEFAULT), Pool::new(false, PoolId::DEFAULT)],
            private: BTreeMap::new(),
            pools_on_oom: Vec::new(),
            captures: Vec::new(),
            allocated: ByAddress::default(),
            pending: BTreeSet::new(),
            uses: BTreeMap::new(),
            uses_in_captures: BTreeMap::new(),
            deferred: Vec::new(),
            events: BTreeMap::new(),
            reservations: Vec::new(),
            segments_got: 0,
            ages: Ages::default(),
            held: 0,
            allowed: None,
            stats: Stats::default(),
        };
        if let Some(fraction) = settings.memory_fraction {
            allocator.set_memory_fraction(fraction);
        }
        allocator
    }

    /// The device.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// The device, for changes to it.
    pub const fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the device.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Settings.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings for later requests. The memory fraction is set by [`Self::set_memory_fraction`].
    pub const fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Statistics.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// `torch.cuda.reset_peak_memory_stats()`.
    pub fn reset_peaks(&mut self) {
        self.stats.reset_peaks();
    }

    /// `torch.cuda.set_per_process_memory_fraction()`.
    pub fn set_memory_fraction(&mut self, fraction: f64) {
        self.settings.memory_fraction = Some(fraction);
        self.allowed = Some((fraction * self.device.total() as f64) as u64);
    }

    /// Allocates a block of at least `requested` bytes in the pool that the active captures select.
    pub fn malloc(&mut self, requested: u64, stream: Stream) -> Result<Address, AllocationError> {
        let owner = self.capturing_pool(stream);
        self.malloc_in(owner, requested, stream)
    }

    /// Allocates a block of at least `requested` bytes in a pool.
    pub fn malloc_in(
        &mut self,
        owner: PoolId,
        requested: u64,
        stream: Stream,
    ) -> Result<Address, AllocationError> {
        if requested == 0 {
            return Ok(Address::NULL);
        }
        if requested >= MAX_REQUEST {
            return Err(AllocationError::TooLarge(requested));
        }
        if self.captures.is_empty() {
            self.process_events();
        }
        let rounded = round_size(requested, &self.settings);
        let pool = self.pool_for(owner, rounded).ok_or(AllocationError::NoSuchPool(owner))?;
        let segment = segment_size(rounded, &self.settings);
        let mut request = Request { requested, rounded, segment, stream, pool, rejected: false };
        match self.find_room(&mut request) {
            Some(block) => Ok(self.hand_out(block, &request)),
            None => Err(AllocationError::OutOfMemory(self.fail(&request))),
        }
    }

    /// Frees a block.
    pub fn free(&mut self, address: Address) -> Result<(), FreeError> {
        let id = self.allocated.remove(&address.0).ok_or(FreeError(address))?;
        let block = &mut self.blocks[id];
        block.allocated = false;
        let (size, requested, used_elsewhere) = (block.size, block.requested, block.used_elsewhere);
        let small = self.pools[block.pool.0 as usize].small;
        self.stats.allocation.take(small, 1);
        self.stats.allocated_bytes.take(small, size);
        self.trace(Action::FreeRequested, id, requested);
        if size >= self.settings.max_split_size {
            self.stats.oversize_allocations.take(1);
        }
        if !used_elsewhere {
            self.complete_free(id);
        } else if self.captures.is_empty() {
            self.insert_events(id);
        } else {
            self.pending.insert(id);
            self.deferred.push(id);
        }
        Ok(())
    }

    /// Returns `true` if a request could be served from cached blocks, without the device.
    pub fn is_cached(&self, owner: PoolId, requested: u64, stream: Stream) -> bool {
        if requested >= MAX_REQUEST {
            return false;
        }
        let rounded = round_size(requested.max(1), &self.settings);
        let Some(pool) = self.pool_for(owner, rounded) else { return false };
        let segment = segment_size(rounded, &self.settings);
        self.best_fit(&Request { requested, rounded, segment, stream, pool, rejected: false }).is_some()
    }

    /// Makes all attempts for a request, in PyTorch's order.
    fn find_room(&mut self, request: &mut Request) -> Option<BlockId> {
        if let Some(block) = self.take_cached(request) {
            return Some(block);
        }
        if self.collects_garbage() {
            self.collect_garbage();
        }
        if self.rejects(request) {
            request.rejected = true;
            return None;
        }
        if let Some(block) = self.grow(request, false) {
            return Some(block);
        }
        if self.release.asks_pools_before_releasing()
            && let Some(block) = self.take_from_pools_on_oom(request)
        {
            return Some(block);
        }
        if self.release_oversize(request)
            && let Some(block) = self.grow(request, false)
        {
            return Some(block);
        }
        if self.captures.is_empty() {
            self.release_cached();
            if let Some(block) = self.grow(request, true) {
                return Some(block);
            }
        }
        if self.release.asks_pools_before_releasing() { None } else { self.take_from_pools_on_oom(request) }
    }

    /// Removes the best fitting cached block from its pool.
    fn take_cached(&mut self, request: &Request) -> Option<BlockId> {
        if self.collects_garbage() {
            self.pools[request.pool.0 as usize].searches += 1;
        }
        let id = self.best_fit(request)?;
        let id = self.oldest_like(id, Action::Alloc);
        self.unlist(id);
        Some(id)
    }

    /// Smallest sufficient cached block; the lowest of several. Returns `None` if the limits on splitting
    /// forbid its use.
    fn best_fit(&self, request: &Request) -> Option<BlockId> {
        let mut candidates =
            self.pools[request.pool.0 as usize].free.at_least(request.stream, request.rounded);
        let mut found = candidates.next()?;
        if self.blocks[found].reservation.is_some() {
            if self.is_expandable(request.pool) {
                // The last block before unmapped memory counts with the size to which it can still grow.
                for next in candidates {
                    let grows = self.blocks[found].reservation.is_some();
                    if !grows || self.size_when_expanded(next) >= self.size_when_expanded(found) {
                        break;
                    }
                    found = next;
                }
            } else {
                found = candidates.find(|id| self.blocks[*id].reservation.is_none())?;
            }
        }
        let (limit, size) = (self.settings.max_split_size, self.blocks[found].size);
        if request.rounded < limit {
            (size < limit).then_some(found)
        } else {
            (size < request.rounded.saturating_add(self.settings.max_non_split_rounding)).then_some(found)
        }
    }

    fn size_when_expanded(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        let beyond = block.next.map(|next| &self.blocks[next]).filter(|next| !next.mapped);
        block.size + beyond.map_or(0, |next| next.size)
    }

    /// Allocates memory on the device.
    fn grow(&mut self, request: &Request, is_retry: bool) -> Option<BlockId> {
        if is_retry {
            self.stats.num_alloc_retries += 1;
        }
        if self.allowed.is_some_and(|allowed| self.held + request.segment > allowed) {
            return None;
        }
        let id = if self.is_expandable(request.pool) {
            self.grow_expandable(request)?
        } else {
            self.grow_by_segment(request)?
        };
        if let Some(private) = self.private_pool_of(request.pool) {
            private.segments += 1;
        }
        Some(id)
    }

    /// Returns `true` if a request is rejected because the device cannot have that much memory. With a memory
    /// fraction, that limit applies first, and the request fails in the usual way.
    fn rejects(&self, request: &Request) -> bool {
        self.settings.rejects_early
            && self.allowed.is_none()
            && self.held + request.segment > self.device.total()
    }

    fn grow_by_segment(&mut self, request: &Request) -> Option<BlockId> {
        let size = request.segment;
        let address = self.device.malloc(size)?;
        self.held += size;
        let mut block = Block::new(address.0, size, request.stream, request.pool);
        block.segment = self.next_segment();
        let id = self.blocks.insert(block);
        let small = self.is_small(request.pool);
        self.stats.segment.add(small, 1);
        self.stats.reserved_bytes.add(small, size);
        if size >= self.settings.max_split_size {
            self.stats.oversize_segments.add(1);
        }
        self.stats.num_device_alloc += 1;
        self.trace(Action::SegmentAlloc, id, size);
        Some(id)
    }

    /// Number of a new segment, if the release counts segments.
    const fn next_segment(&mut self) -> u32 {
        if self.release.prefers_older_segments() {
            self.segments_got += 1;
        }
        self.segments_got
    }

    /// Returns `true` if the remainder of a block becomes a separate block.
    fn splits(&self, request: &Request, size: u64) -> bool {
        let rest = size - request.rounded;
        let private = self.private.get(&self.pools[request.pool.0 as usize].owner);
        if self.release.has_unsplit_pools() && private.is_some_and(|private| private.options.no_split) {
            return false;
        }
        if self.is_small(request.pool) || self.is_expandable(request.pool) {
            rest >= MIN_BLOCK
        } else {
            request.rounded < self.settings.max_split_size && rest > SMALL_LIMIT
        }
    }

    /// Splits a block and allocates it. The remainder keeps the high addresses.
    fn hand_out(&mut self, found: BlockId, request: &Request) -> Address {
        let small = self.is_small(request.pool);
        let (size, was_split) = (self.blocks[found].size, self.blocks[found].is_split());
        let counts = self.blocks[found].reservation.is_none();
        let id = if self.splits(request, size) {
            let mut low =
                Block::new(self.blocks[found].address, request.rounded, request.stream, request.pool);
            low.reservation = self.blocks[found].reservation;
            low.segment = self.blocks[found].segment;
            let low = self.blocks.insert_before(found, low);
            let rest = &mut self.blocks[found];
            rest.address += request.rounded;
            rest.size -= request.rounded;
            let rest = rest.size;
            self.list(found);
            if counts && was_split {
                self.stats.inactive_split_bytes.take(small, request.rounded);
            } else if counts {
                self.stats.inactive_split_bytes.add(small, rest);
                self.stats.inactive_split.add(small, 1);
            }
            low
        } else {
            if counts && was_split {
                self.stats.inactive_split_bytes.take(small, size);
                self.stats.inactive_split.take(small, 1);
            }
            found
        };
        let block = &mut self.blocks[id];
        block.allocated = true;
        block.requested = request.requested;
        let (address, size) = (block.address, block.size);
        self.allocated.insert(address, id);
        self.trace(Action::Alloc, id, request.requested);
        self.stats.allocation.add(small, 1);
        self.stats.allocated_bytes.add(small, size);
        self.stats.active.add(small, 1);
        self.stats.active_bytes.add(small, size);
        self.stats.requested_bytes.add(small, request.requested);
        if size >= self.settings.max_split_size {
            self.stats.oversize_allocations.add(1);
        }
        Address(address)
    }

    fn fail(&mut self, request: &Request) -> OutOfMemory {
        let device_free = self.device.available();
        if request.rejected {
            // PyTorch does not trace it, and counts it separately.
            self.stats.num_oom_rejections += 1;
        } else {
            self.device.traced(Entry {
                action: Action::OutOfMemory,
                address: Address(device_free),
                size: request.rounded,
                stream: request.stream,
                pool: self.pools[request.pool.0 as usize].owner,
            });
            self.stats.num_ooms += 1;
        }
        let in_private_pools = self
            .private
            .values()
            .flat_map(|private| [private.small, private.large])
            .flat_map(|pool| self.pools[pool.0 as usize].free.iter())
            .map(|id| self.blocks[id].size)
            .sum();
        OutOfMemory {
            requested: request.requested,
            rounded: request.rounded,
            segment: request.segment,
            device_free,
            device_total: self.device.total(),
            allowed: self.allowed,
            allocated: self.stats.allocated_bytes.all.current as u64,
            in_private_pools,
            reserved: self.stats.reserved_bytes.all.current as u64,
        }
    }

    /// Makes a block free and merges it with its free neighbours.
    fn complete_free(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        debug_assert!(block.is_idle(), "the block is in use");
        let (size, requested, pool) = (block.size, block.requested, block.pool);
        let counts = block.reservation.is_none();
        self.trace(Action::FreeCompleted, id, requested);
        self.pending.remove(&id);
        let (mut splits, mut split_bytes) = (0, 0);
        for neighbour in [self.blocks[id].previous, self.blocks[id].next] {
            let merged = self.merge(id, neighbour);
            if merged > 0 {
                splits -= 1;
                split_bytes -= merged as i64;
            }
        }
        self.list(id);
        if self.blocks[id].is_split() {
            splits += 1;
            split_bytes += self.blocks[id].size as i64;
        }
        let small = self.is_small(pool);
        if counts {
            self.stats.inactive_split.change(small, splits);
            self.stats.inactive_split_bytes.change(small, split_bytes);
        }
        self.stats.active.take(small, 1);
        self.stats.active_bytes.take(small, size);
        self.stats.requested_bytes.take(small, requested);
    }

    /// Merges a neighbour into a block if it is free and has the same mapped state. Returns its size.
    fn merge(&mut self, id: BlockId, neighbour: Option<BlockId>) -> u64 {
        let Some(other) = neighbour else { return 0 };
        if !self.blocks[other].is_idle() || self.blocks[other].mapped != self.blocks[id].mapped {
            return 0;
        }
        self.unlist(other);
        let gone = self.blocks[other].clone();
        let block = &mut self.blocks[id];
        block.size += gone.size;
        if block.previous == Some(other) {
            block.address = gone.address;
            block.previous = gone.previous;
            if let Some(previous) = gone.previous {
                self.blocks[previous].next = Some(id);
            }
        } else {
            block.next = gone.next;
            if let Some(next) = gone.next {
                self.blocks[next].previous = Some(id);
            }
        }
        self.blocks.remove(other);
        gone.size
    }

    /// Adds a free block to its pool.
    pub(crate) fn list(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        let pool = &mut self.pools[block.pool.0 as usize];
        if block.mapped {
            block.idle_since = pool.searches;
            block.rank = self.ages.rank(block.segment);
            pool.free.insert(block, id);
        } else {
            pool.unmapped.insert((block.stream, block.address), id);
        }
    }

    /// Removes a free block from its pool.
    fn unlist(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        let pool = &mut self.pools[block.pool.0 as usize];
        if block.mapped {
            pool.free.remove(block);
        } else {
            pool.unmapped.remove(&(block.stream, block.address));
        }
    }

    fn trace(&mut self, action: Action, id: BlockId, size: u64) {
        let block = &self.blocks[id];
        let pool = self.pools[block.pool.0 as usize].owner;
        self.device.traced(Entry {
            action,
            address: Address(block.address),
            size,
            stream: block.stream,
            pool,
        });
    }

    fn pool_for(&self, owner: PoolId, rounded: u64) -> Option<PoolIndex> {
        let small = rounded <= SMALL_LIMIT;
        if owner == PoolId::DEFAULT {
            return Some(if small { SMALL } else { LARGE });
        }
        self.private.get(&owner).map(|private| if small { private.small } else { private.large })
    }

    fn is_small(&self, pool: PoolIndex) -> bool {
        self.pools[pool.0 as usize].small
    }

    fn private_pool_of(&mut self, pool: PoolIndex) -> Option<&mut PrivatePool> {
        let owner = self.pools[pool.0 as usize].owner;
        if owner == PoolId::DEFAULT { None } else { self.private.get_mut(&owner) }
    }

    /// Returns `true` if segments of a pool are expandable.
    fn is_expandable(&self, pool: PoolIndex) -> bool {
        if !self.settings.expandable_segments {
            return false;
        }
        let owner = self.pools[pool.0 as usize].owner;
        let own_allocator = owner != PoolId::DEFAULT
            && self.private.get(&owner).is_some_and(|private| private.options.own_allocator);
        !(own_allocator && self.release.own_allocators_stay_unexpandable())
    }

    fn reservation(&self, id: ReservationId) -> &Reservation {
        self.reservations[id.0 as usize]
            .as_ref()
            .expect("a block's expandable segment lives as long as the block")
    }
}
