//! Addresses for device memory: address space without pages behind it, taken from the operating system in
//! large portions.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{arena::Arena, pages};
use crate::status::{Outcome, Status};

/// The addresses of all cards' memory.
struct Addresses {
    arena: Arena,
    /// What was reserved for it, by start and length.
    portions: Vec<(u64, u64)>,
}

static ADDRESSES: Mutex<Addresses> = Mutex::new(Addresses { arena: Arena::EMPTY, portions: Vec::new() });
/// All portions lie between these, so that most addresses of the host need no lock to be told apart.
static LOWEST: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST: AtomicU64 = AtomicU64::new(0);

/// Address space is reserved in portions of this size, or of a smaller one where there is a limit on address
/// space.
const PORTION: u64 = 1 << 40;

/// Takes address space for device memory.
pub(crate) fn take(length: u64, alignment: u64) -> Outcome<u64> {
    ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner).take(length, alignment)
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
pub(crate) fn take_at(start: u64, length: u64) -> bool {
    ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner).arena.take_at(start, length)
}

/// Gives address space back.
pub(crate) fn give_back(start: u64, length: u64) {
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
}
