//! The virtual CUDA device and the libraries above it as one shared object, `libcuda.so.1`, which precedes
//! CUDA's own libraries in the search order.
//!
//! It owns only the object: every entry point is exported by one of the crates that are linked here.

#![allow(unsafe_code, reason = "calls are exported to C")]

use std::ffi::{CStr, c_char};

// Linked for their exported symbols.
extern crate memfit_cuda;
extern crate memfit_cuda_libraries;

#[doc(hidden)]
pub use memfit_cuda::property_layout;

/// Number of times that the named call was refused in this process; for tests and debuggers.
///
/// # Safety
/// `name` must be a NUL-terminated string.
#[unsafe(no_mangle)]
unsafe extern "C" fn memfit_vgpu_refused(name: *const c_char) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: the caller guarantees a valid string.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_or(0, memfit_abi::tally::refusal_count)
}
