//! cuSOLVER's handles and parameters.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use super::status;
use crate::entry::{Handle, Kind, Out, Ptr, entry_points, handle_calls};
use crate::real::forward;
use memfit_cuda::card;

/// What lies behind a handle.
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
    const COOKIE: u64 = u64::from_le_bytes(*b"mf-solve");
}

impl Context {
    /// The stream that work is queued on.
    pub(super) fn stream(&self) -> usize {
        self.stream.load(Relaxed)
    }
}

/// Declares the calls that set and get one field of a handle.
macro_rules! settings {
    ($($set:ident, $get:ident: $kind:ty => $field:ident;)*) => {
        entry_points! {
            fail status::INTERNAL_ERROR;
            $(
                /// Remembers it.
                fn $set(handle: Handle<Context>, value: $kind) {
                    let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
                    context.$field.store(value, Relaxed);
                    status::SUCCESS
                }

                /// What was set, or the library's default.
                fn $get(handle: Handle<Context>, value: Out<$kind>) {
                    let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
                    if value.write(context.$field.load(Relaxed)) { status::SUCCESS } else { status::INVALID_VALUE }
                }
            )*
        }
    };
}

settings! {
    cusolverDnSetStream, cusolverDnGetStream: usize => stream;
    cusolverDnSetDeterministicMode, cusolverDnGetDeterministicMode: i32 => deterministic_mode;
    cusolverDnSetMathMode, cusolverDnGetMathMode: i32 => math_mode;
    cusolverDnSetEmulationStrategy, cusolverDnGetEmulationStrategy: i32 => emulation_strategy;
    cusolverDnSetEmulationSpecialValuesSupport, cusolverDnGetEmulationSpecialValuesSupport: i32 => special_values;
    cusolverDnSetFixedPointEmulationMantissaControl, cusolverDnGetFixedPointEmulationMantissaControl: i32
        => mantissa_control;
    cusolverDnSetFixedPointEmulationMaxMantissaBitCount, cusolverDnGetFixedPointEmulationMaxMantissaBitCount: i32
        => mantissa_bits;
    cusolverDnSetFixedPointEmulationMantissaBitOffset, cusolverDnGetFixedPointEmulationMantissaBitOffset: i32
        => mantissa_offset;
}

handle_calls!(cusolverDnCreate, cusolverDnDestroy: Context);

entry_points! {
    fail status::INTERNAL_ERROR;

    /// How far a Jacobi decomposition was off: nothing ran, so not at all.
    fn cusolverDnXgesvdjGetResidual(handle: Handle<Context>, _info: Ptr, residual: Out<f64>) {
        settled(handle, residual, 0.0)
    }

    /// How many sweeps a Jacobi decomposition took.
    fn cusolverDnXgesvdjGetSweeps(handle: Handle<Context>, _info: Ptr, sweeps: Out<i32>) {
        settled(handle, sweeps, 0)
    }

    /// How far a Jacobi decomposition was off: nothing ran, so not at all.
    fn cusolverDnXsyevjGetResidual(handle: Handle<Context>, _info: Ptr, residual: Out<f64>) {
        settled(handle, residual, 0.0)
    }

    /// How many sweeps a Jacobi decomposition took.
    fn cusolverDnXsyevjGetSweeps(handle: Handle<Context>, _info: Ptr, sweeps: Out<i32>) {
        settled(handle, sweeps, 0)
    }
}

/// Declares the approximate decomposition for each type.
macro_rules! approximate {
    ($($name:ident),+) => {
        entry_points! {
            fail status::INTERNAL_ERROR;
            $(
                /// Singular values by their approximation. The residuals are the host's, where the caller
                /// wants them.
                fn $name(
                    handle: Handle<Context>, _vectors: i32, _rank: i32, m: i32, n: i32, _a: Ptr, lda: i32, _step_a: i64,
                    _s: Ptr, _step_s: i64, _u: Ptr, _ldu: i32, _step_u: i64, _v: Ptr, _ldv: i32, _step_v: i64,
                    workspace: Ptr, _size: i32, _info: Ptr, residuals: Out<f64>, batch: i32,
                ) {
                    if handle.get().is_none() {
                        return status::NOT_INITIALIZED;
                    }
                    if m < 0 || n < 0 || lda < m.max(1) || batch < 0 {
                        return status::INVALID_VALUE;
                    }
                    card::workspace(workspace);
                    residuals.put_all(std::iter::repeat_n(0.0, usize::try_from(batch).unwrap_or(0)));
                    status::SUCCESS
                }
            )+
        }
    };
}

approximate!(
    cusolverDnSgesvdaStridedBatched,
    cusolverDnDgesvdaStridedBatched,
    cusolverDnCgesvdaStridedBatched,
    cusolverDnZgesvdaStridedBatched
);

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
