//! Tests of page-locked and managed memory, and of pointer attributes.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use crate::{
    cuda::*,
    machine::{MIB, alone, enter, ledger, page_bytes},
};

/// Kind, device, device pointer, host pointer.
fn attributes(address: u64) -> (i32, i32, u64, u64) {
    let mut words = [0u64; 11];
    assert_eq!(cudaPointerGetAttributes(&raw mut words, address), 0);
    (words[0] as u32 as i32, (words[0] >> 32) as i32, words[1], words[2])
}

#[test]
fn pointers_tell_what_they_are() {
    enter();
    let device = malloc(MIB);
    let pinned = out(|address| cudaHostAlloc(address, MIB, 0));
    let managed = out(|address| cudaMallocManaged(address, MIB, 1));
    let own = vec![0u8; 8192];
    let own = own.as_ptr() as u64;
    assert_eq!(attributes(device + 5), (2, 0, device + 5, 0));
    assert_eq!(attributes(pinned + 5), (1, 0, pinned + 5, pinned + 5));
    assert_eq!(attributes(managed), (3, 0, managed, managed));
    assert_eq!(attributes(own), (0, -2, 0, own));
    assert_eq!(attributes(device + MIB).0, 0, "one past the end");

    assert_eq!(cudaFree(device), 0);
    assert_eq!(cudaFree(managed), 0);
    assert_eq!(cudaFreeHost(pinned), 0);
    assert_eq!(attributes(device).0, 0, "freed");
}

#[test]
fn unknown_contents_read_as_zeros_in_page_locked_memory() {
    enter();
    let size = 4 * MIB;
    let device = malloc(size);
    let pinned = out(|address| cudaHostAlloc(address, size, 0));
    // Whole pages and parts of them; the bytes around them stay.
    for (begin, end) in [(0, size), (100, size - 100), (4096, size), (5000, 3 * MIB + 1), (0, 5000)] {
        // SAFETY: the block belongs to this test alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pinned as *mut u8, size as usize) };
        bytes.fill(7);
        assert_eq!(cudaMemcpy(pinned + begin, device, end - begin, DEVICE_TO_HOST), 0);
        let (before, rest) = bytes.split_at(begin as usize);
        let (copied, after) = rest.split_at((end - begin) as usize);
        assert!(copied.iter().all(|byte| *byte == 0), "{begin}..{end}");
        assert!(before.iter().chain(after).all(|byte| *byte == 7), "{begin}..{end}");
    }
    assert_eq!(cudaFree(device), 0);
    assert_eq!(cudaFreeHost(pinned), 0);
}

#[test]
fn the_driver_knows_pointers_too() {
    enter();
    let device = malloc(MIB);
    let (mut kind, mut ordinal, mut size, mut managed) = (9u32, 9i32, 9u64, 9u8);
    let places =
        [&raw mut kind as u64, &raw mut ordinal as u64, &raw mut size as u64, &raw mut managed as u64];
    let numbers = [2, 9, 12, 8];
    assert_eq!(cuPointerGetAttributes(4, numbers.as_ptr(), places.as_ptr(), device), 0);
    assert_eq!((kind, ordinal, size, managed), (2, 0, MIB, 0));
    let own = 0u8;
    assert_eq!(cuPointerGetAttributes(4, numbers.as_ptr(), places.as_ptr(), &raw const own as u64), 0);
    assert_eq!((kind, ordinal, size, managed), (0, -2, 0, 0), "of the program's own memory, nothing");
    let mut value = 0;
    assert_eq!(cuPointerGetAttribute(&raw mut value, 2, &raw const own as u64), INVALID_VALUE);
    assert_eq!(cuPointerGetAttribute(&raw mut value, 999, device), INVALID_VALUE);
    assert_eq!(cudaFree(device), 0);
}

#[test]
fn memory_is_registered_once_and_whole() {
    enter();
    let own = vec![0u8; 64 << 10];
    let start = own.as_ptr() as u64;
    assert_eq!(cudaHostUnregister(start), NOT_REGISTERED);
    assert_eq!(cudaHostRegister(start, 32 << 10, 0), 0);
    assert_eq!(attributes(start + 100).0, 1);
    for (address, size) in [(start, 1), (start + 100, 10), (start + (31 << 10), 32 << 10)] {
        assert_eq!(cudaHostRegister(address, size, 0), ALREADY_REGISTERED);
    }
    assert_eq!(cudaHostRegister(start + (32 << 10), 1 << 10, 0), 0, "the neighbour");
    let mut device = 0;
    assert_eq!(cudaHostGetDevicePointer(&raw mut device, start + 8, 0), 0);
    assert_eq!(device, start + 8);
    assert_eq!(cudaHostUnregister(start + 8), NOT_REGISTERED, "not its first address");
    assert_eq!(cudaHostUnregister(start), 0);
    assert_eq!(cudaHostUnregister(start), NOT_REGISTERED);
    assert_eq!(cudaHostUnregister(start + (32 << 10)), 0);
    assert_eq!(attributes(start).0, 0);
    assert_eq!(cudaHostGetDevicePointer(&raw mut device, start, 0), INVALID_VALUE);
    assert_eq!(cudaHostRegister(0, 1, 0), INVALID_VALUE);
    assert_eq!(cudaHostRegister(start, 0, 0), INVALID_VALUE);
    cudaGetLastError();
}

#[test]
fn page_locked_memory_is_booked_and_can_be_used() {
    let _alone = alone();
    let pinned =
        |view: memfit_channel::LedgerView| view.processes.iter().map(|process| process.pinned).sum::<u64>();
    malloc(MIB);
    let before = pinned(ledger());
    let address = out(|address| cudaHostAlloc(address, 3 * MIB + 1, 4));
    assert_eq!(pinned(ledger()) - before, 3 * MIB + page_bytes());
    // SAFETY: three MiB of page-locked memory belong to this test.
    let bytes = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, 3 << 20) };
    assert!(bytes.iter().all(|&byte| byte == 0));
    bytes.fill(7);
    assert_eq!(out(|flags| cudaHostGetFlags(flags, address)) & 4, 4);
    assert_eq!(cudaFreeHost(address), 0);
    assert_eq!(cudaFreeHost(address), INVALID_VALUE);
    assert_eq!(pinned(ledger()), before);
    cudaGetLastError();
}

#[test]
fn managed_memory_is_the_hosts_too_and_counts_on_the_card() {
    let _alone = alone();
    malloc(0);
    let before = info().0;
    let address = out(|address| cudaMallocManaged(address, 5 * MIB, 1));
    assert_eq!(before - info().0, 6 * MIB);
    // SAFETY: five MiB of managed memory belong to this test.
    let bytes = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, 5 << 20) };
    bytes.fill(3);
    assert_eq!(cudaMemset(address, 9, 100), 0);
    assert_eq!((bytes[99], bytes[100]), (9, 3));
    assert_eq!(cudaFree(address), 0);
    assert_eq!(info().0, before);
}
