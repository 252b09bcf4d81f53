//! Address space and pages from the operating system.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::FromRawFd as _;
use std::sync::OnceLock;

use crate::status::{Outcome, Status};

/// Size of a page of the host: 4 KiB on x86-64, and 4, 16 or 64 KiB on ARM.
pub(crate) fn size() -> u64 {
    static SIZE: OnceLock<u64> = OnceLock::new();
    // SAFETY: a query without side effects.
    *SIZE.get_or_init(|| u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

/// The whole pages that a range touches: the start of the first, and their bytes.
pub(crate) fn around(start: u64, length: u64, page: u64) -> (u64, u64) {
    let first = start / page * page;
    (first, (start + length).next_multiple_of(page) - first)
}

/// The whole pages within a range: the start of the first, and the end of the last; equal if there is none.
pub(crate) fn within(start: u64, end: u64, page: u64) -> (u64, u64) {
    let first = start.next_multiple_of(page);
    (first, (end / page * page).max(first))
}

/// Creates a file in memory. Its name is for people who look at the process's mappings.
pub(crate) fn file(name: &CStr) -> Outcome<File> {
    // The C library has a function for this call since glibc 2.27 only, and the wheel loads with 2.17.
    // SAFETY: the name ends with NUL; the new descriptor belongs only to the file made from it.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC);
        if descriptor < 0 {
            return Err(Status::OPERATING_SYSTEM);
        }
        Ok(File::from_raw_fd(descriptor as i32))
    }
}

/// Reserves address space without pages.
pub(crate) fn reserve(length: u64) -> Outcome<u64> {
    map(length, libc::PROT_NONE, libc::MAP_NORESERVE)
}

/// Maps pages that are committed when first touched. `shared` ones stay shared after a fork.
pub(crate) fn allocate(length: u64, shared: bool) -> Outcome<u64> {
    let sharing = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    map_with(length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_NORESERVE | sharing)
}

fn map(length: u64, protection: libc::c_int, flags: libc::c_int) -> Outcome<u64> {
    map_with(length, protection, flags | libc::MAP_PRIVATE)
}

fn map_with(length: u64, protection: libc::c_int, flags: libc::c_int) -> Outcome<u64> {
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
    let address = unsafe {
        libc::mmap(std::ptr::null_mut(), length as usize, protection, flags | libc::MAP_ANONYMOUS, -1, 0)
    };
    if address == libc::MAP_FAILED { Err(Status::OUT_OF_MEMORY) } else { Ok(address as u64) }
}

/// Zeroes whole private pages from [`allocate`] by dropping them; `false` if the system refuses.
///
/// # Safety
/// Nothing else may use the pages meanwhile.
pub(crate) unsafe fn clear(address: u64, length: u64) -> bool {
    // SAFETY: the caller guarantees that the range was allocated here; private pages without a file read as
    // zeros after this.
    unsafe { libc::madvise(address as *mut libc::c_void, length as usize, libc::MADV_DONTNEED) == 0 }
}

/// Unmaps memory from one of the functions above.
///
/// # Safety
/// The memory must not be used any more.
pub(crate) unsafe fn free(address: u64, length: u64) {
    // SAFETY: the caller guarantees that the range was allocated here and is not in use.
    unsafe { libc::munmap(address as *mut libc::c_void, length as usize) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_of_whole_pages_of_any_size() {
        for (page, touched, inner) in [
            (4 << 10, (0x1_0000, 0x1_2000), (0x1_1000, 0x2_1000)),
            (16 << 10, (0x1_0000, 0x1_4000), (0x1_4000, 0x2_0000)),
            (64 << 10, (0x1_0000, 0x2_0000), (0x2_0000, 0x2_0000)),
        ] {
            assert_eq!(around(0x1_0800, 0x1_1000, page), touched, "{page}");
            assert_eq!(within(0x1_0800, 0x2_1800, page), inner, "{page}");
        }
        assert_eq!(within(0x1_0800, 0x1_1000, 64 << 10), (0x2_0000, 0x2_0000), "none");
        assert!(size().is_power_of_two() && size() >= 4096);
    }
}
