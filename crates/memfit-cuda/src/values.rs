//! Known contents of device memory, and the values that a read-back returns where they are unknown.
//!
//! Memory calls report copies, fills and frees; launches report the effects of kernels ([`memfit_kernels`]).
//! Small contents are kept ([`store`]), so uploaded data can be read back. A kernel's computed results read
//! as zeros, except where a rule answers instead. A rule's answer is kept like any other content, under the
//! rule's name, and is counted when the host reads it.
//!
//! This module knows only addresses and bytes, not devices, streams and errors.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

mod filter;
mod memory;
mod reads;
mod shared;
mod store;

use std::{
    ffi::{CStr, CString, c_char},
    slice,
    sync::{PoisonError, RwLock},
};

use memfit_channel::TallyKind;
use memfit_kernels::memory::{Extremes, MAX_PIECE_BYTES, Memory, Origin};
use memfit_vocabulary::Assumption;
use memory::{KnownMemory, Policy};

use crate::{
    machine,
    space::{blocks, pages},
};

static MEMORY: KnownMemory = KnownMemory::new(policy);

/// Policy by which rules choose a size between its bounds.
fn policy() -> Policy {
    match machine::get() {
        Err(_) => Policy::None,
        Ok(machine) if machine.setup.others.varied => Policy::Scattered,
        Ok(machine) => Policy::At(machine.setup.values),
    }
}

/// Largest read-back, in bytes, that may hold values a script decides on. Larger ones are data.
const MAX_VALUE_BYTES: u64 = 4096;

/// Records a copy from the host to device memory at `target`.
///
/// # Safety
/// `source` must be readable for `size` bytes.
pub(crate) unsafe fn host_to_device(target: u64, source: *const u8, size: u64) {
    if size <= MAX_PIECE_BYTES as u64 {
        // SAFETY: the caller guarantees that the bytes are readable.
        MEMORY.write(target, unsafe { slice::from_raw_parts(source, size as usize) }, Origin::True);
        return;
    }
    // Reading weights that are mapped from a file would load them into memory.
    if size > Extremes::MAX_BYTES as u64 || !is_resident(source, size as usize) {
        return MEMORY.forget(target, size);
    }
    // SAFETY: as above.
    match Extremes::from_bytes(unsafe { slice::from_raw_parts(source, size as usize) }) {
        Some(extremes) => MEMORY.mark_extremes(target, size, extremes),
        None => MEMORY.forget(target, size),
    }
}

/// Copies device memory at `source` to the host: known contents, and zeros for the rest. `is_clear` says that
/// the target is all zeros already.
///
/// # Safety
/// `target` must be writable for `size` bytes.
pub(crate) unsafe fn device_to_host(target: *mut u8, source: u64, size: u64, is_clear: bool) {
    // SAFETY: the caller guarantees the space. Memory that the host has never written reads as zeros, so it
    // is initialised.
    let bytes = unsafe { slice::from_raw_parts_mut(target, size as usize) };
    if !is_clear {
        clear(bytes);
    }
    let found = MEMORY.read(source, bytes);
    for assumption in reads::complete(bytes, found) {
        count_assumption(assumption.id());
    }
}

/// Device memory as kernels read and change it.
pub(crate) fn memory() -> &'static dyn Memory {
    &MEMORY
}

/// Contents of device memory as the host would read them, and whether a rule answered for any of them. With
/// `all`, `None` unless every byte is known; without, `None` unless some byte is.
pub(crate) fn known_contents(address: u64, size: u64, all: bool) -> Option<(Vec<u8>, bool)> {
    MEMORY.known_contents(address, size, all)
}

/// Records bytes received from another process of the run that knew them; a rule may have `answered` for them
/// there.
pub(crate) fn record_received(target: u64, bytes: &[u8], answered: bool) {
    let origin = if answered { Origin::Answer(Assumption::Elsewhere) } else { Origin::True };
    MEMORY.write(target, bytes, origin);
}

/// Shares a block with other processes, under a name that all of them know. The owner publishes the contents
/// that it knows.
pub(crate) fn share(name: u64, start: u64, size: u64, owner: bool) {
    MEMORY.share(name, start, size, owner);
}

/// Ends the sharing of a block.
pub(crate) fn unshare(start: u64) {
    shared::remove(start);
}

/// Records a copy within device memory or between devices.
pub(crate) fn device_to_device(target: u64, source: u64, size: u64) {
    MEMORY.copy(target, source, size);
}

