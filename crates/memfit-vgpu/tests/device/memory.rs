//! Tests of allocation: its cost, its refusals, and pointer attributes.

use std::{collections::BTreeMap, thread};

use crate::{
    cuda::*,
    machine::{CAPACITY, CONTEXT, GIB, KIB, MIB, alone, enter, ledger},
};

#[test]
fn allocations_cost_what_the_driver_maps_for_them() {
    let _alone = alone();
    malloc(2 * MIB); // the context and the first small piece are not what is measured
    for (size, cost) in
        [(MIB + 1, 2 * MIB), (2 * MIB, 2 * MIB), (2 * MIB + 1, 4 * MIB), (20 * MIB, 20 * MIB), (GIB - 1, GIB)]
    {
        let before = info().0;
        let address = malloc(size);
        assert_eq!(before - info().0, cost, "{size}");
        assert_eq!(address % (2 * MIB), 0);
        assert_eq!(cudaFree(address), 0);
        assert_eq!(info().0, before, "{size} came back");
    }
}

#[test]
fn small_allocations_share_a_piece() {
    let _alone = alone();
    let before = info().0;
    let addresses: Vec<u64> = (0..64).map(|_| malloc(32 * KIB)).collect();
    let cost = before - info().0;
    assert!(cost <= 4 * MIB, "{cost} bytes for 2 MiB in 64 blocks");
    assert!(addresses.iter().all(|address| address % 256 == 0));
    let mut sorted = addresses.clone();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 32 * KIB), "no two overlap");
    for address in addresses {
        assert_eq!(cudaFree(address), 0);
    }
    assert_eq!(info().0, before);
}

#[test]
fn nothing_costs_nothing_and_enormous_is_refused() {
    let _alone = alone();
    assert_eq!(malloc(0), 0);
    assert_eq!(cudaFree(0), 0);
    for size in [u64::MAX, u64::MAX - MIB, 1 << 62, CAPACITY] {
        let mut address = 7;
        assert_eq!(cudaMalloc(&raw mut address, size), OUT_OF_MEMORY, "{size}");
    }
    assert_eq!(cudaMalloc(std::ptr::null_mut(), 1), INVALID_VALUE);
    let (mut address, mut pitch) = (0, 0);
    assert_eq!(cudaMallocPitch(&raw mut address, &raw mut pitch, 1 << 40, 1 << 40), OUT_OF_MEMORY);
    cudaGetLastError();
}

#[test]
fn the_capacity_is_exact_and_an_out_of_memory_error_passes() {
    let _alone = alone();
    malloc(0);
    let (free, total) = info();
    assert_eq!(total, CAPACITY);
    assert!(free <= CAPACITY - CONTEXT, "the context is taken off at its upper bound");
    let largest = free / (2 * MIB) * (2 * MIB);
    let mut address = 0;
    assert_eq!(cudaMalloc(&raw mut address, largest + 2 * MIB), OUT_OF_MEMORY);
    assert_eq!(cudaGetLastError(), OUT_OF_MEMORY);
    assert_eq!(cudaGetLastError(), 0, "the error does not stay");
    let all = malloc(largest);
    assert!(info().0 < 2 * MIB);
    assert_eq!(cudaMalloc(&raw mut address, 2 * MIB), OUT_OF_MEMORY);
    assert_eq!(cudaFree(all), 0);
    assert_eq!(cudaFree(malloc(largest)), 0);
    assert_eq!(ledger().cards[0].capacity, CAPACITY);
    assert!(ledger().cards[0].peak >= largest);
    cudaGetLastError();
}

#[test]
fn only_a_block_that_is_alive_can_be_freed_and_only_by_its_first_address() {
    let _alone = alone();
    for size in [100, 3 * MIB] {
        let address = malloc(size);
        let local = 0u64;
        for wrong in
            [address + 1, address + 64, address + size - 1, &raw const local as u64, 0xdead_beef, u64::MAX]
        {
            assert_eq!(cudaFree(wrong), INVALID_VALUE, "{wrong:#x}");
        }
        assert_eq!(cudaFree(address), 0);
        assert_eq!(cudaFree(address), INVALID_VALUE, "twice");
    }
    let pinned = out(|address| cudaHostAlloc(address, 100, 0));
    assert_eq!(cudaFree(pinned), INVALID_VALUE, "page-locked memory");
    assert_eq!(cudaFreeHost(pinned), 0);
    let device = malloc(100);
    assert_eq!(cudaFreeHost(device), INVALID_VALUE, "device memory");
    assert_eq!(cudaFree(device), 0);
    cudaGetLastError();
}

