//! cuBLASLt: descriptors belong to the real library, which keeps them on the host; the heuristic returns one
//! suitable algorithm.
//!
//! The real heuristics need a device and have no mode without one. PyTorch allocates its workspace, by its
//! own settings, before it asks for an algorithm, so the choice does not affect memory. The algorithm
//! returned here needs no workspace.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

use std::ffi::{CStr, c_char};

use memfit_channel::WorkKind;

use super::entry::{Fails, Handle, In, Kind, Out, Ptr, entry_points, guarded};
use super::numbers::{compute_math, element_bytes};
use super::real::{forward, real};
use memfit_abi::handles::Objects;
use memfit_cuda::card;
use memfit_kernels::cost::Work;
use memfit_kernels::cost::gemm::{Gemm, alignment};

/// The part of `cublasStatus_t` that is returned here.
mod status {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const NOT_INITIALIZED: i32 = 1;
    pub(super) const INVALID_VALUE: i32 = 7;
    pub(super) const INTERNAL_ERROR: i32 = 14;
    pub(super) const NOT_SUPPORTED: i32 = 15;
}

/// State of a handle: none is needed.
struct Context;

impl Kind for Context {
    fn objects() -> &'static Objects<Self> {
        static OBJECTS: Objects<Context> = Objects::new(17);
        &OBJECTS
    }
}

/// `cublasLtMatmulAlgo_t`: opaque, and copied by its users.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Algorithm {
    mark: u64,
    /// Settings, by `cublasLtMatmulAlgoConfigAttributes_t`; 16-bit ones use the lower half.
    settings: [u32; SETTINGS],
    reserved: [u32; 14 - SETTINGS],
}

/// Number of settings of an algorithm.
const SETTINGS: usize = 9;

/// The algorithm that every query returns.
const ALGORITHM: Algorithm = Algorithm {
    mark: u64::from_le_bytes(*b"memfit-1"),
    settings: [0; SETTINGS],
    reserved: [0; 14 - SETTINGS],
};

