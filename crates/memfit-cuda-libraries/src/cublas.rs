//! cuBLAS: handles that remember what was set on them, and products that take their time ([`products`]).
//!
//! The workspace that PyTorch hands in comes from its own allocator and shows in its figures; here it is only
//! named.

mod products;
mod scalars;

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use super::entry::{Handle, Kind, Out, Ptr, entry_points, guarded, handle_calls};
use super::real::real;
use memfit_cuda::card;

/// `cublasStatus_t`, as far as it is said here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const NOT_INITIALIZED: i32 = 1;
    pub(super) const INVALID_VALUE: i32 = 7;
    pub(super) const MAPPING_ERROR: i32 = 11;
    pub(super) const INTERNAL_ERROR: i32 = 14;
    pub(super) const NOT_SUPPORTED: i32 = 15;
}

/// What lies behind a handle.
#[derive(Default)]
struct Context {
    stream: AtomicUsize,
    pointer_mode: AtomicI32,
    atomics_mode: AtomicI32,
    math_mode: AtomicI32,
    sm_count_target: AtomicI32,
    emulation: Emulation,
}

/// How floating point is emulated (CUDA 13). Nothing is computed, so it is only given back.
struct Emulation {
    strategy: AtomicI32,
    special_values: AtomicI32,
    mantissa_control: AtomicI32,
    mantissa_bits: AtomicI32,
    mantissa_offset: AtomicI32,
    bit_count: AtomicUsize,
}

impl Default for Emulation {
    fn default() -> Self {
        Self {
            strategy: AtomicI32::new(0),
            special_values: AtomicI32::new(0xffff),
            mantissa_control: AtomicI32::new(0),
            mantissa_bits: AtomicI32::new(0),
            mantissa_offset: AtomicI32::new(0),
            bit_count: AtomicUsize::new(0),
        }
    }
}

impl Context {
    /// Whether scalars are passed by addresses of the host.
    fn scalars_on_host(&self) -> bool {
        self.pointer_mode.load(Relaxed) == 0
    }
}

impl Kind for Context {
    const COOKIE: u64 = u64::from_le_bytes(*b"mf-blas\0");
}

/// Does something with a handle's context.
fn with(handle: Handle<Context>, body: impl FnOnce(&Context) -> i32) -> i32 {
    handle.get().map_or(status::NOT_INITIALIZED, body)
}

/// Answers with a value that was set.
fn answer<T>(target: Out<T>, value: T) -> i32 {
    if target.write(value) { status::SUCCESS } else { status::INVALID_VALUE }
}

/// Declares the calls that set and get one field of a handle.
macro_rules! settings {
    ($($set:ident, $get:ident: $kind:ty => $($field:ident).+;)*) => {
        entry_points! {
            fail status::INTERNAL_ERROR;
            $(
                /// Remembers it.
                fn $set(handle: Handle<Context>, value: $kind) {
                    with(handle, |context| {
                        context.$($field).+.store(value, Relaxed);
                        status::SUCCESS
                    })
                }

                /// What was set, or the library's default.
                fn $get(handle: Handle<Context>, value: Out<$kind>) {
                    with(handle, |context| answer(value, context.$($field).+.load(Relaxed)))
                }
            )*
        }
    };
}

settings! {
    cublasSetPointerMode_v2, cublasGetPointerMode_v2: i32 => pointer_mode;
    cublasSetAtomicsMode, cublasGetAtomicsMode: i32 => atomics_mode;
    cublasSetMathMode, cublasGetMathMode: i32 => math_mode;
    cublasSetSmCountTarget, cublasGetSmCountTarget: i32 => sm_count_target;
    cublasSetEmulationStrategy, cublasGetEmulationStrategy: i32 => emulation.strategy;
    cublasSetEmulationSpecialValuesSupport, cublasGetEmulationSpecialValuesSupport: i32 => emulation.special_values;
    cublasSetFixedPointEmulationMantissaControl, cublasGetFixedPointEmulationMantissaControl: i32
        => emulation.mantissa_control;
    cublasSetFixedPointEmulationMaxMantissaBitCount, cublasGetFixedPointEmulationMaxMantissaBitCount: i32
        => emulation.mantissa_bits;
    cublasSetFixedPointEmulationMantissaBitOffset, cublasGetFixedPointEmulationMantissaBitOffset: i32
        => emulation.mantissa_offset;
    cublasSetFixedPointEmulationMantissaBitCountPointer, cublasGetFixedPointEmulationMantissaBitCountPointer: usize
        => emulation.bit_count;
}

handle_calls!(cublasCreate_v2, cublasDestroy_v2: Context);

