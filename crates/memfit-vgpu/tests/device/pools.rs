//! Memory pools.

use crate::{
    cuda::*,
    machine::{MIB, alone},
};

const THRESHOLD: i32 = 4;
const RESERVED: i32 = 5;
const RESERVED_HIGH: i32 = 6;
const USED: i32 = 7;

fn get(pool: u64, attribute: i32) -> u64 {
    out(|value| cudaMemPoolGetAttribute(pool, attribute, value))
}

fn set(pool: u64, attribute: i32, mut value: u64) -> i32 {
    cudaMemPoolSetAttribute(pool, attribute, &raw mut value)
}

fn make(max_size: u64) -> u64 {
    let properties = PoolProperties {
        kind: 1,
        handles: 0,
        location_kind: 1,
        location: 0,
        security: 0,
        max_size,
        rest: [0; 7],
    };
    out(|pool| cudaMemPoolCreate(pool, &raw const properties))
}

#[test]
fn a_pool_keeps_memory_until_the_card_is_waited_for() {
    let _alone = alone();
    malloc(0);
    let before = info().0;
    let pool = make(0);
    let first = out(|address| cudaMallocFromPoolAsync(address, 5 * MIB, pool, 0));
    assert_eq!((get(pool, RESERVED), get(pool, USED)), (32 * MIB, 5 * MIB));
    assert_eq!(before - info().0, 32 * MIB);
    assert_eq!(cudaFreeAsync(first, 0), 0);
    assert_eq!(cudaFreeAsync(first, 0), INVALID_VALUE, "twice");
    assert_eq!((get(pool, RESERVED), get(pool, USED)), (32 * MIB, 0));
    let again = out(|address| cudaMallocFromPoolAsync(address, 5 * MIB, pool, 0));
    assert_eq!(again, first, "served from what was freed");
    assert_eq!(cudaFree(again), 0, "cudaFree takes it too");
    assert_eq!(cudaDeviceSynchronize(), 0);
    assert_eq!(get(pool, RESERVED), 0, "the threshold is zero");
    assert_eq!(info().0, before);
    assert_eq!(get(pool, RESERVED_HIGH), 32 * MIB);
    assert_eq!(set(pool, RESERVED_HIGH, 0), 0);
    assert_eq!(get(pool, RESERVED_HIGH), 0);

    assert_eq!(set(pool, THRESHOLD, u64::MAX), 0);
    let kept = out(|address| cudaMallocFromPoolAsync(address, 40 * MIB, pool, 0));
    assert_eq!(cudaFreeAsync(kept, 0), 0);
    assert_eq!(cudaDeviceSynchronize(), 0);
    assert_eq!(get(pool, RESERVED), 64 * MIB, "below the threshold it keeps all");
    assert_eq!(cudaMemPoolTrimTo(pool, 0), 0);
    assert_eq!(info().0, before);
    assert_eq!(cudaMemPoolDestroy(pool), 0);
    assert_eq!(cudaMemPoolTrimTo(pool, 0), INVALID_VALUE);
    cudaGetLastError();
}

#[test]
fn pools_have_limits_and_share_the_gpus_memory() {
    let _alone = alone();
    malloc(0);
    let before = info().0;
    let pool = make(64 * MIB);
    let mut address = 0;
    assert_eq!(cudaMallocFromPoolAsync(&raw mut address, 65 * MIB, pool, 0), OUT_OF_MEMORY);
    let held = out(|address| cudaMallocFromPoolAsync(address, 60 * MIB, pool, 0));
    assert_eq!(cudaMallocFromPoolAsync(&raw mut address, 5 * MIB, pool, 0), OUT_OF_MEMORY);
    assert_eq!(cudaFreeAsync(held, 0), 0);
    assert_eq!(cudaMemPoolDestroy(pool), 0);

    let default = out(|pool| cudaDeviceGetDefaultMemPool(pool, 0));
    assert_eq!(cudaMemPoolDestroy(default), INVALID_VALUE);
    assert_eq!(cudaMallocAsync(&raw mut address, u64::MAX, 0), OUT_OF_MEMORY);
    // Nearly the whole device: a large piece no longer fits, one that just suffices does.
    let most = (before - 3 * MIB) / (2 * MIB) * (2 * MIB);
    let all = out(|address| cudaMallocAsync(address, most, 0));
    assert_eq!(cudaFreeAsync(all, 0), 0);
    assert_eq!(cudaDeviceSynchronize(), 0);
    assert_eq!(info().0, before);
    cudaGetLastError();
}
