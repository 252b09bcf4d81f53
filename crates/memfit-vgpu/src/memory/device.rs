//! `cudaMalloc` and `cudaFree`: device memory in the driver's granularity, booked before it is handed out.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    GRANULARITY, Kind,
    arena::Arena,
    pages,
    small::{self, SmallHeap},
    space,
};
use crate::{
    clock, failing,
    machine::{self, Card},
    status::{Outcome, Status},
    streams, values,
};

/// The addresses of all cards' memory, and the small heaps, by ordinal.
struct Addresses {
    arena: Arena,
    /// What was reserved for it, by start and length.
    portions: Vec<(u64, u64)>,
    heaps: Vec<SmallHeap>,
}

static ADDRESSES: Mutex<Addresses> =
    Mutex::new(Addresses { arena: Arena::EMPTY, portions: Vec::new(), heaps: Vec::new() });
/// All portions lie between these, so that most addresses of the host need no lock to be told apart.
static LOWEST: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST: AtomicU64 = AtomicU64::new(0);

/// Address space is reserved in portions of this size, or of a smaller one where there is a limit on address space.
const PORTION: u64 = 1 << 40;

/// Takes address space for device memory.
pub(crate) fn take_addresses(length: u64, alignment: u64) -> Outcome<u64> {
    let mut addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
    addresses.take(length, alignment)
}

/// Whether an address is one that device memory could have, used or not.
pub(crate) fn is_device_address(address: u64) -> bool {
    (LOWEST.load(Relaxed)..HIGHEST.load(Relaxed)).contains(&address)
        && ADDRESSES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .portions
            .iter()
            .any(|&(start, length)| (start..start + length).contains(&address))
}

/// Takes these very addresses, if they are ours and free.
pub(crate) fn take_addresses_at(start: u64, length: u64) -> bool {
    ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner).arena.take_at(start, length)
}

/// Gives address space back.
pub(crate) fn give_back_addresses(start: u64, length: u64) {
    ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner).arena.give_back(start, length);
}

impl Addresses {
    fn take(&mut self, length: u64, alignment: u64) -> Outcome<u64> {
        if let Some(start) = self.arena.take(length, alignment) {
            return Ok(start);
        }
        let need = length.checked_add(alignment).ok_or(Status::OUT_OF_MEMORY)?;
        let mut portion = PORTION.max(need);
        loop {
            match pages::reserve(portion) {
                Ok(start) => {
                    self.arena.add(start, portion);
                    self.portions.push((start, portion));
                    LOWEST.fetch_min(start, Relaxed);
                    HIGHEST.fetch_max(start + portion, Relaxed);
                    return self.arena.take(length, alignment).ok_or(Status::OUT_OF_MEMORY);
                }
                Err(status) if portion == need => return Err(status),
                Err(_) => portion = (portion / 2).max(need),
            }
        }
    }

    fn heap(&mut self, card: &Card) -> &mut SmallHeap {
        let ordinal = card.ordinal as usize;
        if self.heaps.len() <= ordinal {
            self.heaps.resize_with(ordinal + 1, SmallHeap::default);
        }
        &mut self.heaps[ordinal]
    }
}

/// Allocates device memory on a card.
pub(crate) fn allocate(card: &Card, size: u64, kind: Kind) -> Outcome<u64> {
    card.need_context()?;
    failing::check()?;
    let start =
        if size <= small::LARGEST { allocate_small(card, size)? } else { allocate_pieces(card, size)? };
    space::write().insert(start, size, kind, card.ordinal);
    Ok(start)
}

fn allocate_pieces(card: &Card, size: u64) -> Outcome<u64> {
    let bytes = size.checked_next_multiple_of(GRANULARITY).ok_or(Status::OUT_OF_MEMORY)?;
    card.allocate(bytes)?;
    take_addresses(bytes, GRANULARITY).inspect_err(|_| card.release(bytes))
}

fn allocate_small(card: &Card, size: u64) -> Outcome<u64> {
    let mut addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(start) = addresses.heap(card).take(size) {
        return Ok(start);
    }
    card.allocate(GRANULARITY)?;
    let piece = addresses.take(GRANULARITY, GRANULARITY).inspect_err(|_| card.release(GRANULARITY))?;
    let heap = addresses.heap(card);
    heap.add(piece);
    heap.take(size).ok_or(Status::OUT_OF_MEMORY)
}

/// Frees what [`allocate`] gave. The address must be a block's first, and the block alive.
pub(crate) fn free(start: u64, wanted: impl FnOnce(Kind) -> bool) -> Outcome {
    let block = space::write().remove(start, |block| wanted(block.kind))?;
    // Freeing waits for the card.
    clock::wait_until(streams::card_end(block.card));
    values::freed(block.start, block.size);
    values::unshare(block.start);
    let card = machine::card(block.card as i32)?;
    if block.size <= small::LARGEST {
        let mut addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = addresses.heap(card).give_back(start, block.size) {
            addresses.arena.give_back(piece, GRANULARITY);
            card.release(GRANULARITY);
        }
    } else {
        let bytes = block.size.next_multiple_of(GRANULARITY);
        give_back_addresses(start, bytes);
        card.release(bytes);
    }
    Ok(())
}

/// Frees everything that this process has on a card.
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
