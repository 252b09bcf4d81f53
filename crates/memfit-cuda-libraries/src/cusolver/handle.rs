//! cuSOLVER's handles and parameters.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use super::status;
use crate::entry::{Fails, Handle, HandleStatus, Kind, Out, Ptr, entry_points};
use crate::real::forward;
use memfit_abi::handles::Objects;
use memfit_cuda::card;

/// State of a handle.
#[derive(Default)]
pub(super) struct Context {
    stream: AtomicUsize,
    deterministic_mode: AtomicI32,
    math_mode: AtomicI32,
    emulation_strategy: AtomicI32,
    special_values: AtomicI32,
    mantissa_control: AtomicI32,
    mantissa_bits: AtomicI32,
    mantissa_offset: AtomicI32,
}

impl Kind for Context {
    fn objects() -> &'static Objects<Self> {
        static OBJECTS: Objects<Context> = Objects::new(19);
        &OBJECTS
    }
}

impl Context {
    /// Stream that work is queued on.
    pub(super) fn stream(&self) -> usize {
        self.stream.load(Relaxed)
    }
}

/// Status codes for handle creation and destruction.
const HANDLES: HandleStatus = HandleStatus {
    success: status::SUCCESS,
    not_initialized: status::NOT_INITIALIZED,
    invalid_value: status::INVALID_VALUE,
};

/// Stores a setting in a handle.
fn set(handle: Handle<Context>, store: impl FnOnce(&Context)) -> i32 {
    let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
    store(&context);
    status::SUCCESS
}

