//! The device's own accounting of this process's memory, to be compared with other accounts.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::sync::{Mutex, PoisonError};

use super::{physical, pool};
use crate::{
    machine,
    space::{self, Kind},
};
use memfit_abi::Out;

/// Memory of this process on one device, by the kind of call that allocated it, and on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Books {
    /// Allocations of `cudaMalloc`.
    allocations: u64,
    /// Bytes that they requested.
    allocated: u64,
    /// Bytes mapped by `cuMemMap`.
    mapped: u64,
    /// Bytes of physical memory created by `cuMemCreate`.
    physical: u64,
    /// Bytes that pools hold on the device, and bytes of them in use.
    pool_reserved: u64,
    pool_used: u64,
    /// Bytes that the ledger has reserved on the device for this process.
    booked: u64,
    /// Page-locked bytes on the host, over the contexts of all devices.
    pinned: u64,
}

impl Books {
    fn read(card: u32) -> Self {
        let mut books = Self { physical: physical::made_on(card), ..Self::default() };
        (books.pool_reserved, books.pool_used) = pool::card_totals(card);
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

/// Writes the accounts of a device; `false` if `target` is null or they cannot be read.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_books(card: u32, target: Out<Books>) -> bool {
    // One reader at a time: a reader needs a consistent view and takes several locks for it.
    static READING: Mutex<()> = Mutex::new(());
    let _reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
    std::panic::catch_unwind(|| Books::read(card)).is_ok_and(|books| target.write(books))
}