/// Index and width in bytes of a setting.
fn width(setting: i32) -> Option<(usize, usize)> {
    match setting {
        0..=6 => Some((setting as usize, 4)),
        7 | 8 => Some((setting as usize, 2)),
        _ => None,
    }
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Heuristic {
    algorithm: Algorithm,
    workspace: usize,
    state: i32,
    waves: f32,
    reserved: [i32; 4],
}

/// The one heuristic result: an algorithm that works, and fills the device once.
const ANSWER: Heuristic =
    Heuristic { algorithm: ALGORITHM, workspace: 0, state: status::SUCCESS, waves: 1.0, reserved: [0; 4] };

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Creates a handle.
    fn cublasLtCreate(handle: Out<Handle<Context>>) {
        if handle.is_null() {
            return status::INVALID_VALUE;
        }
        if !card::use_libraries() {
            return status::NOT_INITIALIZED;
        }
        handle.set(Handle::new(Context));
        status::SUCCESS
    }

    /// Destroys a handle.
    fn cublasLtDestroy(handle: Handle<Context>) {
        if handle.destroy() { status::SUCCESS } else { status::NOT_INITIALIZED }
    }

    /// Returns one algorithm. PyTorch passes a cuBLAS handle, which is also a cuBLASLt handle, so the handle
    /// is not checked.
    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: Ptr, operation: Ptr, a: Ptr, b: Ptr, c: Ptr, d: Ptr, preference: Ptr,
        requested: i32, results: Out<Heuristic>, returned: Out<i32>,
    ) {
        let missing = [operation, a, b, c, d, preference].iter().any(|descriptor| descriptor.is_null());
        if missing || requested < 1 || results.is_null() || returned.is_null() {
            return status::INVALID_VALUE;
        }
        results.set(ANSWER);
        returned.set(1);
        status::SUCCESS
    }

    /// Returns the algorithm for a type of operation.
    fn cublasLtMatmulAlgoInit(
        _handle: Ptr, _compute: i32, _scale: i32, _a: i32, _b: i32, _c: i32, _d: i32, _id: i32, algorithm: Out<Algorithm>,
    ) {
        if algorithm.write(ALGORITHM) { status::SUCCESS } else { status::INVALID_VALUE }
    }

    /// Returns the ids of the algorithms for a type of operation: one.
    fn cublasLtMatmulAlgoGetIds(
        _handle: Ptr, _compute: i32, _scale: i32, _a: i32, _b: i32, _c: i32, _d: i32,
        requested: i32, ids: Out<i32>, returned: Out<i32>,
    ) {
        if requested < 1 || !ids.write(0) || !returned.write(1) { status::INVALID_VALUE } else { status::SUCCESS }
    }

    /// Accepts any algorithm that was created here.
    fn cublasLtMatmulAlgoCheck(
        _handle: Ptr, operation: Ptr, a: Ptr, b: Ptr, c: Ptr, d: Ptr, algorithm: In<Algorithm>, result: Out<Heuristic>,
    ) {
        let missing = [operation, a, b, c, d].iter().any(|descriptor| descriptor.is_null());
        match algorithm.get() {
            Some(known) if !missing && known.mark == ALGORITHM.mark && !result.is_null() => {
                result.set(Heuristic { algorithm: known, ..ANSWER });
                status::SUCCESS
            }
            Some(_) if !missing && !result.is_null() => status::NOT_SUPPORTED,
            _ => status::INVALID_VALUE,
        }
    }

    /// Stores a setting in the algorithm itself.
    fn cublasLtMatmulAlgoConfigSetAttribute(algorithm: Ptr, setting: i32, value: In<[u8; 2]>, size: usize) {
        let (Some((index, wide)), Some(mut known)) = (width(setting), algorithm_at(algorithm)) else {
            return status::INVALID_VALUE;
        };
        let Some(low) = value.get().filter(|_| size == wide) else { return status::INVALID_VALUE };
        let high = if wide == 4 { value.get_at(1).unwrap_or_default() } else { [0; 2] };
        known.settings[index] = u32::from_le_bytes([low[0], low[1], high[0], high[1]]);
        // SAFETY: an algorithm created here was just read from there.
        unsafe { Out::<Algorithm>::from_address(algorithm as u64) }.set(known);
        status::SUCCESS
    }

    /// Returns a setting of an algorithm.
    fn cublasLtMatmulAlgoConfigGetAttribute(
        algorithm: Ptr, setting: i32, value: Out<u8>, size: usize, written: Out<usize>,
    ) {
        let (Some((index, wide)), Some(known)) = (width(setting), algorithm_at(algorithm)) else {
            return status::INVALID_VALUE;
        };
        if size != 0 && size != wide || size == 0 && written.is_null() {
            return status::INVALID_VALUE;
        }
        if size != 0 && value.is_null() {
            return status::INVALID_VALUE;
        }
        if size != 0 {
            value.set_all(known.settings[index].to_le_bytes().into_iter().take(wide));
        }
        written.set(wide);
        status::SUCCESS
    }

    /// Queues a matrix product: nothing is computed, but it takes time.
    fn cublasLtMatmul(
        _handle: Ptr, operation: Ptr, _alpha: Ptr, _a: Ptr, a_layout: Ptr, _b: Ptr, b_layout: Ptr, _beta: Ptr,
        _c: Ptr, c_layout: Ptr, d: Ptr, d_layout: Ptr, _algorithm: Ptr, workspace: Ptr, size: usize, stream: usize,
    ) {
        if [operation, a_layout, b_layout, c_layout, d_layout].iter().any(|descriptor| descriptor.is_null()) {
            return status::INVALID_VALUE;
        }
        if size > 0 {
            card::label_workspace(workspace);
        }
        match product(operation, a_layout, b_layout, d_layout) {
            Some(gemm) => card::queue_work(stream, |speeds| gemm.work(speeds)),
            None => card::queue_work(stream, |speeds| Work::new(WorkKind::Guess, speeds.launch)),
        }
        match Layout::read(d_layout) {
            Some(layout) => card::record_result(d, layout.bytes()),
            None => card::forget_contents(d),
        }
        status::SUCCESS
    }
}