/// Returns a setting, or the library's default.
fn get<T>(handle: Handle<Context>, value: Out<T>, load: impl FnOnce(&Context) -> T) -> i32 {
    let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
    if value.write(load(&context)) { status::SUCCESS } else { status::INVALID_VALUE }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    fn cusolverDnSetStream(handle: Handle<Context>, value: usize) {
        set(handle, |context| context.stream.store(value, Relaxed))
    }

    fn cusolverDnGetStream(handle: Handle<Context>, value: Out<usize>) {
        get(handle, value, |context| context.stream.load(Relaxed))
    }

    fn cusolverDnSetDeterministicMode(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.deterministic_mode.store(value, Relaxed))
    }

    fn cusolverDnGetDeterministicMode(handle: Handle<Context>, value: Out<i32>) {
        get(handle, value, |context| context.deterministic_mode.load(Relaxed))
    }

    fn cusolverDnSetMathMode(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.math_mode.store(value, Relaxed))
    }

    fn cusolverDnGetMathMode(handle: Handle<Context>, value: Out<i32>) {
        get(handle, value, |context| context.math_mode.load(Relaxed))
    }

    fn cusolverDnSetEmulationStrategy(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.emulation_strategy.store(value, Relaxed))
    }

    fn cusolverDnGetEmulationStrategy(handle: Handle<Context>, value: Out<i32>) {
        get(handle, value, |context| context.emulation_strategy.load(Relaxed))
    }

    fn cusolverDnSetEmulationSpecialValuesSupport(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.special_values.store(value, Relaxed))
    }

    fn cusolverDnGetEmulationSpecialValuesSupport(handle: Handle<Context>, value: Out<i32>) {
        get(handle, value, |context| context.special_values.load(Relaxed))
    }

    fn cusolverDnSetFixedPointEmulationMantissaControl(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.mantissa_control.store(value, Relaxed))
    }

    fn cusolverDnGetFixedPointEmulationMantissaControl(handle: Handle<Context>, value: Out<i32>) {
        get(handle, value, |context| context.mantissa_control.load(Relaxed))
    }

    fn cusolverDnSetFixedPointEmulationMaxMantissaBitCount(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.mantissa_bits.store(value, Relaxed))
    }

    fn cusolverDnGetFixedPointEmulationMaxMantissaBitCount(handle: Handle<Context>, value: Out<i32>) {
        get(handle, value, |context| context.mantissa_bits.load(Relaxed))
    }

    fn cusolverDnSetFixedPointEmulationMantissaBitOffset(handle: Handle<Context>, value: i32) {
        set(handle, |context| context.mantissa_offset.store(value, Relaxed))
    }

    fn cusolverDnGetFixedPointEmulationMantissaBitOffset(handle: Handle<Context>, value: Out<i32>) {
        get(handle, value, |context| context.mantissa_offset.load(Relaxed))
    }

    /// Creates a handle.
    fn cusolverDnCreate(handle: Out<Handle<Context>>) {
        HANDLES.create(handle)
    }

    /// Destroys a handle.
    fn cusolverDnDestroy(handle: Handle<Context>) {
        HANDLES.destroy(handle)
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Returns the residual of a Jacobi decomposition: 0, since nothing ran.
    fn cusolverDnXgesvdjGetResidual(handle: Handle<Context>, _info: Ptr, residual: Out<f64>) {
        settled(handle, residual, 0.0)
    }

    /// Returns the number of sweeps of a Jacobi decomposition.
    fn cusolverDnXgesvdjGetSweeps(handle: Handle<Context>, _info: Ptr, sweeps: Out<i32>) {
        settled(handle, sweeps, 0)
    }

    /// Returns the residual of a Jacobi decomposition: 0, since nothing ran.
    fn cusolverDnXsyevjGetResidual(handle: Handle<Context>, _info: Ptr, residual: Out<f64>) {
        settled(handle, residual, 0.0)
    }

    /// Returns the number of sweeps of a Jacobi decomposition.
    fn cusolverDnXsyevjGetSweeps(handle: Handle<Context>, _info: Ptr, sweeps: Out<i32>) {
        settled(handle, sweeps, 0)
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Queues an approximate singular value decomposition. The residuals are host memory, if the caller wants
    /// them.
    fn cusolverDnSgesvdaStridedBatched(
        handle: Handle<Context>, _vectors: i32, _rank: i32, m: i32, n: i32, _a: Ptr, lda: i32, _step_a: i64, _s: Ptr,
        _step_s: i64, _u: Ptr, _ldu: i32, _step_u: i64, _v: Ptr, _ldv: i32, _step_v: i64, workspace: Ptr, _size: i32,
        _info: Ptr, residuals: Out<f64>, batch: i32,
    ),
    fn cusolverDnDgesvdaStridedBatched(),
    fn cusolverDnCgesvdaStridedBatched(),
    fn cusolverDnZgesvdaStridedBatched() {
        if handle.get().is_none() {
            return status::NOT_INITIALIZED;
        }
        if m < 0 || n < 0 || lda < m.max(1) || batch < 0 {
            return status::INVALID_VALUE;
        }
        card::label_workspace(workspace);
        residuals.set_all(std::iter::repeat_n(0.0, usize::try_from(batch).unwrap_or(0)));
        status::SUCCESS
    }
}

fn settled<T>(handle: Handle<Context>, target: Out<T>, value: T) -> i32 {
    match handle.get() {
        None => status::NOT_INITIALIZED,
        Some(_) if target.write(value) => status::SUCCESS,
        Some(_) => status::INVALID_VALUE,
    }
}

forward! {
    CUSOLVER, missing status::NOT_SUPPORTED, fail status::INTERNAL_ERROR;

    fn cusolverGetProperty(kind: i32, value: Ptr);
    fn cusolverGetVersion(version: Ptr);
    fn cusolverDnCreateGesvdjInfo(info: Ptr);
    fn cusolverDnCreateParams(params: Ptr);
    fn cusolverDnCreateSyevjInfo(info: Ptr);
    fn cusolverDnDestroyGesvdjInfo(info: Ptr);
    fn cusolverDnDestroyParams(params: Ptr);
    fn cusolverDnDestroySyevjInfo(info: Ptr);
    fn cusolverDnSetAdvOptions(params: Ptr, function: i32, algo: i32);
    fn cusolverDnXgesvdjSetMaxSweeps(info: Ptr, max_sweeps: i32);
    fn cusolverDnXgesvdjSetSortEig(info: Ptr, sort_svd: i32);
    fn cusolverDnXgesvdjSetTolerance(info: Ptr, tolerance: f64);
    fn cusolverDnXsyevjSetMaxSweeps(info: Ptr, max_sweeps: i32);
    fn cusolverDnXsyevjSetSortEig(info: Ptr, sort_eig: i32);
    fn cusolverDnXsyevjSetTolerance(info: Ptr, tolerance: f64);
}
