//! Page-locked and managed memory: the host uses it, so it has pages.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use super::GRANULARITY;
use crate::{
    machine::{self, Card},
    space::{self, Block, Kind, find, pages},
    status::{Outcome, Status},
    values,
};

/// Allocates page-locked memory (`cudaHostAlloc`).
pub(crate) fn allocate(card: &Card, size: u64, flags: u32) -> Outcome<u64> {
    card.need_context()?;
    let bytes = size.max(1).checked_next_multiple_of(pages::size()).ok_or(Status::OUT_OF_MEMORY)?;
    let start = pages::allocate(bytes, false)?;
    let ledger = &machine::get()?.ledger;
    ledger.pin(bytes).map_err(|_| Status::OUT_OF_MEMORY)?;
    space::write().insert(start, size, Kind::HostAllocated(flags), card.ordinal);
    Ok(start)
}

/// Frees page-locked memory (`cudaFreeHost`).
pub(crate) fn free(start: u64) -> Outcome {
    let block = space::write().remove(start, |block| matches!(block.kind, Kind::HostAllocated(_)))?;
    let bytes = block.size.max(1).next_multiple_of(pages::size());
    machine::get()?.ledger.unpin(bytes);
    // SAFETY: the block was allocated here, and the caller gave it up with this call.
    unsafe { pages::free(start, bytes) };
    Ok(())
}

/// Size below which writing zeros is as cheap as returning pages.
const MIN_CLEAR_BYTES: u64 = 1 << 20;

/// Zeroes a range of page-locked memory by returning its pages to the system: gigabytes of offloaded
/// optimizer state may lie there and need no physical memory. Returns `false` if the range is small or was
/// not allocated here.
pub(crate) fn clear(start: u64, size: u64) -> bool {
    let end = start.saturating_add(size);
    let ours = |block: Block| matches!(block.kind, Kind::HostAllocated(_)) && end <= block.end();
    if size < MIN_CLEAR_BYTES || !find(start).is_some_and(ours) {
        return false;
    }
    let (first, last) = pages::within(start, end, pages::size());
    if first == last {
        return false;
    }
    for (from, to) in [(start, first), (last, end)] {
        // SAFETY: the range lies in a block allocated here, which the caller lends for this copy.
        unsafe { std::ptr::write_bytes(from as *mut u8, 0, (to - from) as usize) };
    }
    // SAFETY: these whole pages lie in a block allocated here, which the caller lends for this copy.
    unsafe { pages::clear(first, last - first) }
}

/// Page-locks the caller's memory (`cudaHostRegister`).
pub(crate) fn register(card: &Card, start: u64, size: u64, flags: u32) -> Outcome {
    card.need_context()?;
    if start == 0 || size == 0 || start.checked_add(size).is_none() {
        return Err(Status::INVALID_VALUE);
    }
    let mut space = space::write();
    if space.overlaps(start, size) {
        return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
    }
    machine::get()?.ledger.pin(locked_bytes(start, size)).map_err(|_| Status::OUT_OF_MEMORY)?;
    space.insert(start, size, Kind::HostRegistered(flags), card.ordinal);
    Ok(())
}

/// Undoes [`register`] (`cudaHostUnregister`).
pub(crate) fn unregister(start: u64) -> Outcome {
    let block = space::write()
        .remove(start, |block| matches!(block.kind, Kind::HostRegistered(_)))
        .map_err(|_| Status::HOST_MEMORY_NOT_REGISTERED)?;
    machine::get()?.ledger.unpin(locked_bytes(start, block.size));
    Ok(())
}

/// Bytes of the whole pages that a range touches.
fn locked_bytes(start: u64, size: u64) -> u64 {
    pages::around(start, size, pages::size()).1
}

/// Allocates managed memory (`cudaMallocManaged`). All of it is reserved on the device, where training uses
/// it.
pub(crate) fn allocate_managed(card: &Card, size: u64) -> Outcome<u64> {
    card.need_context()?;
    let bytes = size.max(1).checked_next_multiple_of(GRANULARITY).ok_or(Status::OUT_OF_MEMORY)?;
    card.allocate(bytes)?;
    let start = pages::allocate(bytes, false).inspect_err(|_| card.release(bytes))?;
    space::write().insert(start, size, Kind::Managed, card.ordinal);
    Ok(start)
}

/// Frees managed memory.
pub(crate) fn free_managed(start: u64) -> Outcome {
    let block = space::write().remove(start, |block| block.kind == Kind::Managed)?;
    let bytes = block.size.max(1).next_multiple_of(GRANULARITY);
    values::record_freed(start, block.size);
    machine::card(block.card as i32)?.release(bytes);
    // SAFETY: the block was allocated here, and the caller gave it up with this call.
    unsafe { pages::free(start, bytes) };
    Ok(())
}