/// Returns the matrix product that the descriptors describe.
fn product(operation: Ptr, a: Ptr, b: Ptr, d: Ptr) -> Option<Gemm> {
    /// `CUBLASLT_MATMUL_DESC_COMPUTE_TYPE`.
    const COMPUTE: i32 = 0;
    let mut compute = 0_i32;
    let mut written = 0_usize;
    real!(CUBLASLT, cublasLtMatmulDescGetAttribute(
        operation => Ptr, COMPUTE => i32, (&raw mut compute).cast() => Ptr, 4 => usize, &raw mut written => *mut usize
    ) -> i32)
    .filter(|result| *result == status::SUCCESS)?;
    let (a, b, result) = (Layout::read(a)?, Layout::read(b)?, Layout::read(d)?);
    let (rows, columns) = (result.rows as f64, result.columns as f64);
    // The operands may be transposed; the elements that remain besides the result's extents belong to the
    // sum.
    let sum = (a.rows as f64 * a.columns as f64 / rows).max(1.0);
    let (input, output) = (element_bytes(a.kind), element_bytes(result.kind));
    let bytes = |layout: &Layout, size: f64| (layout.leading.unsigned_abs() as f64 * size) as u64;
    Some(Gemm {
        alignment: alignment(&[bytes(&a, input), bytes(&b, input), bytes(&result, output)]),
        ..Gemm::new(
            [rows, columns, sum, f64::from(result.count.max(1))],
            compute_math(a.kind, compute),
            input,
            output,
        )
    })
}

/// Contents of a matrix layout.
struct Layout {
    kind: i32,
    rows: u64,
    columns: u64,
    leading: i64,
    count: i32,
    /// Elements between consecutive matrices of a batch.
    step: i64,
    /// `true` for row-major order.
    by_rows: bool,
}

impl Layout {
    /// Bytes from its first element to its last.
    fn bytes(&self) -> u64 {
        let (lines, each) = if self.by_rows { (self.rows, self.columns) } else { (self.columns, self.rows) };
        let gaps = |step: i64, count: u64| step.unsigned_abs().saturating_mul(count.saturating_sub(1));
        let one = gaps(self.leading, lines).saturating_add(each);
        let all = gaps(self.step, u64::from(self.count.unsigned_abs())).saturating_add(one);
        (all as f64 * element_bytes(self.kind)) as u64
    }

    fn read(layout: Ptr) -> Option<Self> {
        let get = |attribute: i32, size: usize| {
            let (mut value, mut written) = (0_u64, 0_usize);
            let result = real!(CUBLASLT, cublasLtMatrixLayoutGetAttribute(
                layout => Ptr, attribute => i32, (&raw mut value).cast() => Ptr, size => usize,
                &raw mut written => *mut usize
            ) -> i32)?;
            (result == status::SUCCESS).then_some(value)
        };
        // CUBLASLT_MATRIX_LAYOUT_TYPE, ORDER, ROWS, COLS, LD, BATCH_COUNT, STRIDED_BATCH_OFFSET.
        Some(Self {
            kind: get(0, 4)? as i32,
            rows: get(2, 8)?,
            columns: get(3, 8)?,
            leading: get(4, 8)? as i64,
            count: get(5, 4)? as i32,
            step: get(6, 8)? as i64,
            by_rows: get(1, 4)? == 1,
        })
    }
}

/// Reads the algorithm in the caller's memory, if it was created here.
fn algorithm_at(place: Ptr) -> Option<Algorithm> {
    // SAFETY: the caller's `cublasLtMatmulAlgo_t` has this size.
    let found = unsafe { In::<Algorithm>::from_address(place as u64) }.get();
    found.filter(|known| known.mark == ALGORITHM.mark)
}

