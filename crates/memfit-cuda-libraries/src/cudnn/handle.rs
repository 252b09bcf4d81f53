//! cuDNN's handles, and queries about the library as a whole.

#![allow(unsafe_code, reason = "pointers of C callers are followed here, and the real libraries called")]

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

use super::image::Image;
use super::status;
use crate::entry::{Fails, Out, Ptr, entry_points, guarded};
use crate::real::real;
use memfit_cuda::card;

/// State of a handle, by its address.
struct Context {
    /// Memory behind the handle's address; the library's size queries read it.
    _image: Image,
    stream: usize,
}

/// Live handles. PyTorch keeps one per thread and device, so there are few.
static HANDLES: Mutex<Option<HashMap<usize, Context>>> = Mutex::new(None);

fn with_handles<R>(body: impl FnOnce(&mut HashMap<usize, Context>) -> R) -> R {
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    body(handles.get_or_insert_default())
}

/// Returns `true` if this is a live handle.
pub(super) fn is_alive(handle: Ptr) -> bool {
    with_handles(|handles| handles.contains_key(&(handle as usize)))
}

/// Stream of a live handle.
pub(super) fn stream(handle: Ptr) -> Option<usize> {
    with_handles(|handles| handles.get(&(handle as usize)).map(|context| context.stream))
}

entry_points! {
    Fails(status::INTERNAL_ERROR);

    /// Creates a handle that begins with the current device's properties.
    fn cudnnCreate(handle: Out<usize>) {
        if handle.is_null() {
            return status::BAD_PARAM;
        }
        let Some(device) = card::device().filter(|_| card::use_libraries()) else {
            return status::NOT_INITIALIZED;
        };
        let image = Image::new(device);
        let address = image.address();
        with_handles(|handles| handles.insert(address, Context { _image: image, stream: 0 }));
        handle.set(address);
        status::SUCCESS
    }

    /// Destroys a handle.
    fn cudnnDestroy(handle: usize) {
        match with_handles(|handles| handles.remove(&handle)) {
            Some(_) => status::SUCCESS,
            None => status::BAD_PARAM,
        }
    }

    /// Stores the handle's stream.
    fn cudnnSetStream(handle: usize, stream: usize) {
        with_handles(|handles| match handles.get_mut(&handle) {
            Some(context) => {
                context.stream = stream;
                status::SUCCESS
            }
            None => status::BAD_PARAM,
        })
    }

    /// Returns the stored stream; the library itself also calls this.
    fn cudnnGetStream(handle: usize, stream: Out<usize>) {
        let known = with_handles(|handles| handles.get(&handle).map(|context| context.stream));
        match known {
            Some(known) if stream.write(known) => status::SUCCESS,
            _ => status::BAD_PARAM,
        }
    }

    /// Reports success: nothing runs, so no error can have occurred.
    fn cudnnQueryRuntimeError(handle: usize, result: Out<i32>, _mode: i32, _tag: Ptr) {
        if is_alive(handle as Ptr) && result.write(status::SUCCESS) { status::SUCCESS } else { status::BAD_PARAM }
    }
}

/// Returns the real library's version.
#[unsafe(no_mangle)]
extern "C" fn cudnnGetVersion() -> usize {
    guarded("cudnnGetVersion", 0, || real!(CUDNN, cudnnGetVersion() -> usize).unwrap_or(0))
}

/// Returns the CUDA runtime version that the real library was built with.
#[unsafe(no_mangle)]
extern "C" fn cudnnGetCudartVersion() -> usize {
    guarded("cudnnGetCudartVersion", 0, || real!(CUDNN, cudnnGetCudartVersion() -> usize).unwrap_or(0))
}

/// Returns the newest architecture that the real library knows.
#[unsafe(no_mangle)]
extern "C" fn cudnnGetMaxDeviceVersion() -> usize {
    guarded("cudnnGetMaxDeviceVersion", 0, || real!(CUDNN, cudnnGetMaxDeviceVersion() -> usize).unwrap_or(0))
}

/// Name of a status.
#[unsafe(no_mangle)]
extern "C" fn cudnnGetErrorString(code: i32) -> *const c_char {
    const UNKNOWN: &CStr = c"CUDNN_STATUS_UNKNOWN";
    guarded("cudnnGetErrorString", UNKNOWN.as_ptr(), || {
        real!(CUDNN, cudnnGetErrorString(code => i32) -> *const c_char).unwrap_or(UNKNOWN.as_ptr())
    })
}

/// Copies the real library's message about this thread's last failure.
#[unsafe(no_mangle)]
extern "C" fn cudnnGetLastErrorString(message: Out<u8>, size: usize) {
    guarded("cudnnGetLastErrorString", (), || {
        if real!(CUDNN, cudnnGetLastErrorString(message => Out<u8>, size => usize) -> ()).is_none()
            && size > 0
        {
            message.set(0);
        }
    });
}
