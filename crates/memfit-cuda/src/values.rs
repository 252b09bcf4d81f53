//! What device memory holds, as far as it is known, and what a read-back answers where it is not.
//!
//! The memory calls tell what was copied, filled and freed; launches tell what a kernel did
//! ([`memfit_kernels`]).
//! Small contents are kept ([`store`]), so what a script uploads comes back; what a kernel would have
//! computed reads as zeros, except where a rule answers instead. A rule's answer is kept like any other
//! content, under the rule's name, and is counted when the host reads it.
//!
//! Knows nothing of devices, streams and errors: addresses in, bytes out.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

mod filter;
mod memory;
mod reads;
mod shared;
mod store;

use std::{
    ffi::{CStr, c_char},
    slice,
};

use memfit_channel::{TallyKind, ValuePolicy};
use memfit_kernels::memory::{Extremes, LARGEST_PIECE, Memory, Origin};
use memfit_vocabulary::Assumption;
use memory::KnownMemory;

use crate::{machine, space::blocks};

static MEMORY: KnownMemory = KnownMemory::new(policy);

/// Where rules take a size between its bounds.
fn policy() -> Option<ValuePolicy> {
    machine::get().ok().map(|machine| machine.setup.values)
}

/// A read-back of more bytes than this is one of data, and not of values that a script decides on.
const MOST_VALUES: u64 = 4096;

/// Bytes were copied from the host to device memory at `target`.
///
/// # Safety
/// `source` is good for reading `size` bytes.
pub(crate) unsafe fn host_to_device(target: u64, source: *const u8, size: u64) {
    if size <= LARGEST_PIECE as u64 {
        // SAFETY: the caller vouches for the bytes.
        MEMORY.write(target, unsafe { slice::from_raw_parts(source, size as usize) }, Origin::True);
        return;
    }
    // Weights that are mapped from a file would come into memory by being looked at.
    if size > Extremes::LONGEST as u64 || !is_resident(source, size as usize) {
        return MEMORY.forget(target, size);
    }
    // SAFETY: as above.
    match Extremes::of(unsafe { slice::from_raw_parts(source, size as usize) }) {
        Some(extremes) => MEMORY.summarise(target, extremes),
        None => MEMORY.forget(target, size),
    }
}

/// Bytes are copied from device memory at `source` to the host, where all may be zeros already: what is
/// known, and zeros for the rest.
///
/// # Safety
/// `target` is good for writing `size` bytes.
pub(crate) unsafe fn device_to_host(target: *mut u8, source: u64, size: u64, is_clear: bool) {
    // SAFETY: the caller vouches for the room. Memory that the host has never written reads as zeros, so it
    // is initialised.
    let bytes = unsafe { slice::from_raw_parts_mut(target, size as usize) };
    if !is_clear {
        clear(bytes);
    }
    let found = MEMORY.read(source, bytes);
    for assumption in reads::complete(bytes, found) {
        machine::count(TallyKind::ValuePolicy, assumption.id());
    }
}

/// Device memory, for kernels to look at and to change.
pub(crate) fn memory() -> &'static dyn Memory {
    &MEMORY
}

/// The content of device memory as the host would read it, where anything of it is known: all of it, or some
/// of it where that is enough. And whether a rule answered for some of it.
pub(crate) fn known(address: u64, size: u64, all: bool) -> Option<(Vec<u8>, bool)> {
    MEMORY.known(address, size, all)
}

/// Bytes came from another process of the run, where they were known; there, a rule may have `answered` for
/// them.
pub(crate) fn received(target: u64, bytes: &[u8], answered: bool) {
    let origin = if answered { Origin::Answer(Assumption::Elsewhere) } else { Origin::True };
    MEMORY.write(target, bytes, origin);
}

/// A block is open in several processes from here on, under a name that all of them know. The one whose
/// memory it is tells what is known of it.
pub(crate) fn share(name: u64, start: u64, size: u64, owner: bool) {
    MEMORY.share(name, start, size, owner);
}

/// A block is not shared any more.
pub(crate) fn unshare(start: u64) {
    shared::remove(start);
}

