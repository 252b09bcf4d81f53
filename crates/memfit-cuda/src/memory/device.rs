//! `cudaMalloc` and `cudaFree`: device memory in the driver's granularity, reserved before it is handed out.

use std::sync::{Mutex, PoisonError};

use super::{
    GRANULARITY,
    small::{self, SmallHeap},
};
use crate::{
    clock, failing,
    machine::{self, Card},
    space::{self, Kind, addresses},
    status::{Outcome, Status},
    streams, values,
};

/// Heaps of small allocations, by ordinal. A thread that holds this lock may take addresses.
static HEAPS: Mutex<Vec<SmallHeap>> = Mutex::new(Vec::new());

/// Runs a closure with a device's heap.
fn with_heap<T>(card: &Card, body: impl FnOnce(&mut SmallHeap) -> T) -> T {
    let mut heaps = HEAPS.lock().unwrap_or_else(PoisonError::into_inner);
    let ordinal = card.ordinal as usize;
    if heaps.len() <= ordinal {
        heaps.resize_with(ordinal + 1, SmallHeap::default);
    }
    body(&mut heaps[ordinal])
}

/// Allocates device memory.
pub(crate) fn allocate(card: &Card, size: u64, kind: Kind) -> Outcome<u64> {
    card.need_context()?;
    failing::check()?;
    let start = if size <= small::MAX_SMALL_BYTES {
        allocate_small(card, size)?
    } else {
        allocate_pieces(card, size)?
    };
    space::write().insert(start, size, kind, card.ordinal);
    Ok(start)
}

fn allocate_pieces(card: &Card, size: u64) -> Outcome<u64> {
    let bytes = size.checked_next_multiple_of(GRANULARITY).ok_or(Status::OUT_OF_MEMORY)?;
    card.allocate(bytes)?;
    addresses::take(bytes, GRANULARITY).inspect_err(|_| card.release(bytes))
}

fn allocate_small(card: &Card, size: u64) -> Outcome<u64> {
    with_heap(card, |heap| {
        if let Some(start) = heap.take(size) {
            return Ok(start);
        }
        card.allocate(GRANULARITY)?;
        let piece = addresses::take(GRANULARITY, GRANULARITY).inspect_err(|_| card.release(GRANULARITY))?;
        heap.add(piece);
        heap.take(size).ok_or(Status::OUT_OF_MEMORY)
    })
}

/// Frees memory from [`allocate`]. The address must be the start of a live block.
pub(crate) fn free(start: u64, wanted: impl FnOnce(Kind) -> bool) -> Outcome {
    let block = space::write().remove(start, |block| wanted(block.kind))?;
    // Freeing synchronises with the device.
    clock::wait_until(streams::card_end(block.card));
    values::record_freed(block.start, block.size);
    values::unshare(block.start);
    let card = machine::card(block.card as i32)?;
    if block.size <= small::MAX_SMALL_BYTES {
        if let Some(piece) = with_heap(card, |heap| heap.give_back(start, block.size)) {
            addresses::give_back(piece, GRANULARITY);
            card.release(GRANULARITY);
        }
    } else {
        let bytes = block.size.next_multiple_of(GRANULARITY);
        addresses::give_back(start, bytes);
        card.release(bytes);
    }
    Ok(())
}

/// Frees everything that this process has on a device.
pub(crate) fn free_all(card: &Card) {
    let mine: Vec<_> = space::read().blocks().filter(|block| block.card == card.ordinal).copied().collect();
    for block in mine {
        let _ = match block.kind {
            Kind::Device => free(block.start, |kind| kind == Kind::Device),
            Kind::Managed => super::host::free_managed(block.start),
            Kind::Pooled(_) => super::pool::free(block.start),
            Kind::HostAllocated(_) => super::host::free(block.start),
            Kind::HostRegistered(_) => super::host::unregister(block.start),
            Kind::Mapped(_) | Kind::Imported | Kind::Variable => Ok(()),
        };
    }
}
