//! Tests of error state, names and texts, and of functions looked up by name.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use std::{
    ffi::{CStr, CString, c_char},
    thread,
};

use crate::{
    cuda::*,
    machine::{CARDS, enter},
};

fn text(text: *const c_char) -> String {
    // SAFETY: error texts are NUL-terminated strings that live for ever.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

#[test]
fn the_last_error_stays_until_it_is_read_and_is_each_threads_own() {
    enter();
    assert_eq!(cudaGetLastError(), 0);
    assert_eq!(cudaSetDevice(CARDS), INVALID_DEVICE);
    assert_eq!(cudaGetDevice(&mut 0), 0, "success does not wipe it out");
    assert_eq!(cudaPeekAtLastError(), INVALID_DEVICE);
    assert_eq!(cudaFree(1), INVALID_VALUE);
    assert_eq!(cudaPeekAtLastError(), INVALID_VALUE, "the newest counts");
    thread::spawn(|| assert_eq!(cudaPeekAtLastError(), 0)).join().unwrap();
    assert_eq!(cudaGetLastError(), INVALID_VALUE);
    assert_eq!(cudaGetLastError(), 0);
    assert_eq!(cuCtxSetCurrent(12345), INVALID_CONTEXT);
    assert_eq!(cudaPeekAtLastError(), 0, "the driver leaves none behind");
}

#[test]
fn errors_have_names_and_texts() {
    for (code, name, driver_name, says) in [
        (0, "cudaSuccess", "CUDA_SUCCESS", "no error"),
        (2, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
        (3, "cudaErrorInitializationError", "CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
        (100, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
        (
            700,
            "cudaErrorIllegalAddress",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "an illegal memory access was encountered",
        ),
    ] {
        assert_eq!(text(cudaGetErrorName(code)), name);
        assert_eq!(text(cudaGetErrorString(code)), says);
        let mut found = std::ptr::null();
        assert_eq!(cuGetErrorName(code, &raw mut found), 0);
        assert_eq!(text(found), driver_name);
        assert_eq!(cuGetErrorString(code, &raw mut found), 0);
        assert_eq!(text(found), says);
    }
    assert_eq!(text(cudaGetErrorName(11)), "unrecognized error code");
    assert_eq!(text(cudaGetErrorString(-1)), "unrecognized error code");
    let mut found = std::ptr::dangling();
    assert_eq!(cuGetErrorName(11, &raw mut found), INVALID_VALUE);
    assert!(found.is_null());
}

#[test]
fn functions_are_found_by_name_and_release() {
    enter();
    let find = |name: &str, version: i32| {
        let name = CString::new(name).unwrap();
        let (mut function, mut result) = (9, 9);
        let status = cuGetProcAddress_v2(name.as_ptr(), &raw mut function, version, 0, &raw mut result);
        (status, function, result)
    };
    type New = fn(*mut u64, u64) -> i32;
    let _: New = cuMemAlloc_v2;
    let old = find("cuMemAlloc", 3010);
    let new = find("cuMemAlloc", 12_000);
    assert_eq!((old.0, new.0), (0, 0));
    assert_ne!(old.1, new.1, "an old release gets the old function");
    // The new version allocates, the old one is refused.
    enter();
    // SAFETY: these are the functions of these types.
    let new: extern "C" fn(*mut u64, u64) -> i32 = unsafe { std::mem::transmute(new.1 as usize) };
    let address = out(|address| new(address, 100));
    assert_eq!(cudaFree(address), 0);
    assert_eq!(cuMemAlloc(&mut 0, 100), 801);

    assert_eq!(find("cuNoSuchThing", 12_000), (NOT_FOUND, 0, 1));
    assert_eq!(find("cuMemCreate", 9_000), (NOT_FOUND, 0, 2), "it came later");
    assert_eq!(find("cuMemCreate", 10_020).0, 0);
    assert_eq!(find("cuMemAlloc_v2", 12_000).0, NOT_FOUND, "names carry no version");

    let name = c"cuMemAddressReserve";
    let (mut function, mut result) = (0, 9);
    let status =
        cudaGetDriverEntryPointByVersion(name.as_ptr(), &raw mut function, 12_000, 0, &raw mut result);
    assert_eq!((status, result), (0, 0));
    assert_ne!(function, 0);
    let status = cudaGetDriverEntryPointByVersion(
        c"cuNothing".as_ptr(),
        &raw mut function,
        12_000,
        0,
        &raw mut result,
    );
    assert_eq!((status, function, result), (0, 0, 1), "who asks for a result gets no error");
}