#[test]
fn an_address_leads_to_its_block() {
    enter();
    let address = malloc(5 * MIB);
    let (mut start, mut size) = (0, 0);
    for inside in [address, address + 1, address + 5 * MIB - 1] {
        assert_eq!(cuMemGetAddressRange_v2(&raw mut start, &raw mut size, inside), 0);
        assert_eq!((start, size), (address, 5 * MIB));
    }
    assert_eq!(cuMemGetAddressRange_v2(&raw mut start, &raw mut size, address + 5 * MIB), NOT_FOUND);
    assert_eq!(cudaFree(address), 0);
    assert_eq!(cuMemGetAddressRange_v2(&raw mut start, &raw mut size, address), NOT_FOUND);
}

#[test]
fn gpus_have_separate_memory() {
    let _alone = alone();
    let here = info().0;
    assert_eq!(cudaSetDevice(1), 0);
    let there = info().0;
    let address = malloc(GIB);
    assert_eq!(there - info().0, GIB);
    assert_eq!(cudaSetDevice(0), 0);
    assert_eq!(info().0, here);
    assert_eq!(cudaFree(address), 0, "memory can be freed from any card");
    assert_eq!(cudaSetDevice(1), 0);
    assert_eq!(info().0, there);
    assert_eq!(cudaSetDevice(0), 0);
}

/// Allocates and frees sizes of all kinds in random order.
#[test]
fn blocks_never_overlap_and_cost_no_more_than_their_pieces() {
    let _alone = alone();
    malloc(0);
    let before = info().0;
    let mut random = 88_172_645_463_325_252u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    for _ in 0..3000 {
        if next(5) < 2
            && let Some((&address, _)) = held.iter().nth(next(held.len().max(1) as u64) as usize)
        {
            assert_eq!(cudaFree(address), 0);
            held.remove(&address);
            continue;
        }
        let class = [400, 70 * KIB, MIB + 2, 40 * MIB][next(4) as usize];
        let size = 1 + next(class);
        let mut address = 0;
        if cudaMalloc(&raw mut address, size) == OUT_OF_MEMORY {
            continue;
        }
        assert_eq!(address % 256, 0);
        let below = held.range(..=address).next_back();
        assert!(below.is_none_or(|(&start, &length)| start + length <= address), "{address:#x}");
        let above = held.range(address..).next();
        assert!(above.is_none_or(|(&start, _)| address + size <= start), "{address:#x}");
        held.insert(address, size);
    }
    let large: u64 =
        held.values().filter(|&&size| size > MIB).map(|size| size.next_multiple_of(2 * MIB)).sum();
    let small: u64 = held.values().filter(|&&size| size <= MIB).map(|size| size.next_multiple_of(512)).sum();
    let cost = before - info().0;
    assert!(cost >= large + small, "{cost} bytes for {large} and {small}");
    for address in held.into_keys() {
        assert_eq!(cudaFree(address), 0);
    }
    assert_eq!(info().0, before);
    cudaGetLastError();
}

#[test]
fn threads_allocate_at_once_and_the_books_balance() {
    let _alone = alone();
    malloc(0);
    let before = info().0;
    thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let mut held: Vec<u64> = Vec::new();
                for round in 0..300u64 {
                    let size = (round * 7919 + thread * 104_729) % (900 * MIB / ((round % 7) * 40 + 1)) + 1;
                    let mut address = 0;
                    match cudaMalloc(&raw mut address, size) {
                        0 => held.push(address),
                        OUT_OF_MEMORY => {
                            for address in held.drain(..) {
                                assert_eq!(cudaFree(address), 0);
                            }
                        }
                        other => panic!("error {other}"),
                    }
                    let card = ledger().cards[0];
                    assert!(card.used + card.outside_high <= CAPACITY);
                }
                for address in held {
                    assert_eq!(cudaFree(address), 0);
                }
            });
        }
    });
    assert_eq!(info().0, before);
}
