//! What device memory holds, as far as it is known, and what a read-back answers where it is not.
//!
//! The memory calls tell what was copied, filled and freed; launches tell what a kernel did ([`effect`]). Small contents are
//! kept ([`store`]), so what a script uploads comes back; what a kernel would have computed reads as zeros, except where a
//! rule answers instead. A rule's answer is kept like any other content, under the rule's name, and is counted when the
//! host reads it.
//!
//! Knows nothing of devices, streams and errors: addresses in, bytes out.

mod effect;
mod filter;
mod store;

use std::{
    slice,
    sync::{Mutex, MutexGuard, PoisonError},
};

pub(crate) use effect::{Arguments, Effect};
use filter::Filter;
use memfit_link::TallyKind;
use store::{LARGEST_PIECE, Origin, Store};

use crate::machine;

static FILTER: Filter = Filter::new();
static STORE: Mutex<Option<Store>> = Mutex::new(None);

/// The store, for a while. Never held while user code runs, nor across a fork of this thread.
fn store<T>(use_store: impl FnOnce(&mut Store) -> T) -> T {
    let mut guard: MutexGuard<'_, Option<Store>> = STORE.lock().unwrap_or_else(PoisonError::into_inner);
    use_store(guard.get_or_insert_default())
}

/// Bytes were copied from the host to device memory at `target`.
///
/// # Safety
/// `source` is good for reading `size` bytes.
pub(crate) unsafe fn host_to_device(target: u64, source: *const u8, size: u64) {
    if size <= LARGEST_PIECE as u64 {
        // SAFETY: the caller vouches for the bytes.
        let bytes = unsafe { slice::from_raw_parts(source, size as usize) };
        store(|store| store.write(target, bytes, Origin::True, &FILTER));
    } else {
        forget(target, size);
    }
}

/// Bytes are copied from device memory at `source` to the host: what is known, and zeros for the rest.
///
/// # Safety
/// `target` is good for writing `size` bytes.
pub(crate) unsafe fn device_to_host(target: *mut u8, source: u64, size: u64) {
    // SAFETY: the caller vouches for the room. Memory that the host has never written reads as zeros, so it is initialised.
    let bytes = unsafe { slice::from_raw_parts_mut(target, size as usize) };
    clear(bytes);
    if FILTER.perhaps_within(source, size) {
        let found = store(|store| store.read(source, bytes));
        for name in found.answers {
            machine::count(TallyKind::ValuePolicy, name);
        }
    }
}

/// Bytes were copied within device memory, or from one card to another.
pub(crate) fn device_to_device(destination: u64, source: u64, length: u64) {
    if FILTER.perhaps_within(source, length) || FILTER.perhaps_within(destination, length) {
        store(|store| store.copy(destination, source, length, &FILTER));
    }
}

/// Device memory at `target` was filled with `count` times the lowest `width` bytes of `pattern`.
pub(crate) fn fill(target: u64, pattern: u32, width: u32, count: u64) {
    let pattern = pattern.to_le_bytes();
    let pattern = &pattern[..(width as usize).clamp(1, pattern.len())];
    let size = count.saturating_mul(pattern.len() as u64);
    if pattern.iter().all(|byte| *byte == pattern[0]) {
        store(|store| store.fill(target, pattern[0], size, &FILTER));
    } else if size <= LARGEST_PIECE as u64 {
        store(|store| store.write(target, &pattern.repeat(count as usize), Origin::True, &FILTER));
    } else {
        forget(target, size);
    }
}

/// Device memory was given back, or handed to another owner: nothing is known of it any more.
pub(crate) fn freed(address: u64, length: u64) {
    forget(address, length);
}

fn forget(address: u64, length: u64) {
    if FILTER.perhaps_within(address, length) {
        store(|store| store.forget(address, length, &FILTER));
    }
}

/// Makes all bytes zero without touching pages that are zero already: the host's memory for a large copy may never have
/// been touched, and committing gigabytes of zeros could exhaust a laptop.
fn clear(bytes: &mut [u8]) {
    const PAGE: usize = 4096;
    if bytes.len() < 4 * PAGE {
        bytes.fill(0);
        return;
    }
    for chunk in bytes.chunks_mut(PAGE) {
        // Reading an untouched page maps the kernel's one page of zeros.
        if chunk.iter().any(|byte| *byte != 0) {
            chunk.fill(0);
        }
    }
}
