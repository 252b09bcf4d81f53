//! Errors and versions.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::ffi::{CStr, c_char};

use crate::{errors, guard::Runtime, status::Status, thread, versions};
use memfit_abi::{Out, entry_points};

/// Returns the last error of this thread and clears it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudaGetLastError() -> i32 {
    thread::take_last_error()
}

/// Returns the last error of this thread.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudaPeekAtLastError() -> i32 {
    thread::last_error()
}

fn error_text(code: i32, of: impl FnOnce(&errors::ErrorText) -> &'static CStr) -> *const c_char {
    match errors::find(code).map(of) {
        Some(text) if !text.is_empty() => text.as_ptr(),
        _ => errors::UNRECOGNIZED.as_ptr(),
    }
}

/// Name of an error code.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudaGetErrorName(code: i32) -> *const c_char {
    error_text(code, |error| error.runtime)
}

/// Text of an error code.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cudaGetErrorString(code: i32) -> *const c_char {
    error_text(code, |error| if error.runtime.is_empty() { c"" } else { error.text })
}

entry_points! { Runtime;
    fn cudaRuntimeGetVersion(version: Out<i32>) {
        if version.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        version.set(versions::runtime());
        Ok(())
    }

    fn cudaDriverGetVersion(version: Out<i32>) {
        if version.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        version.set(versions::driver());
        Ok(())
    }

    /// Returns the driver's table of undocumented functions, which a runtime linked statically into another
    /// library asks for. Not supported.
    fn cudaGetExportTable(_table: Out<u64>, _id: u64) {
        crate::machine::count_unmodelled("cudaGetExportTable");
        Err(Status::NOT_SUPPORTED)
    }
}
