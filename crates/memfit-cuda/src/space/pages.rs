//! Address space and pages, from the operating system.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use crate::status::{Outcome, Status};

/// Reserves address space with nothing behind it.
pub(crate) fn reserve(length: u64) -> Outcome<u64> {
    map(length, libc::PROT_NONE, libc::MAP_NORESERVE)
}

/// Gets pages that become real when they are touched. `shared` ones stay one and the same after a fork.
pub(crate) fn allocate(length: u64, shared: bool) -> Outcome<u64> {
    let sharing = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    map_with(length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_NORESERVE | sharing)
}

fn map(length: u64, protection: libc::c_int, flags: libc::c_int) -> Outcome<u64> {
    map_with(length, protection, flags | libc::MAP_PRIVATE)
}

fn map_with(length: u64, protection: libc::c_int, flags: libc::c_int) -> Outcome<u64> {
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
    let address = unsafe {
        libc::mmap(std::ptr::null_mut(), length as usize, protection, flags | libc::MAP_ANONYMOUS, -1, 0)
    };
    if address == libc::MAP_FAILED { Err(Status::OUT_OF_MEMORY) } else { Ok(address as u64) }
}

/// Makes whole pages of [`allocate`]'s that are not shared zeros, with nothing behind them; false where the
/// system refuses.
///
/// # Safety
/// Nobody else may use them meanwhile.
pub(crate) unsafe fn clear(address: u64, length: u64) -> bool {
    // SAFETY: the caller vouches that the range is one of ours; private pages without a file read as zeros
    // after this.
    unsafe { libc::madvise(address as *mut libc::c_void, length as usize, libc::MADV_DONTNEED) == 0 }
}

/// Gives back what one of the functions above gave.
///
/// # Safety
/// Nothing may be used there any more.
pub(crate) unsafe fn free(address: u64, length: u64) {
    // SAFETY: the caller vouches that the range is one of ours and not in use.
    unsafe { libc::munmap(address as *mut libc::c_void, length as usize) };
}
