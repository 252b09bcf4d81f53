//! cuSPARSE's handles, versions and status texts.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use super::status;
use crate::entry::{Fails, Handle, HandleStatus, Kind, Out, Ptr, entry_points, guarded};
use crate::real::real;
use memfit_abi::handles::Objects;

/// State of a handle.
#[derive(Default)]
pub(super) struct Context {
    stream: AtomicUsize,
    pointer_mode: AtomicI32,
}

impl Kind for Context {
    fn objects() -> &'static Objects<Self> {
        static OBJECTS: Objects<Context> = Objects::new(20);
        &OBJECTS
    }
}

impl Context {
    /// Stream that work is queued on.
    pub(super) fn stream(&self) -> usize {
        self.stream.load(Relaxed)
    }

    /// Returns `true` if scalars are passed as host addresses.
    pub(super) fn scalars_on_host(&self) -> bool {
        self.pointer_mode.load(Relaxed) == 0
    }
}

/// Writes a result.
pub(super) fn write_result<T>(handle: Handle<Context>, target: Out<T>, value: T) -> i32 {
    match handle.get() {
        None => status::NOT_INITIALIZED,
        Some(_) if target.write(value) => status::SUCCESS,
        Some(_) => status::INVALID_VALUE,
    }
}

/// Status codes for handle creation and destruction.
const HANDLES: HandleStatus = HandleStatus {
    success: status::SUCCESS,
    not_initialized: status::NOT_INITIALIZED,
    invalid_value: status::INVALID_VALUE,
};

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Creates a handle.
    fn cusparseCreate(handle: Out<Handle<Context>>) {
        HANDLES.create(handle)
    }

    /// Destroys a handle.
    fn cusparseDestroy(handle: Handle<Context>) {
        HANDLES.destroy(handle)
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Stores the stream.
    fn cusparseSetStream(handle: Handle<Context>, stream: usize) {
        let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
        context.stream.store(stream, Relaxed);
        status::SUCCESS
    }

    /// Returns the stored stream.
    fn cusparseGetStream(handle: Handle<Context>, stream: Out<usize>) {
        write_result(handle, stream, handle.get().map_or(0, |context| context.stream.load(Relaxed)))
    }

    /// Sets whether scalars are on the host or on the device.
    fn cusparseSetPointerMode(handle: Handle<Context>, mode: i32) {
        let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
        context.pointer_mode.store(mode, Relaxed);
        status::SUCCESS
    }

    /// Returns whether scalars are on the host or on the device.
    fn cusparseGetPointerMode(handle: Handle<Context>, mode: Out<i32>) {
        write_result(handle, mode, handle.get().map_or(0, |context| context.pointer_mode.load(Relaxed)))
    }

    /// Returns the real library's version.
    fn cusparseGetVersion(handle: Handle<Context>, version: Out<i32>) {
        let mut parts = [0; 3];
        for (kind, part) in (0..).zip(&mut parts) {
            real!(CUSPARSE, cusparseGetProperty(kind => i32, part => &mut i32) -> i32);
        }
        write_result(handle, version, parts[0] * 1000 + parts[1] * 100 + parts[2])
    }

    /// Returns the position of a zero pivot: none, since nothing was solved.
    fn cusparseXbsrsv2_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }

    /// Does the same for another solver.
    fn cusparseXbsrsm2_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }

    /// Does the same for another solver.
    fn cusparseXcsrilu02_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }

    /// Does the same for another solver.
    fn cusparseXcsric02_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }

    /// Does the same for another solver.
    fn cusparseXbsrilu02_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }

    /// Does the same for another solver.
    fn cusparseXbsric02_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }
}

/// Reports that there was no zero pivot; a position in device memory is left unchanged.
fn no_pivot(handle: Handle<Context>, position: Out<i32>) -> i32 {
    let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
    if context.scalars_on_host() && !position.write(-1) {
        return status::INVALID_VALUE;
    }
    status::SUCCESS
}

/// Text for a status if the real library is not loaded.
const UNKNOWN: &CStr = c"unknown cuSPARSE status";

/// Name of a status.
#[unsafe(no_mangle)]
extern "C" fn cusparseGetErrorName(code: i32) -> *const c_char {
    guarded("cusparseGetErrorName", UNKNOWN.as_ptr(), || {
        real!(CUSPARSE, cusparseGetErrorName(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}

/// Description of a status.
#[unsafe(no_mangle)]
extern "C" fn cusparseGetErrorString(code: i32) -> *const c_char {
    guarded("cusparseGetErrorString", UNKNOWN.as_ptr(), || {
        real!(CUSPARSE, cusparseGetErrorString(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}
