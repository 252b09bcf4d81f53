//! cuBLAS: handles that store their settings, and matrix products that take time ([`products`]).
//!
//! PyTorch passes a workspace from its own allocator, so it is part of the allocator's statistics; here it is
//! only labelled.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

mod products;
mod scalars;

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use super::entry::{Fails, Handle, HandleStatus, Kind, Out, Ptr, entry_points, guarded};
use super::real::real;
use memfit_abi::handles::Objects;
use memfit_cuda::card;

/// The part of `cublasStatus_t` that is returned here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const NOT_INITIALIZED: i32 = 1;
    pub(super) const INVALID_VALUE: i32 = 7;
    pub(super) const MAPPING_ERROR: i32 = 11;
    pub(super) const INTERNAL_ERROR: i32 = 14;
    pub(super) const NOT_SUPPORTED: i32 = 15;
}

/// State of a handle.
#[derive(Default)]
struct Context {
    stream: AtomicUsize,
    pointer_mode: AtomicI32,
    atomics_mode: AtomicI32,
    math_mode: AtomicI32,
    sm_count_target: AtomicI32,
    emulation: Emulation,
}

/// Settings for the emulation of floating point (CUDA 13). Nothing is computed, so they are only stored.
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
    /// Returns `true` if scalars are passed as host addresses.
    fn scalars_on_host(&self) -> bool {
        self.pointer_mode.load(Relaxed) == 0
    }
}

impl Kind for Context {
    fn objects() -> &'static Objects<Self> {
        static OBJECTS: Objects<Context> = Objects::new(16);
        &OBJECTS
    }
}

/// Calls `body` with a handle's state.
fn with_context(handle: Handle<Context>, body: impl FnOnce(&Context) -> i32) -> i32 {
    handle.get().map_or(status::NOT_INITIALIZED, |context| body(&context))
}

/// Writes a stored setting.
fn write_result<T>(target: Out<T>, value: T) -> i32 {
    if target.write(value) { status::SUCCESS } else { status::INVALID_VALUE }
}

/// Status codes for handle creation and destruction.
const HANDLES: HandleStatus = HandleStatus {
    success: status::SUCCESS,
    not_initialized: status::NOT_INITIALIZED,
    invalid_value: status::INVALID_VALUE,
};