/// Bytes were copied within device memory, or from one card to another.
pub(crate) fn device_to_device(target: u64, source: u64, size: u64) {
    MEMORY.copy(target, source, size);
}

/// Device memory at `target` was filled with `count` times the lowest `width` bytes of `pattern`.
pub(crate) fn fill(target: u64, pattern: u32, width: u32, count: u64) {
    let pattern = pattern.to_le_bytes();
    let pattern = &pattern[..(width as usize).clamp(1, pattern.len())];
    let size = count.saturating_mul(pattern.len() as u64);
    if pattern.iter().all(|byte| *byte == pattern[0]) {
        MEMORY.fill(target, pattern[0], size, Origin::True);
    } else if size <= LARGEST_PIECE as u64 {
        MEMORY.write(target, &pattern.repeat(count as usize), Origin::True);
    } else {
        MEMORY.forget(target, size);
    }
}

/// A call that is not looked into wrote at `target`, nobody knows how much: what was known there is known no
/// more.
pub(crate) fn overwritten(target: u64) {
    MEMORY.forget_block(target);
}

/// The same for a call over many operands, whose addresses it may have found at `list`.
pub(crate) fn overwritten_each(list: u64) {
    let length = blocks::reach(list).map_or(0, |reach| reach.bytes.min(MOST_VALUES));
    let mut bytes = vec![0; length as usize];
    let found = MEMORY.read(list, &mut bytes);
    let addresses = bytes.as_chunks().0.iter().map(|address| u64::from_le_bytes(*address));
    let targets: Vec<u64> = addresses.take_while(|target| blocks::reach(*target).is_some()).collect();
    if found.known == 0 || targets.is_empty() {
        overwritten(list);
    }
    targets.into_iter().for_each(overwritten);
}

/// A call that computes nothing here wrote `size` bytes at `target`.
pub(crate) fn computed(target: u64, size: u64) {
    MEMORY.forget(target, size);
}

/// Device memory was given back, or handed to another owner: nothing is known of it any more.
pub(crate) fn freed(address: u64, size: u64) {
    MEMORY.forget(address, size);
    blocks::gone(address, size);
}

/// Counts an assumption that the probe made: the id of an [`Assumption`].
///
/// # Safety
/// `name` is a string that ends with NUL.
#[unsafe(no_mangle)]
unsafe extern "C" fn memfit_vgpu_assumed(name: *const c_char) {
    if name.is_null() {
        return;
    }
    // SAFETY: the caller vouches for the string.
    let name = unsafe { CStr::from_ptr(name) };
    if let Ok(id) = name.to_str() {
        machine::count(TallyKind::ValuePolicy, id);
    }
}

/// An allocator above the device handed a block to another owner; the watcher library says so.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_handed_out(address: u64, size: u64) {
    MEMORY.forget(address, size);
    blocks::handed_out(address, size);
}

/// Whether all pages of a range are in the host's memory.
fn is_resident(start: *const u8, size: usize) -> bool {
    const PAGE: usize = 4096;
    let first = start.addr() / PAGE * PAGE;
    let pages = (start.addr() + size).div_ceil(PAGE) - first / PAGE;
    let mut resident = vec![0_u8; pages];
    // SAFETY: the room has a byte for each page; the call looks at page tables, and at no memory.
    let status = unsafe {
        libc::mincore(start.with_addr(first) as *mut libc::c_void, pages * PAGE, resident.as_mut_ptr())
    };
    status == 0 && resident.iter().all(|page| page & 1 == 1)
}

/// Makes all bytes zero without touching pages that are zero already: the host's memory for a large copy may
/// never have been touched, and committing gigabytes of zeros could exhaust a laptop.
fn clear(bytes: &mut [u8]) {
    const PAGE: usize = 4096;
    if bytes.len() < 4 * PAGE {
        bytes.fill(0);
        return;
    }
    for chunk in bytes.chunks_mut(PAGE) {
        // Reading an untouched page maps the kernel's one page of zeros. A whole page is looked at in one go.
        if chunk.iter().fold(0, |all, byte| all | byte) != 0 {
            chunk.fill(0);
        }
    }
}
