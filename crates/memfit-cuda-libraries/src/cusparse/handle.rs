//! cuSPARSE's handles, and what it says of its results.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use super::status;
use crate::entry::{Fails, Handle, HandleStatus, Kind, Out, Ptr, entry_points, guarded};
use crate::real::real;
use memfit_abi::handles::Objects;

/// What lies behind a handle.
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
    /// The stream that work is queued on.
    pub(super) fn stream(&self) -> usize {
        self.stream.load(Relaxed)
    }

    /// Whether scalars are passed by addresses of the host.
    pub(super) fn scalars_on_host(&self) -> bool {
        self.pointer_mode.load(Relaxed) == 0
    }
}

/// Writes an answer.
pub(super) fn answer<T>(handle: Handle<Context>, target: Out<T>, value: T) -> i32 {
    match handle.get() {
        None => status::NOT_INITIALIZED,
        Some(_) if target.write(value) => status::SUCCESS,
        Some(_) => status::INVALID_VALUE,
    }
}

/// What cuSPARSE answers about its handles.
const HANDLES: HandleStatus = HandleStatus {
    success: status::SUCCESS,
    not_initialized: status::NOT_INITIALIZED,
    invalid_value: status::INVALID_VALUE,
};

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Gives out a handle.
    fn cusparseCreate(handle: Out<Handle<Context>>) {
        HANDLES.create(handle)
    }

    /// Takes a handle back.
    fn cusparseDestroy(handle: Handle<Context>) {
        HANDLES.destroy(handle)
    }
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Remembers the stream.
    fn cusparseSetStream(handle: Handle<Context>, stream: usize) {
        let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
        context.stream.store(stream, Relaxed);
        status::SUCCESS
    }

    /// The stream that was set.
    fn cusparseGetStream(handle: Handle<Context>, stream: Out<usize>) {
        answer(handle, stream, handle.get().map_or(0, |context| context.stream.load(Relaxed)))
    }

    /// Where scalars are.
    fn cusparseSetPointerMode(handle: Handle<Context>, mode: i32) {
        let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
        context.pointer_mode.store(mode, Relaxed);
        status::SUCCESS
    }

    /// Where scalars are said to be.
    fn cusparseGetPointerMode(handle: Handle<Context>, mode: Out<i32>) {
        answer(handle, mode, handle.get().map_or(0, |context| context.pointer_mode.load(Relaxed)))
    }

    /// The real library's version.
    fn cusparseGetVersion(handle: Handle<Context>, version: Out<i32>) {
        let mut parts = [0; 3];
        for (kind, part) in (0..).zip(&mut parts) {
            real!(CUSPARSE, cusparseGetProperty(kind => i32, part => &mut i32) -> i32);
        }
        answer(handle, version, parts[0] * 1000 + parts[1] * 100 + parts[2])
    }

    /// Whether a triangular solve met a zero on the diagonal: nothing was solved, so no.
    fn cusparseXbsrsv2_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }

    /// As above.
    fn cusparseXbsrsm2_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }

    /// As above.
    fn cusparseXcsrilu02_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }

    /// As above.
    fn cusparseXcsric02_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }

    /// As above.
    fn cusparseXbsrilu02_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }

    /// As above.
    fn cusparseXbsric02_zeroPivot(handle: Handle<Context>, _info: Ptr, position: Out<i32>) {
        no_pivot(handle, position)
    }
}

/// Says that there was no zero; a position on the device stays as it is.
fn no_pivot(handle: Handle<Context>, position: Out<i32>) -> i32 {
    let Some(context) = handle.get() else { return status::NOT_INITIALIZED };
    if context.scalars_on_host() && !position.write(-1) {
        return status::INVALID_VALUE;
    }
    status::SUCCESS
}

/// What is said of a status where the real library is not loaded.
const UNKNOWN: &CStr = c"unknown cuSPARSE status";

/// The name of a status.
#[unsafe(no_mangle)]
extern "C" fn cusparseGetErrorName(code: i32) -> *const c_char {
    guarded("cusparseGetErrorName", UNKNOWN.as_ptr(), || {
        real!(CUSPARSE, cusparseGetErrorName(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}

/// What a status means.
#[unsafe(no_mangle)]
extern "C" fn cusparseGetErrorString(code: i32) -> *const c_char {
    guarded("cusparseGetErrorString", UNKNOWN.as_ptr(), || {
        real!(CUSPARSE, cusparseGetErrorString(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}
