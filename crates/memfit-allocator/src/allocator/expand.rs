//! Expandable segments: address space is reserved once, and memory is mapped page by page.

use crate::allocator::{Allocator, Request};
use crate::block::{Block, BlockId, ReservationId};
use crate::device::{Action, Device};
use crate::ids::Address;
use crate::rounding::SMALL_SEGMENT;

/// Address space of an expandable segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(crate) base: u64,
    pub(crate) size: u64,
    pub(crate) page: u64,
}

impl<D: Device> Allocator<D> {
    /// Finds space for a request in an expandable segment and maps what it needs.
    ///
    /// Memory is mapped for the rounded request, not for a whole segment. If the device runs out of memory
    /// half-way, the mapped part stays as free memory.
    pub(super) fn grow_expandable(&mut self, request: &Request) -> Option<BlockId> {
        let mut candidate = self.expandable_room(request)?;
        let block = &self.blocks[candidate];
        if !block.mapped && !self.map(candidate, block.size.min(request.rounded)) {
            return None;
        }
        while self.blocks[candidate].size < request.rounded {
            let missing = request.rounded - self.blocks[candidate].size;
            let next = self.blocks[candidate].next.expect("the room is large enough");
            if !self.map(next, missing.min(self.blocks[next].size)) {
                return None;
            }
            // Mapping merged it with the free block before it.
            candidate = next;
        }
        self.unlist(candidate);
        Some(candidate)
    }

    /// Lowest run of free and unmapped blocks that is large enough, or that of a new reservation. Fails if
    /// even that is too small, since a request cannot span several.
    fn expandable_room(&mut self, request: &Request) -> Option<BlockId> {
        let pool = &self.pools[request.pool.0 as usize];
        let of_stream = (request.stream, 0)..=(request.stream, u64::MAX);
        for (_, unmapped) in pool.unmapped.range(of_stream) {
            let before = self.blocks[*unmapped].previous.filter(|before| self.blocks[*before].is_idle());
            let candidate = before.unwrap_or(*unmapped);
            if self.idle_run(candidate, request.rounded) {
                return Some(candidate);
            }
        }
        let reserved = self.reserve(request);
        self.idle_run(reserved, request.rounded).then_some(reserved)
    }

    /// Returns `true` if the free and unmapped blocks from `first` on have `size` bytes.
    fn idle_run(&self, first: BlockId, size: u64) -> bool {
        let mut bytes = 0;
        let mut block = Some(first);
        while let Some(id) = block.filter(|id| bytes < size && self.blocks[*id].is_idle()) {
            bytes += self.blocks[id].size;
            block = self.blocks[id].next;
        }
        bytes >= size
    }

    fn reserve(&mut self, request: &Request) -> BlockId {
        let small = self.is_small(request.pool);
        let page = if small { SMALL_SEGMENT } else { self.settings.large_segment_size };
        let total = self.device.total();
        let most = total + total / 8;
        let wanted = self.settings.expandable_reserve.map_or(most, |reserve| reserve.bytes(total, most));
        let size = wanted.max(1).next_multiple_of(page);
        let base = self.device.reserve(size).0;
        let id = self.add_reservation(base, size, page);
        let mut block = Block::new(base, size, request.stream, request.pool);
        block.mapped = false;
        block.reservation = Some(id);
        let block = self.blocks.insert(block);
        self.list(block);
        block
    }

    pub(crate) fn add_reservation(&mut self, base: u64, size: u64, page: u64) -> ReservationId {
        let id = ReservationId(self.reservations.len() as u32);
        self.reservations.push(Some(Reservation { base, size, page }));
        id
    }

    /// Maps whole pages for the first `size` bytes of an unmapped block.
    fn map(&mut self, id: BlockId, size: u64) -> bool {
        let block = &self.blocks[id];
        let (address, room, pool, stream) = (block.address, block.size, block.pool, block.stream);
        let reservation = block.reservation.expect("unmapped blocks are in expandable segments");
        let mapped = size.next_multiple_of(self.reservation(reservation).page);
        // Unmapped blocks consist of whole pages, unless the state was restored from an inconsistent file.
        if mapped > room || !self.device.map(Address(address), mapped) {
            return false;
        }
        self.unlist(id);
        self.blocks[id].mapped = true;
        if mapped < room {
            let mut rest = Block::new(address + mapped, room - mapped, stream, pool);
            rest.mapped = false;
            rest.reservation = Some(reservation);
            let rest = self.blocks.insert_after(id, rest);
            self.list(rest);
            self.blocks[id].size = mapped;
        }
        for neighbour in [self.blocks[id].previous, self.blocks[id].next] {
            self.merge(id, neighbour);
        }
        self.list(id);
        self.held += mapped;
        self.stats.reserved_bytes.add(self.is_small(pool), mapped);
        self.stats.num_device_alloc += 1;
        self.trace_range(Action::SegmentMap, id, address, mapped);
        true
    }

    /// Unmaps the whole pages of a free block, and removes the segment if none of it is left.
    pub(super) fn unmap(&mut self, id: BlockId) {
        let block = self.blocks[id].clone();
        let reservation = block.reservation.expect("the block is in an expandable segment");
        let Reservation { base, page, .. } = *self.reservation(reservation);
        let start = base + (block.address - base).next_multiple_of(page);
        let end = base + (block.address + block.size - base) / page * page;
        if start >= end {
            return;
        }
        self.device.unmap(Address(start), end - start);
        self.unlist(id);
        if start > block.address {
            let mut low = Block::new(block.address, start - block.address, block.stream, block.pool);
            low.reservation = Some(reservation);
            let low = self.blocks.insert_before(id, low);
            self.list(low);
        }
        if block.address + block.size > end {
            let mut high = Block::new(end, block.address + block.size - end, block.stream, block.pool);
            high.reservation = Some(reservation);
            let high = self.blocks.insert_after(id, high);
            self.list(high);
        }
        let unmapped = &mut self.blocks[id];
        unmapped.address = start;
        unmapped.size = end - start;
        unmapped.mapped = false;
        for neighbour in [self.blocks[id].previous, self.blocks[id].next] {
            self.merge(id, neighbour);
        }
        self.list(id);
        self.held -= end - start;
        self.stats.reserved_bytes.take(self.is_small(block.pool), end - start);
        if let Some(private) = self.private_pool_of(block.pool) {
            // PyTorch counts a request that mapped as one segment and each unmapped range as one, and asserts
            // that the count stays positive. Here it saturates at zero.
            private.segments = private.segments.saturating_sub(1);
        }
        self.stats.num_device_free += 1;
        self.trace_range(Action::SegmentUnmap, id, start, end - start);
        if !self.blocks[id].is_split() {
            self.unreserve(id, reservation);
        }
    }

    fn unreserve(&mut self, id: BlockId, reservation: ReservationId) {
        self.unlist(id);
        self.blocks.remove(id);
        let gone = *self.reservation(reservation);
        self.reservations[reservation.0 as usize] = None;
        self.device.unreserve(Address(gone.base), gone.size);
    }

    fn trace_range(&mut self, action: Action, id: BlockId, address: u64, size: u64) {
        let block = &self.blocks[id];
        let pool = self.pools[block.pool.0 as usize].owner;
        let entry =
            crate::device::Entry { action, address: Address(address), size, stream: block.stream, pool };
        self.device.traced(entry);
    }
}
