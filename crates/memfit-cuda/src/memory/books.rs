//! The device's own books of what this process has, for those who hold other books against them.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::sync::{Mutex, PoisonError};

use super::{physical, pool};
use crate::{
    machine,
    space::{self, Kind},
};
use memfit_abi::Out;

/// What a process has on one card, by the call that gave it; and on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Books {
    /// Allocations of `cudaMalloc`.
    allocations: u64,
    /// Bytes that they were asked with.
    allocated: u64,
    /// Bytes mapped by `cuMemMap`.
    mapped: u64,
    /// Bytes of physical memory made by `cuMemCreate`.
    physical: u64,
    /// Bytes that pools have of the card, and bytes of them in use.
    pool_reserved: u64,
    pool_used: u64,
    /// Bytes that the ledger has booked on the card for this process.
    booked: u64,
    /// Page-locked bytes of the host, of all cards' contexts.
    pinned: u64,
}

impl Books {
    fn of(card: u32) -> Self {
        let mut books = Self { physical: physical::made_on(card), ..Self::default() };
        (books.pool_reserved, books.pool_used) = pool::totals_of(card);
        for block in space::read().blocks() {
            match block.kind {
                Kind::HostAllocated(_) | Kind::HostRegistered(_) => books.pinned += block.size,
                _ if block.card != card => {}
                Kind::Device => {
                    books.allocations += 1;
                    books.allocated += block.size;
                }
                Kind::Mapped(_) => books.mapped += block.size,
                _ => {}
            }
        }
        if let Some(machine) = machine::peek()
            && let Some(index) = machine.cards.get(card as usize).map(|card| card.index)
        {
            let pid = std::process::id();
            let view = machine.ledger.view();
            let mine = view.processes.iter().find(|process| process.pid == pid && process.alive);
            books.booked = mine.and_then(|process| process.shares.get(index)).map_or(0, |share| share.used);
        }
        books
    }
}

/// Writes the books of a card. False where there is no place for them.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_books(card: u32, target: Out<Books>) -> bool {
    // One reader at a time: whoever reads wants a picture of one instant, and takes several locks for it.
    static READING: Mutex<()> = Mutex::new(());
    let _reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
    std::panic::catch_unwind(|| Books::of(card)).is_ok_and(|books| target.write(books))
}