entry_points! {
    fail status::INTERNAL_ERROR;

    /// Remembers the stream. As in cuBLAS, the workspace that was set is forgotten with it; nothing here
    /// needs one.
    fn cublasSetStream_v2(handle: Handle<Context>, stream: usize) {
        with(handle, |context| {
            context.stream.store(stream, Relaxed);
            status::SUCCESS
        })
    }

    /// The stream that was set.
    fn cublasGetStream_v2(handle: Handle<Context>, stream: Out<usize>) {
        with(handle, |context| answer(stream, context.stream.load(Relaxed)))
    }

    /// Names the workspace.
    fn cublasSetWorkspace_v2(handle: Handle<Context>, workspace: Ptr, _size: usize) {
        with(handle, |_| {
            // cuBLAS wants 256 bytes of alignment.
            if !(workspace as usize).is_multiple_of(256) {
                return status::INVALID_VALUE;
            }
            card::workspace(workspace);
            status::SUCCESS
        })
    }

    /// The real library's version.
    fn cublasGetVersion_v2(handle: Handle<Context>, version: Out<i32>) {
        with(handle, |_| answer(version, version_number()))
    }

    /// The real library's version.
    fn cublasGetVersion(version: Out<i32>) {
        answer(version, version_number())
    }

    /// A part of the real library's version.
    fn cublasGetProperty(kind: i32, value: Out<i32>) {
        real!(CUBLAS, cublasGetProperty(kind => i32, value => Out<i32>) -> i32).unwrap_or(status::NOT_INITIALIZED)
    }
}

/// `major * 10000 + minor * 100 + patch`, as the real library's own parts say; 0 where it is not loaded.
fn version_number() -> i32 {
    let mut parts = [0; 3];
    for (kind, part) in (0..).zip(&mut parts) {
        real!(CUBLAS, cublasGetProperty(kind => i32, part => &mut i32) -> i32);
    }
    parts[0] * 10_000 + parts[1] * 100 + parts[2]
}

/// The CUDA runtime that the real library was built with.
#[unsafe(no_mangle)]
extern "C" fn cublasGetCudartVersion() -> usize {
    guarded("cublasGetCudartVersion", 0, || real!(CUBLAS, cublasGetCudartVersion() -> usize).unwrap_or(0))
}

/// The name of a status.
#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusName(code: i32) -> *const c_char {
    guarded("cublasGetStatusName", UNKNOWN.as_ptr(), || {
        real!(CUBLAS, cublasGetStatusName(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}

/// What a status means.
#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusString(code: i32) -> *const c_char {
    guarded("cublasGetStatusString", UNKNOWN.as_ptr(), || {
        real!(CUBLAS, cublasGetStatusString(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}

/// What is said of a status where the real library is not loaded.
const UNKNOWN: &CStr = c"unknown cuBLAS status";

/// The way of a copy, as the runtime numbers it.
const TO_DEVICE: i32 = 1;
/// As above.
const TO_HOST: i32 = 2;

/// Copies `columns` runs of `rows` elements; a vector is a matrix of one row. Negative sizes and steps below
/// 1 are refused.
fn copy(way: i32, [rows, columns, element]: [i64; 3], from: (Ptr, i64), to: (Ptr, i64)) -> i32 {
    if rows < 0 || columns < 0 || element <= 0 || from.1 < rows.max(1) || to.1 < rows.max(1) {
        return status::INVALID_VALUE;
    }
    let bytes = |count: i64| usize::try_from(count.saturating_mul(element)).unwrap_or(usize::MAX);
    let copied =
        card::copy_2d((to.0, bytes(to.1)), (from.0, bytes(from.1)), bytes(rows), columns as usize, way);
    if copied { status::SUCCESS } else { status::MAPPING_ERROR }
}

/// Declares the copies of one direction, for indices of one width. The stream's order is the order of the
/// calls: nothing runs beside them.
macro_rules! copies {
    ($way:ident, $int:ty: $matrix:ident, $matrix_async:ident, $vector:ident, $vector_async:ident) => {
        entry_points! {
            fail status::INTERNAL_ERROR;

            /// Copies a matrix.
            fn $matrix(rows: $int, columns: $int, element: $int, from: Ptr, from_rows: $int, to: Ptr, to_rows: $int) {
                let shape = [rows.into(), columns.into(), element.into()];
                copy($way, shape, (from, from_rows.into()), (to, to_rows.into()))
            }

            /// Copies a matrix in a stream's order.
            fn $matrix_async(
                rows: $int, columns: $int, element: $int, from: Ptr, from_rows: $int, to: Ptr, to_rows: $int,
                _stream: Ptr,
            ) {
                let shape = [rows.into(), columns.into(), element.into()];
                copy($way, shape, (from, from_rows.into()), (to, to_rows.into()))
            }

            /// Copies a vector.
            fn $vector(count: $int, element: $int, from: Ptr, from_step: $int, to: Ptr, to_step: $int) {
                copy($way, [1, count.into(), element.into()], (from, from_step.into()), (to, to_step.into()))
            }

            /// Copies a vector in a stream's order.
            fn $vector_async(
                count: $int, element: $int, from: Ptr, from_step: $int, to: Ptr, to_step: $int, _stream: Ptr,
            ) {
                copy($way, [1, count.into(), element.into()], (from, from_step.into()), (to, to_step.into()))
            }
        }
    };
}

copies!(TO_DEVICE, i32: cublasSetMatrix, cublasSetMatrixAsync, cublasSetVector, cublasSetVectorAsync);
copies!(TO_DEVICE, i64: cublasSetMatrix_64, cublasSetMatrixAsync_64, cublasSetVector_64, cublasSetVectorAsync_64);
copies!(TO_HOST, i32: cublasGetMatrix, cublasGetMatrixAsync, cublasGetVector, cublasGetVectorAsync);
copies!(TO_HOST, i64: cublasGetMatrix_64, cublasGetMatrixAsync_64, cublasGetVector_64, cublasGetVectorAsync_64);