/// Stores a setting in a handle.
fn store_setting(handle: Handle<Context>, store: impl FnOnce(&Context)) -> i32 {
    with_context(handle, |context| {
        store(context);
        status::SUCCESS
    })
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    fn cublasSetPointerMode_v2(handle: Handle<Context>, value: i32) {
        store_setting(handle, |context| context.pointer_mode.store(value, Relaxed))
    }

    fn cublasGetPointerMode_v2(handle: Handle<Context>, value: Out<i32>) {
        with_context(handle, |context| write_result(value, context.pointer_mode.load(Relaxed)))
    }

    fn cublasSetAtomicsMode(handle: Handle<Context>, value: i32) {
        store_setting(handle, |context| context.atomics_mode.store(value, Relaxed))
    }

    fn cublasGetAtomicsMode(handle: Handle<Context>, value: Out<i32>) {
        with_context(handle, |context| write_result(value, context.atomics_mode.load(Relaxed)))
    }

    fn cublasSetMathMode(handle: Handle<Context>, value: i32) {
        store_setting(handle, |context| context.math_mode.store(value, Relaxed))
    }

    fn cublasGetMathMode(handle: Handle<Context>, value: Out<i32>) {
        with_context(handle, |context| write_result(value, context.math_mode.load(Relaxed)))
    }

    fn cublasSetSmCountTarget(handle: Handle<Context>, value: i32) {
        store_setting(handle, |context| context.sm_count_target.store(value, Relaxed))
    }

    fn cublasGetSmCountTarget(handle: Handle<Context>, value: Out<i32>) {
        with_context(handle, |context| write_result(value, context.sm_count_target.load(Relaxed)))
    }

    fn cublasSetEmulationStrategy(handle: Handle<Context>, value: i32) {
        store_setting(handle, |context| context.emulation.strategy.store(value, Relaxed))
    }

    fn cublasGetEmulationStrategy(handle: Handle<Context>, value: Out<i32>) {
        with_context(handle, |context| write_result(value, context.emulation.strategy.load(Relaxed)))
    }

    fn cublasSetEmulationSpecialValuesSupport(handle: Handle<Context>, value: i32) {
        store_setting(handle, |context| context.emulation.special_values.store(value, Relaxed))
    }

    fn cublasGetEmulationSpecialValuesSupport(handle: Handle<Context>, value: Out<i32>) {
        with_context(handle, |context| write_result(value, context.emulation.special_values.load(Relaxed)))
    }

    fn cublasSetFixedPointEmulationMantissaControl(handle: Handle<Context>, value: i32) {
        store_setting(handle, |context| context.emulation.mantissa_control.store(value, Relaxed))
    }

    fn cublasGetFixedPointEmulationMantissaControl(handle: Handle<Context>, value: Out<i32>) {
        with_context(handle, |context| write_result(value, context.emulation.mantissa_control.load(Relaxed)))
    }

    fn cublasSetFixedPointEmulationMaxMantissaBitCount(handle: Handle<Context>, value: i32) {
        store_setting(handle, |context| context.emulation.mantissa_bits.store(value, Relaxed))
    }

    fn cublasGetFixedPointEmulationMaxMantissaBitCount(handle: Handle<Context>, value: Out<i32>) {
        with_context(handle, |context| write_result(value, context.emulation.mantissa_bits.load(Relaxed)))
    }

    fn cublasSetFixedPointEmulationMantissaBitOffset(handle: Handle<Context>, value: i32) {
        store_setting(handle, |context| context.emulation.mantissa_offset.store(value, Relaxed))
    }

    fn cublasGetFixedPointEmulationMantissaBitOffset(handle: Handle<Context>, value: Out<i32>) {
        with_context(handle, |context| write_result(value, context.emulation.mantissa_offset.load(Relaxed)))
    }

    fn cublasSetFixedPointEmulationMantissaBitCountPointer(handle: Handle<Context>, value: usize) {
        store_setting(handle, |context| context.emulation.bit_count.store(value, Relaxed))
    }

    fn cublasGetFixedPointEmulationMantissaBitCountPointer(handle: Handle<Context>, value: Out<usize>) {
        with_context(handle, |context| write_result(value, context.emulation.bit_count.load(Relaxed)))
    }

    /// Creates a handle.
    fn cublasCreate_v2(handle: Out<Handle<Context>>) {
        HANDLES.create(handle)
    }

    /// Destroys a handle.
    fn cublasDestroy_v2(handle: Handle<Context>) {
        HANDLES.destroy(handle)
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Stores the stream. As in cuBLAS, this resets the workspace; nothing here needs one.
    fn cublasSetStream_v2(handle: Handle<Context>, stream: usize) {
        with_context(handle, |context| {
            context.stream.store(stream, Relaxed);
            status::SUCCESS
        })
    }

    /// Returns the stored stream.
    fn cublasGetStream_v2(handle: Handle<Context>, stream: Out<usize>) {
        with_context(handle, |context| write_result(stream, context.stream.load(Relaxed)))
    }

    /// Labels the workspace.
    fn cublasSetWorkspace_v2(handle: Handle<Context>, workspace: Ptr, _size: usize) {
        with_context(handle, |_| {
            // cuBLAS requires 256-byte alignment.
            if !(workspace as usize).is_multiple_of(256) {
                return status::INVALID_VALUE;
            }
            card::label_workspace(workspace);
            status::SUCCESS
        })
    }

    /// Returns the real library's version.
    fn cublasGetVersion_v2(handle: Handle<Context>, version: Out<i32>) {
        with_context(handle, |_| write_result(version, version_number()))
    }

    /// Returns the real library's version.
    fn cublasGetVersion(version: Out<i32>) {
        write_result(version, version_number())
    }

    /// Returns one part of the real library's version.
    fn cublasGetProperty(kind: i32, value: Out<i32>) {
        real!(CUBLAS, cublasGetProperty(kind => i32, value => Out<i32>) -> i32).unwrap_or(status::NOT_INITIALIZED)
    }
}

/// Version as `major * 10000 + minor * 100 + patch`, from the real library's parts; 0 if it is not loaded.
fn version_number() -> i32 {
    let mut parts = [0; 3];
    for (kind, part) in (0..).zip(&mut parts) {
        real!(CUBLAS, cublasGetProperty(kind => i32, part => &mut i32) -> i32);
    }
    parts[0] * 10_000 + parts[1] * 100 + parts[2]
}

/// CUDA runtime version that the real library was built with.
#[unsafe(no_mangle)]
extern "C" fn cublasGetCudartVersion() -> usize {
    guarded("cublasGetCudartVersion", 0, || real!(CUBLAS, cublasGetCudartVersion() -> usize).unwrap_or(0))
}

/// Name of a status.
#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusName(code: i32) -> *const c_char {
    guarded("cublasGetStatusName", UNKNOWN.as_ptr(), || {
        real!(CUBLAS, cublasGetStatusName(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}

/// Description of a status.
#[unsafe(no_mangle)]
extern "C" fn cublasGetStatusString(code: i32) -> *const c_char {
    guarded("cublasGetStatusString", UNKNOWN.as_ptr(), || {
        real!(CUBLAS, cublasGetStatusString(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}

/// Text for a status if the real library is not loaded.
const UNKNOWN: &CStr = c"unknown cuBLAS status";

/// `cudaMemcpyHostToDevice`.
const TO_DEVICE: i32 = 1;
/// `cudaMemcpyDeviceToHost`.
const TO_HOST: i32 = 2;

/// Copies `columns` runs of `rows` elements; a vector is a matrix of one row. Refuses negative sizes and
/// strides below 1.
fn copy(way: i32, [rows, columns, element]: [i64; 3], from: (Ptr, i64), to: (Ptr, i64)) -> i32 {
    if rows < 0 || columns < 0 || element <= 0 || from.1 < rows.max(1) || to.1 < rows.max(1) {
        return status::INVALID_VALUE;
    }
    let bytes = |count: i64| usize::try_from(count.saturating_mul(element)).unwrap_or(usize::MAX);
    let copied =
        card::copy_2d((to.0, bytes(to.1)), (from.0, bytes(from.1)), bytes(rows), columns as usize, way);
    if copied { status::SUCCESS } else { status::MAPPING_ERROR }
}

// Stream order is call order, since nothing runs concurrently with copies.
entry_points! {
    Fails(status::INTERNAL_ERROR);

    fn cublasSetMatrix(
        rows: i32, columns: i32, element: i32, from: Ptr, from_rows: i32, to: Ptr, to_rows: i32,
    ) {
        let shape = [rows.into(), columns.into(), element.into()];
        copy(TO_DEVICE, shape, (from, from_rows.into()), (to, to_rows.into()))
    }

    fn cublasSetMatrixAsync(
        rows: i32, columns: i32, element: i32, from: Ptr, from_rows: i32, to: Ptr, to_rows: i32, _stream: Ptr,
    ) {
        let shape = [rows.into(), columns.into(), element.into()];
        copy(TO_DEVICE, shape, (from, from_rows.into()), (to, to_rows.into()))
    }

    fn cublasSetVector(count: i32, element: i32, from: Ptr, from_step: i32, to: Ptr, to_step: i32) {
        copy(TO_DEVICE, [1, count.into(), element.into()], (from, from_step.into()), (to, to_step.into()))
    }

    fn cublasSetVectorAsync(
        count: i32, element: i32, from: Ptr, from_step: i32, to: Ptr, to_step: i32, _stream: Ptr,
    ) {
        copy(TO_DEVICE, [1, count.into(), element.into()], (from, from_step.into()), (to, to_step.into()))
    }

    fn cublasGetMatrix(
        rows: i32, columns: i32, element: i32, from: Ptr, from_rows: i32, to: Ptr, to_rows: i32,
    ) {
        let shape = [rows.into(), columns.into(), element.into()];
        copy(TO_HOST, shape, (from, from_rows.into()), (to, to_rows.into()))
    }

    fn cublasGetMatrixAsync(
        rows: i32, columns: i32, element: i32, from: Ptr, from_rows: i32, to: Ptr, to_rows: i32, _stream: Ptr,
    ) {
        let shape = [rows.into(), columns.into(), element.into()];
        copy(TO_HOST, shape, (from, from_rows.into()), (to, to_rows.into()))
    }

    fn cublasGetVector(count: i32, element: i32, from: Ptr, from_step: i32, to: Ptr, to_step: i32) {
        copy(TO_HOST, [1, count.into(), element.into()], (from, from_step.into()), (to, to_step.into()))
    }

    fn cublasGetVectorAsync(
        count: i32, element: i32, from: Ptr, from_step: i32, to: Ptr, to_step: i32, _stream: Ptr,
    ) {
        copy(TO_HOST, [1, count.into(), element.into()], (from, from_step.into()), (to, to_step.into()))
    }

    fn cublasSetMatrix_64(
        rows: i64, columns: i64, element: i64, from: Ptr, from_rows: i64, to: Ptr, to_rows: i64,
    ) {
        let shape = [rows, columns, element];
        copy(TO_DEVICE, shape, (from, from_rows), (to, to_rows))
    }

    fn cublasSetMatrixAsync_64(
        rows: i64, columns: i64, element: i64, from: Ptr, from_rows: i64, to: Ptr, to_rows: i64, _stream: Ptr,
    ) {
        let shape = [rows, columns, element];
        copy(TO_DEVICE, shape, (from, from_rows), (to, to_rows))
    }

    fn cublasSetVector_64(count: i64, element: i64, from: Ptr, from_step: i64, to: Ptr, to_step: i64) {
        copy(TO_DEVICE, [1, count, element], (from, from_step), (to, to_step))
    }

    fn cublasSetVectorAsync_64(
        count: i64, element: i64, from: Ptr, from_step: i64, to: Ptr, to_step: i64, _stream: Ptr,
    ) {
        copy(TO_DEVICE, [1, count, element], (from, from_step), (to, to_step))
    }

    fn cublasGetMatrix_64(
        rows: i64, columns: i64, element: i64, from: Ptr, from_rows: i64, to: Ptr, to_rows: i64,
    ) {
        let shape = [rows, columns, element];
        copy(TO_HOST, shape, (from, from_rows), (to, to_rows))
    }

    fn cublasGetMatrixAsync_64(
        rows: i64, columns: i64, element: i64, from: Ptr, from_rows: i64, to: Ptr, to_rows: i64, _stream: Ptr,
    ) {
        let shape = [rows, columns, element];
        copy(TO_HOST, shape, (from, from_rows), (to, to_rows))
    }

    fn cublasGetVector_64(count: i64, element: i64, from: Ptr, from_step: i64, to: Ptr, to_step: i64) {
        copy(TO_HOST, [1, count, element], (from, from_step), (to, to_step))
    }

    fn cublasGetVectorAsync_64(
        count: i64, element: i64, from: Ptr, from_step: i64, to: Ptr, to_step: i64, _stream: Ptr,
    ) {
        copy(TO_HOST, [1, count, element], (from, from_step), (to, to_step))
    }
}
