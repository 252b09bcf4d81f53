//! Tests of devices, contexts, limits and peers.

use std::{ffi::CStr, thread};

use crate::{
    cuda::*,
    machine::{CARDS, MIB, alone, enter},
};

#[test]
fn each_thread_has_its_own_current_card() {
    enter();
    assert_eq!(out(cudaGetDeviceCount), CARDS);
    assert_eq!(cudaSetDevice(1), 0);
    assert_eq!(out(cudaGetDevice), 1);
    thread::spawn(|| assert_eq!(out(cudaGetDevice), 0)).join().unwrap();
    for wrong in [CARDS, -1, i32::MAX] {
        assert_eq!(cudaSetDevice(wrong), INVALID_DEVICE);
    }
    assert_eq!(out(cudaGetDevice), 1);
    assert_eq!(cudaSetDevice(0), 0);
    cudaGetLastError();
}

#[test]
fn contexts_are_a_stack() {
    let _alone = alone();
    assert_eq!(cuInit(0), 0);
    assert_eq!(cuInit(1), INVALID_VALUE);
    let primary = out(|context| cuDevicePrimaryCtxRetain(context, 1));
    assert_eq!(out(|active| cuDevicePrimaryCtxGetState(1, &mut 0, active)), 1);
    assert_eq!(cuCtxSetCurrent(primary), 0);
    assert_eq!(out(cuCtxGetCurrent), primary);
    assert_eq!(out(cuCtxGetDevice), 1);
    assert_eq!(out(cudaGetDevice), 1, "the runtime follows");

    let made = out(|context| cuCtxCreate_v2(context, 0, 0));
    assert_eq!(out(cuCtxGetDevice), 0);
    assert_eq!(out(cuCtxPopCurrent_v2), made);
    assert_eq!(out(cuCtxGetCurrent), primary);
    assert_eq!(cuCtxPushCurrent_v2(made), 0);
    assert_eq!(cuCtxDestroy_v2(made), 0);
    assert_eq!(out(cuCtxGetCurrent), primary);
    for gone in [made, 0x1234, u64::MAX] {
        assert_eq!(cuCtxSetCurrent(gone), INVALID_CONTEXT);
        assert_eq!(cuCtxPushCurrent_v2(gone), INVALID_CONTEXT);
        assert_eq!(cuCtxDestroy_v2(gone), INVALID_CONTEXT);
    }
    assert_eq!(cudaSetDevice(0), 0);
    assert_ne!(out(cuCtxGetCurrent), primary, "the runtime's choice counts");
    assert_eq!(cuDevicePrimaryCtxRelease_v2(1), 0);
    assert_eq!(cuDevicePrimaryCtxRelease_v2(1), INVALID_CONTEXT, "once too often");
}

#[test]
fn limits_are_stored_and_returned() {
    enter();
    for limit in 0..7 {
        assert_eq!(cudaDeviceSetLimit(limit, 4096), 0);
        assert_eq!(out(|value| cudaDeviceGetLimit(value, limit)), 4096);
    }
    for limit in [-1, 7, 99] {
        assert_eq!(cudaDeviceSetLimit(limit, 1), UNSUPPORTED_LIMIT);
        assert_eq!(cudaDeviceGetLimit(&mut 0, limit), UNSUPPORTED_LIMIT);
    }
    cudaGetLastError();
}

#[test]
fn peers_are_enabled_once() {
    let _alone = alone();
    assert_eq!(out(|answer| cudaDeviceCanAccessPeer(answer, 0, 1)), 1);
    assert_eq!(out(|answer| cudaDeviceCanAccessPeer(answer, 0, 0)), 0);
    assert_eq!(cudaDeviceDisablePeerAccess(1), PEER_NOT);
    assert_eq!(cudaDeviceEnablePeerAccess(1, 0), 0);
    assert_eq!(cudaDeviceEnablePeerAccess(1, 0), PEER_ALREADY);
    assert_eq!(cudaDeviceEnablePeerAccess(0, 0), INVALID_DEVICE);
    assert_eq!(cudaDeviceDisablePeerAccess(1), 0);
    let here = malloc(MIB);
    assert_eq!(cudaSetDevice(1), 0);
    let there = malloc(MIB);
    assert_eq!(cudaMemcpy(there, here, MIB, DEVICE_TO_DEVICE), 0);
    assert_eq!(cudaSetDevice(0), 0);
    assert_eq!((cudaFree(here), cudaFree(there)), (0, 0));
    cudaGetLastError();
}

#[test]
fn cards_are_found_by_their_bus() {
    enter();
    for card in 0..CARDS {
        let mut text = [0u8; 20];
        assert_eq!(cudaDeviceGetPCIBusId(text.as_mut_ptr(), 20, card), 0);
        let text = CStr::from_bytes_until_nul(&text).unwrap();
        assert_eq!(out(|device| cudaDeviceGetByPCIBusId(device, text.as_ptr())), card);
    }
    assert_eq!(cudaDeviceGetByPCIBusId(&mut 0, c"0000:99:00.0".as_ptr()), INVALID_DEVICE);
    cudaGetLastError();
}
