//! Virtual addresses for device memory: address space without pages, reserved from the operating system in
//! large portions.
//!
//! PyTorch's allocator hands out the lowest of several blocks of equal size, so the order of its segments'
//! addresses decides which one is used, and in the end what is reserved. The driver's addresses descend in
//! steps of 32 MiB, and smaller allocations fill what larger ones leave: of 186,000 pairs of segments that 39
//! trainings had on an H200, 96 % are in this order (`measurements/events-h200.json.gz`), and snapshots of
//! other GPUs show the same.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{arena::Arena, pages};
use crate::status::{Outcome, Status};

/// Addresses of all devices' memory.
struct Addresses {
    arena: Arena,
    /// Reserved portions, by start and length.
    portions: Vec<(u64, u64)>,
}

static ADDRESSES: Mutex<Addresses> = Mutex::new(Addresses { arena: Arena::EMPTY, portions: Vec::new() });
/// Bounds of all portions, so that most host addresses are recognised without a lock.
static LOWEST: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST: AtomicU64 = AtomicU64::new(0);

/// Steps in which addresses descend.
const STEP: u64 = 32 << 20;
/// Size in which address space is reserved; smaller portions are used if the process has a limit.
const PORTION: u64 = 1 << 40;

/// Takes address space for device memory.
pub(crate) fn take(length: u64, alignment: u64) -> Outcome<u64> {
    ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner).take(length, alignment)
}

/// Returns `true` if device memory could have this address, whether it is in use or not.
pub(crate) fn is_device_address(address: u64) -> bool {
    (LOWEST.load(Relaxed)..HIGHEST.load(Relaxed)).contains(&address)
        && ADDRESSES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .portions
            .iter()
            .any(|&(start, length)| (start..start + length).contains(&address))
}

/// Takes exactly these addresses, if they are reserved and free.
pub(crate) fn take_at(start: u64, length: u64) -> bool {
    ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner).arena.take_at(start, length)
}

/// Returns address space.
pub(crate) fn give_back(start: u64, length: u64) {
    ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner).arena.give_back(start, length);
}

impl Addresses {
    fn take(&mut self, length: u64, alignment: u64) -> Outcome<u64> {
        let far = alignment.max(STEP);
        let near = if length < STEP { alignment } else { far };
        if let Some(start) = self.arena.take_downwards(length, near, far) {
            return Ok(start);
        }
        let need = length.checked_add(far).ok_or(Status::OUT_OF_MEMORY)?;
        let mut portion = PORTION.max(need);
        loop {
            match pages::reserve(portion) {
                Ok(start) => {
                    self.arena.add(start, portion);
                    self.portions.push((start, portion));
                    LOWEST.fetch_min(start, Relaxed);
                    HIGHEST.fetch_max(start + portion, Relaxed);
                    return self.arena.take_downwards(length, near, far).ok_or(Status::OUT_OF_MEMORY);
                }
                Err(status) if portion == need => return Err(status),
                Err(_) => portion = (portion / 2).max(need),
            }
        }
    }
}
