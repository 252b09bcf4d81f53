//! cuBLAS: handles that remember what was set on them, and products that take their time ([`products`]).
//!
//! The workspace that PyTorch hands in comes from its own allocator and shows in its figures; here it is only
//! named.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

mod products;
mod scalars;

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use super::entry::{Fails, Handle, HandleStatus, Kind, Out, Ptr, entry_points, guarded};
use super::real::real;
use memfit_abi::handles::Objects;
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
    fn objects() -> &'static Objects<Self> {
        static OBJECTS: Objects<Context> = Objects::new(16);
        &OBJECTS
    }
}

/// Does something with a handle's context.
fn with(handle: Handle<Context>, body: impl FnOnce(&Context) -> i32) -> i32 {
    handle.get().map_or(status::NOT_INITIALIZED, |context| body(&context))
}

/// Answers with a value that was set.
fn answer<T>(target: Out<T>, value: T) -> i32 {
    if target.write(value) { status::SUCCESS } else { status::INVALID_VALUE }
}

/// What cuBLAS answers about its handles.
const HANDLES: HandleStatus = HandleStatus {
    success: status::SUCCESS,
    not_initialized: status::NOT_INITIALIZED,
    invalid_value: status::INVALID_VALUE,
};

/// Remembers what was set on a handle.
fn set(handle: Handle<Context>, store: impl FnOnce(&Context)) -> i32 {
    with(handle, |context| {
        store(context);
        status::SUCCESS
    })
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    fn cublasSetPointerMode_v2(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.pointer_mode.store(value, Relaxed))
    }

    fn cublasGetPointerMode_v2(handle: Handle<Context>, value: Out<i32>) {
        with(handle, |context| answer(value, context.pointer_mode.load(Relaxed)))
    }

    fn cublasSetAtomicsMode(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.atomics_mode.store(value, Relaxed))
    }

    fn cublasGetAtomicsMode(handle: Handle<Context>, value: Out<i32>) {
        with(handle, |context| answer(value, context.atomics_mode.load(Relaxed)))
    }

    fn cublasSetMathMode(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.math_mode.store(value, Relaxed))
    }

    fn cublasGetMathMode(handle: Handle<Context>, value: Out<i32>) {
        with(handle, |context| answer(value, context.math_mode.load(Relaxed)))
    }

    fn cublasSetSmCountTarget(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.sm_count_target.store(value, Relaxed))
    }

    fn cublasGetSmCountTarget(handle: Handle<Context>, value: Out<i32>) {
        with(handle, |context| answer(value, context.sm_count_target.load(Relaxed)))
    }

    fn cublasSetEmulationStrategy(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.emulation.strategy.store(value, Relaxed))
    }

    fn cublasGetEmulationStrategy(handle: Handle<Context>, value: Out<i32>) {
        with(handle, |context| answer(value, context.emulation.strategy.load(Relaxed)))
    }

    fn cublasSetEmulationSpecialValuesSupport(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.emulation.special_values.store(value, Relaxed))
    }

    fn cublasGetEmulationSpecialValuesSupport(handle: Handle<Context>, value: Out<i32>) {
        with(handle, |context| answer(value, context.emulation.special_values.load(Relaxed)))
    }

    fn cublasSetFixedPointEmulationMantissaControl(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.emulation.mantissa_control.store(value, Relaxed))
    }

    fn cublasGetFixedPointEmulationMantissaControl(handle: Handle<Context>, value: Out<i32>) {
        with(handle, |context| answer(value, context.emulation.mantissa_control.load(Relaxed)))
    }

    fn cublasSetFixedPointEmulationMaxMantissaBitCount(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.emulation.mantissa_bits.store(value, Relaxed))
    }

    fn cublasGetFixedPointEmulationMaxMantissaBitCount(handle: Handle<Context>, value: Out<i32>) {
        with(handle, |context| answer(value, context.emulation.mantissa_bits.load(Relaxed)))
    }

    fn cublasSetFixedPointEmulationMantissaBitOffset(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.emulation.mantissa_offset.store(value, Relaxed))
    }

    fn cublasGetFixedPointEmulationMantissaBitOffset(handle: Handle<Context>, value: Out<i32>) {
        with(handle, |context| answer(value, context.emulation.mantissa_offset.load(Relaxed)))
    }

    fn cublasSetFixedPointEmulationMantissaBitCountPointer(handle: Handle<Context>, value: usize) {
        set(handle, |context| context.emulation.bit_count.store(value, Relaxed))
    }

    fn cublasGetFixedPointEmulationMantissaBitCountPointer(handle: Handle<Context>, value: Out<usize>) {
        with(handle, |context| answer(value, context.emulation.bit_count.load(Relaxed)))
    }

    /// Gives out a handle.
    fn cublasCreate_v2(handle: Out<Handle<Context>>) {
        HANDLES.create(handle)
    }

    /// Takes a handle back.
    fn cublasDestroy_v2(handle: Handle<Context>) {
        HANDLES.destroy(handle)
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

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
            card::label_workspace(workspace);
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

// The stream's order is the order of the calls: nothing runs beside copies.
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
