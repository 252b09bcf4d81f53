//! Tests of virtual memory management: separate physical memory and address ranges, as PyTorch's expandable
//! segments use them.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use crate::{
    cuda::*,
    machine::{CAPACITY, GIB, MIB, alone},
};

fn properties() -> Properties {
    Properties { kind: 1, location_kind: 1, ..Properties::default() }
}

fn create(size: u64) -> u64 {
    out(|handle| cuMemCreate(handle, size, &properties(), 0))
}

fn reserve(size: u64) -> u64 {
    out(|address| cuMemAddressReserve(address, size, 0, 0, 0))
}

#[test]
fn physical_memory_costs_and_address_space_does_not() {
    let _alone = alone();
    malloc(0);
    let before = info().0;
    assert_eq!(out(|size| cuMemGetAllocationGranularity(size, &properties(), 0)), 2 * MIB);
    let space = reserve(64 * GIB);
    assert_eq!(info().0, before);
    let handle = create(20 * MIB);
    assert_eq!(before - info().0, 20 * MIB);
    assert_eq!(cuMemMap(space + 40 * MIB, 20 * MIB, 0, handle, 0), 0);
    let access = Access { kind: 1, id: 0, flags: 3 };
    assert_eq!(cuMemSetAccess(space + 40 * MIB, 20 * MIB, &raw const access, 1), 0);
    assert_eq!(out(|flags| cuMemGetAccess(flags, &[1, 0], space + 41 * MIB)), 3);
    assert_eq!(before - info().0, 20 * MIB, "mapping costs nothing more");
    assert_eq!(cuMemRelease(handle), 0);
    assert_eq!(before - info().0, 20 * MIB, "what is mapped stays");
    assert_eq!(cuMemAddressFree(space, 64 * GIB), INVALID_VALUE, "and holds its addresses");
    assert_eq!(cuMemUnmap(space + 40 * MIB, 20 * MIB), 0);
    assert_eq!(info().0, before);
    assert_eq!(cuMemAddressFree(space, 32 * GIB), INVALID_VALUE, "half of a reservation");
    assert_eq!(cuMemAddressFree(space, 64 * GIB), 0);
    assert_eq!(cuMemAddressFree(space, 64 * GIB), INVALID_VALUE);
}

#[test]
fn a_segment_grows_piece_by_piece_and_is_one_range() {
    let _alone = alone();
    let space = reserve(GIB);
    for piece in 0..10 {
        let handle = create(20 * MIB);
        assert_eq!(cuMemMap(space + piece * 20 * MIB, 20 * MIB, 0, handle, 0), 0);
        assert_eq!(cuMemRelease(handle), 0);
    }
    let own = vec![1u8; 60 << 20];
    assert_eq!(
        cudaMemcpy(space + 30 * MIB, own.as_ptr() as u64, 60 * MIB, HOST_TO_DEVICE),
        0,
        "across pieces"
    );
    assert_eq!(cudaMemcpy(space + 190 * MIB, own.as_ptr() as u64, 11 * MIB, HOST_TO_DEVICE), INVALID_VALUE);
    assert_eq!(cuMemUnmap(space + 10 * MIB, 20 * MIB), INVALID_VALUE, "not at a piece's start");
    assert_eq!(cuMemUnmap(space, 30 * MIB), INVALID_VALUE, "a piece and a half");
    assert_eq!(cuMemUnmap(space + 20 * MIB, 40 * MIB), 0, "two pieces");
    assert_eq!(
        cudaMemcpy(space + 10 * MIB, own.as_ptr() as u64, 20 * MIB, HOST_TO_DEVICE),
        INVALID_VALUE,
        "a hole"
    );
    assert_eq!(cuMemUnmap(space + 20 * MIB, 20 * MIB), INVALID_VALUE, "nothing there");
    assert_eq!(cuMemUnmap(space, 20 * MIB), 0);
    assert_eq!(cuMemUnmap(space + 60 * MIB, 140 * MIB), 0);
    assert_eq!(cuMemAddressFree(space, GIB), 0);
    cudaGetLastError();
}