/// Records a fill of device memory at `target` with `count` copies of the lowest `width` bytes of `pattern`.
pub(crate) fn fill(target: u64, pattern: u32, width: u32, count: u64) {
    let pattern = pattern.to_le_bytes();
    let pattern = &pattern[..(width as usize).clamp(1, pattern.len())];
    let size = count.saturating_mul(pattern.len() as u64);
    if pattern.iter().all(|byte| *byte == pattern[0]) {
        MEMORY.fill(target, pattern[0], size, Origin::True);
    } else if size <= MAX_PIECE_BYTES as u64 {
        MEMORY.write(target, &pattern.repeat(count as usize), Origin::True);
    } else {
        MEMORY.forget(target, size);
    }
}

/// Forgets the block at `target` after a call that wrote an unknown number of bytes there.
pub(crate) fn forget_block(target: u64) {
    MEMORY.forget_block(target);
}

/// Does the same for each operand of a call, whose addresses it may have read from `list`.
pub(crate) fn forget_each(list: u64) {
    let length = blocks::reach(list).map_or(0, |reach| reach.bytes.min(MAX_VALUE_BYTES));
    let mut bytes = vec![0; length as usize];
    let found = MEMORY.read(list, &mut bytes);
    let addresses = bytes.as_chunks().0.iter().map(|address| u64::from_le_bytes(*address));
    let targets: Vec<u64> = addresses.take_while(|target| blocks::reach(*target).is_some()).collect();
    if found.known == 0 || targets.is_empty() {
        forget_block(list);
    }
    targets.into_iter().for_each(forget_block);
}

/// Records that a call wrote `size` computed bytes at `target`.
pub(crate) fn record_computed(target: u64, size: u64) {
    MEMORY.forget(target, size);
}

/// Forgets device memory that was freed or handed to another owner.
pub(crate) fn record_freed(address: u64, size: u64) {
    MEMORY.forget(address, size);
    blocks::remove_blocks(address, size);
}

/// Counts an assumption that the probe made; `name` is the id of an [`Assumption`].
///
/// # Safety
/// `name` must be a NUL-terminated string.
#[unsafe(no_mangle)]
unsafe extern "C" fn memfit_vgpu_assumed(name: *const c_char) {
    if name.is_null() {
        return;
    }
    // SAFETY: the caller guarantees a valid string.
    let name = unsafe { CStr::from_ptr(name) };
    if let Ok(id) = name.to_str() {
        count_assumption(id);
    }
}

/// The probe's function for each assumption.
type OnAssumed = extern "C" fn(*const c_char);

static ON_ASSUMED: RwLock<Option<OnAssumed>> = RwLock::new(None);

/// Sets the function that gets the id of each assumption, in the thread that reads the value; null for none.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_on_assumed(function: Option<OnAssumed>) {
    *ON_ASSUMED.write().unwrap_or_else(PoisonError::into_inner) = function;
}

fn count_assumption(id: &str) {
    machine::count(TallyKind::ValuePolicy, id);
    // The probe's function waits for Python's lock, so none of ours may be held.
    let function = *ON_ASSUMED.read().unwrap_or_else(PoisonError::into_inner);
    if let (Some(function), Ok(id)) = (function, CString::new(id)) {
        function(id.as_ptr());
    }
}

/// Records that an allocator above the device handed out a block; called by the watcher library.
#[unsafe(no_mangle)]
extern "C" fn memfit_vgpu_handed_out(address: u64, size: u64) {
    MEMORY.forget(address, size);
    blocks::record_block(address, size);
}

/// Returns `true` if all pages of a range are resident in host memory.
fn is_resident(start: *const u8, size: usize) -> bool {
    let (first, bytes) = pages::around(start.addr() as u64, size as u64, pages::size());
    let mut resident = vec![0_u8; (bytes / pages::size()) as usize];
    // SAFETY: the buffer has a byte for each page; the call reads page tables only.
    let status = unsafe {
        libc::mincore(
            start.with_addr(first as usize) as *mut libc::c_void,
            bytes as usize,
            resident.as_mut_ptr(),
        )
    };
    status == 0 && resident.iter().all(|page| page & 1 == 1)
}

/// Zeroes bytes without touching pages that are zero already: the host memory for a large copy may never have
/// been touched, and committing gigabytes of zeros could exhaust a laptop's memory.
fn clear(bytes: &mut [u8]) {
    let page = pages::size() as usize;
    if bytes.len() < 4 * page {
        bytes.fill(0);
        return;
    }
    for chunk in bytes.chunks_mut(page) {
        // Reading an untouched page maps the kernel's shared zero page. A whole page is tested in one go.
        if chunk.iter().fold(0, |all, byte| all | byte) != 0 {
            chunk.fill(0);
        }
    }
}