forward! {
    CUBLASLT, missing status::NOT_SUPPORTED, fail status::INTERNAL_ERROR;

    fn cublasLtGetProperty(kind: i32, value: Ptr);
    fn cublasLtHeuristicsCacheGetCapacity(capacity: Ptr);
    fn cublasLtHeuristicsCacheSetCapacity(capacity: usize);
    fn cublasLtMatmulDescCreate(descriptor: Ptr, compute: i32, scale: i32);
    fn cublasLtMatmulDescInit_internal(descriptor: Ptr, size: usize, compute: i32, scale: i32);
    fn cublasLtMatmulDescDestroy(descriptor: Ptr);
    fn cublasLtMatmulDescSetAttribute(descriptor: Ptr, attribute: i32, value: Ptr, size: usize);
    fn cublasLtMatmulDescGetAttribute(descriptor: Ptr, attribute: i32, value: Ptr, size: usize, written: Ptr);
    fn cublasLtMatmulPreferenceCreate(preference: Ptr);
    fn cublasLtMatmulPreferenceInit_internal(preference: Ptr, size: usize);
    fn cublasLtMatmulPreferenceDestroy(preference: Ptr);
    fn cublasLtMatmulPreferenceSetAttribute(preference: Ptr, attribute: i32, value: Ptr, size: usize);
    fn cublasLtMatmulPreferenceGetAttribute(
        preference: Ptr, attribute: i32, value: Ptr, size: usize, written: Ptr,
    );
    fn cublasLtMatrixLayoutCreate(layout: Ptr, kind: i32, rows: u64, columns: u64, leading: i64);
    fn cublasLtMatrixLayoutInit_internal(
        layout: Ptr, size: usize, kind: i32, rows: u64, columns: u64, leading: i64,
    );
    fn cublasLtMatrixLayoutDestroy(layout: Ptr);
    fn cublasLtMatrixLayoutSetAttribute(layout: Ptr, attribute: i32, value: Ptr, size: usize);
    fn cublasLtMatrixLayoutGetAttribute(layout: Ptr, attribute: i32, value: Ptr, size: usize, written: Ptr);
    fn cublasLtGroupedMatrixLayoutCreate(
        layout: Ptr, kind: i32, count: i32, rows: Ptr, columns: Ptr, leading: Ptr,
    );
    fn cublasLtGroupedMatrixLayoutInit_internal(
        layout: Ptr, size: usize, kind: i32, count: i32, rows: Ptr, columns: Ptr, leading: Ptr,
    );
    fn cublasLtMatrixTransformDescCreate(descriptor: Ptr, scale: i32);
    fn cublasLtMatrixTransformDescInit_internal(descriptor: Ptr, size: usize, scale: i32);
    fn cublasLtMatrixTransformDescDestroy(descriptor: Ptr);
    fn cublasLtMatrixTransformDescSetAttribute(descriptor: Ptr, attribute: i32, value: Ptr, size: usize);
    fn cublasLtMatrixTransformDescGetAttribute(
        descriptor: Ptr, attribute: i32, value: Ptr, size: usize, written: Ptr,
    );
    fn cublasLtEmulationDescCreate(descriptor: Ptr);
    fn cublasLtEmulationDescInit_internal(descriptor: Ptr, size: usize);
    fn cublasLtEmulationDescDestroy(descriptor: Ptr);
    fn cublasLtEmulationDescSetAttribute(descriptor: Ptr, attribute: i32, value: Ptr, size: usize);
    fn cublasLtEmulationDescGetAttribute(
        descriptor: Ptr, attribute: i32, value: Ptr, size: usize, written: Ptr,
    );
}

/// Returns the real library's version.
#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    guarded("cublasLtGetVersion", 0, || real!(CUBLASLT, cublasLtGetVersion() -> usize).unwrap_or(0))
}

/// Returns the CUDA runtime version that the real library was built with.
#[unsafe(no_mangle)]
extern "C" fn cublasLtGetCudartVersion() -> usize {
    guarded("cublasLtGetCudartVersion", 0, || {
        real!(CUBLASLT, cublasLtGetCudartVersion() -> usize).unwrap_or(0)
    })
}

/// Text for a status if the real library is not loaded.
const UNKNOWN: &CStr = c"unknown cuBLASLt status";

/// Name of a status.
#[unsafe(no_mangle)]
extern "C" fn cublasLtGetStatusName(code: i32) -> *const c_char {
    guarded("cublasLtGetStatusName", UNKNOWN.as_ptr(), || {
        real!(CUBLASLT, cublasLtGetStatusName(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}

/// Description of a status.
#[unsafe(no_mangle)]
extern "C" fn cublasLtGetStatusString(code: i32) -> *const c_char {
    guarded("cublasLtGetStatusString", UNKNOWN.as_ptr(), || {
        real!(CUBLASLT, cublasLtGetStatusString(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}