#[test]
fn impossible_mappings_are_refused() {
    let _alone = alone();
    let (space, handle, mut other) = (reserve(100 * MIB), create(4 * MIB), 0);
    for (address, size, offset, with) in [
        (space, 3 * MIB, 0, handle),            // not a whole number of pieces
        (space + MIB, 4 * MIB, 0, handle),      // not aligned
        (space, 6 * MIB, 0, handle),            // more than there is
        (space, 4 * MIB, 2 * MIB, handle),      // beyond its end
        (space + 98 * MIB, 4 * MIB, 0, handle), // beyond the reservation
        (space - 4 * MIB, 4 * MIB, 0, handle),  // before it
        (space, 4 * MIB, 0, 12345),             // no such memory
    ] {
        assert_eq!(cuMemMap(address, size, offset, with, 0), INVALID_VALUE, "{:#x} {size}", address - space);
    }
    assert_eq!(cuMemMap(space, 4 * MIB, 0, handle, 0), 0);
    assert_eq!(cuMemMap(space + 2 * MIB, 4 * MIB, 0, handle, 0), INVALID_VALUE, "taken");
    for size in [0, MIB, 2 * MIB + 1] {
        assert_eq!(cuMemCreate(&raw mut other, size, &properties(), 0), INVALID_VALUE, "{size}");
    }
    assert_eq!(cuMemCreate(&raw mut other, CAPACITY, &properties(), 0), OUT_OF_MEMORY);
    let fabric = Properties { shareable: 8, ..properties() };
    assert_eq!(cuMemCreate(&raw mut other, 2 * MIB, &raw const fabric, 0), 801);
    assert_eq!(cuMemRelease(handle), 0);
    assert_eq!(cuMemUnmap(space, 4 * MIB), 0);
    assert_eq!(cuMemRelease(handle), INVALID_VALUE);
    assert_eq!(cuMemAddressFree(space, 100 * MIB), 0);
}

#[test]
fn a_handle_is_retained_from_an_address() {
    let _alone = alone();
    malloc(0);
    let before = info().0;
    let (space, handle) = (reserve(4 * MIB), create(4 * MIB));
    assert_eq!(cuMemMap(space, 4 * MIB, 0, handle, 0), 0);
    assert_eq!(out(|handle| cuMemRetainAllocationHandle(handle, space + 3 * MIB)), handle);
    assert_eq!(cuMemUnmap(space, 4 * MIB), 0);
    assert_eq!(cuMemRelease(handle), 0);
    assert_eq!(before - info().0, 4 * MIB, "one reference is left");
    assert_eq!(cuMemRelease(handle), 0);
    assert_eq!(info().0, before);
    assert_eq!(cuMemAddressFree(space, 4 * MIB), 0);
}

#[test]
fn memory_is_shared_by_a_descriptor_and_booked_once() {
    let _alone = alone();
    malloc(0);
    let shareable = Properties { shareable: 1, ..properties() };
    let handle = out(|handle| cuMemCreate(handle, 4 * MIB, &raw const shareable, 0));
    let descriptor: i32 = out(|target| cuMemExportToShareableHandle(target, handle, 1, 0));
    let before = info().0;
    let imported = out(|handle| cuMemImportFromShareableHandle(handle, descriptor as u64, 1));
    assert_eq!(info().0, before);
    let space = reserve(4 * MIB);
    assert_eq!(cuMemMap(space, 4 * MIB, 0, imported, 0), 0);
    assert_eq!(cuMemUnmap(space, 4 * MIB), 0);
    assert_eq!(cuMemAddressFree(space, 4 * MIB), 0);
    assert_eq!(cuMemRelease(imported), 0);
    assert_eq!(info().0, before, "what was imported was not this handle's to give back");
    assert_eq!(cuMemRelease(handle), 0);
    assert_eq!(info().0, before + 4 * MIB);
    // SAFETY: the descriptor is this test's own.
    unsafe { libc::close(descriptor) };
    let private = create(2 * MIB);
    let mut target = 0;
    assert_eq!(cuMemExportToShareableHandle(&raw mut target, private, 1, 0), INVALID_VALUE);
    assert_eq!(cuMemImportFromShareableHandle(&mut 0, 0, 1), INVALID_VALUE, "standard input is no memory");
    assert_eq!(cuMemRelease(private), 0);
}
