//! cuBLAS and cuBLASLt.

#![allow(unsafe_code, reason = "the tests call as C callers do")]

use crate::calls::*;
use crate::machine::enter;
use crate::real;

const NOT_INITIALIZED: i32 = 1;
const INVALID_VALUE: i32 = 7;

type Set = extern "C" fn(usize, i32) -> i32;
type Get = extern "C" fn(usize, &mut i32) -> i32;

#[test]
fn a_handle_gives_back_what_was_set() {
    enter();
    let handle = create_handle(|handle| cublasCreate_v2(handle));
    assert_eq!(cublasSetStream_v2(handle, 42), 0);
    assert_eq!(create_handle(|stream| cublasGetStream_v2(handle, stream)), 42);
    let settings: [(Set, Get); 2] =
        [(cublasSetMathMode, cublasGetMathMode), (cublasSetPointerMode_v2, cublasGetPointerMode_v2)];
    for (set, get) in settings {
        let mut value = -1;
        assert_eq!(get(handle, &mut value), 0);
        assert_eq!(value, 0, "the default");
        assert_eq!(set(handle, 1), 0);
        assert_eq!(get(handle, &mut value), 0);
        assert_eq!(value, 1);
    }
    assert_eq!(cublasSetWorkspace_v2(handle, 0x1000, 4096), 0);
    assert_eq!(cublasSetWorkspace_v2(handle, 0x1010, 4096), INVALID_VALUE, "not aligned");
    assert_eq!(cublasDestroy_v2(handle), 0);
    assert_eq!(cublasDestroy_v2(0), NOT_INITIALIZED);
}

#[test]
fn handles_of_one_library_are_not_anothers() {
    enter();
    let solver = create_handle(|handle| cusolverDnCreate(handle));
    assert_eq!(cublasSetMathMode(solver, 1), NOT_INITIALIZED);
    assert_eq!(cusolverDnDestroy(solver), 0);
}

#[test]
fn matrices_travel_with_their_padding() {
    enter();
    // Two columns of three bytes, in columns of four on the host and of five on the device.
    let host: [u8; 8] = [1, 2, 3, 99, 4, 5, 6, 99];
    let device = device_memory(10);
    let mut back = [0_u8; 6];
    // SAFETY: the arrays have the sizes given by the shapes.
    unsafe {
        assert_eq!(cublasSetMatrix(3, 2, 1, host.as_ptr(), 4, device, 5), 0);
        assert_eq!(cublasGetMatrix(3, 2, 1, device, 5, back.as_mut_ptr(), 3), 0);
        assert_eq!(back, [1, 2, 3, 4, 5, 6]);
        assert_eq!(
            cublasSetMatrix(3, 2, 1, host.as_ptr(), 2, device, 5),
            INVALID_VALUE,
            "columns shorter than rows"
        );
        assert_eq!(cublasSetMatrix(-1, 2, 1, host.as_ptr(), 4, device, 5), INVALID_VALUE);
    }
    assert_eq!(cudaFree(device), 0);
}

#[test]
fn an_algorithm_is_found_and_keeps_its_settings() {
    if !real::loaded() {
        return;
    }
    enter();
    let handle = create_handle(|handle| cublasLtCreate(handle));
    let operation = create_handle(|descriptor| cublasLtMatmulDescCreate(descriptor, 68, 0));
    let layout = create_handle(|layout| cublasLtMatrixLayoutCreate(layout, 0, 64, 64, 64));
    let preference = create_handle(|preference| cublasLtMatmulPreferenceCreate(preference));
    // CUBLASLT_MATMUL_DESC_TRANSA.
    assert_eq!(cublasLtMatmulDescSetAttribute(operation, 3, &1, 4), 0);
    let (mut transposed, mut written) = (-1, 0);
    assert_eq!(cublasLtMatmulDescGetAttribute(operation, 3, &mut transposed, 4, &mut written), 0);
    assert_eq!((transposed, written), (1, 4), "descriptors are the real library's");

    let (mut results, mut returned) = ([[u64::MAX; 12]; 2], 0);
    let found = cublasLtMatmulAlgoGetHeuristic(
        handle,
        operation,
        layout,
        layout,
        layout,
        layout,
        preference,
        2,
        &mut results,
        &mut returned,
    );
    assert_eq!((found, returned), (0, 1));
    let [algorithm @ .., workspace, state_and_waves, _, _] = results[0];
    assert_eq!((workspace, state_and_waves as u32), (0, 0), "fits into any workspace, and works");
    assert_eq!(results[1], [u64::MAX; 12], "no more than it found");
    let mut algorithm: [u64; 8] = algorithm;
    let (mut tile, mut written) = (0, 0);
    assert_eq!(cublasLtMatmulAlgoConfigSetAttribute(&mut algorithm, 1, &20, 4), 0);
    assert_eq!(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, 1, &mut tile, 4, &mut written), 0);
    assert_eq!((tile, written), (20, 4));
    assert_eq!(
        cublasLtMatmulAlgoConfigSetAttribute(&mut [0; 8], 1, &20, 4),
        INVALID_VALUE,
        "not one of ours"
    );

    assert_eq!(
        cublasLtMatmulAlgoGetHeuristic(
            handle,
            operation,
            layout,
            layout,
            layout,
            0,
            preference,
            2,
            &mut results,
            &mut returned
        ),
        INVALID_VALUE
    );
    assert_eq!(cublasLtMatmulPreferenceDestroy(preference), 0);
    assert_eq!(cublasLtMatrixLayoutDestroy(layout), 0);
    assert_eq!(cublasLtMatmulDescDestroy(operation), 0);
    assert_eq!(cublasLtDestroy(handle), 0);
}

#[test]
fn the_version_is_the_real_librarys() {
    if !real::loaded() {
        return;
    }
    enter();
    let handle = create_handle(|handle| cublasCreate_v2(handle));
    let mut version = 0;
    assert_eq!(cublasGetVersion_v2(handle, &mut version), 0);
    assert!((120_000..200_000).contains(&version), "{version}");
    assert_eq!(cublasDestroy_v2(handle), 0);
}
