//! Initialisation, versions, errors, and functions by name.

use std::ffi::{CStr, c_char};

use crate::{
    entry_points, errors,
    guard::Driver,
    machine,
    status::{Outcome, Status},
    versions,
};
use memfit_abi::{In, Out, entry_points};

fn put_text(
    code: i32,
    target: Out<*const c_char>,
    of: impl FnOnce(&errors::ErrorText) -> &'static CStr,
) -> Outcome {
    if target.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let Some(error) = errors::find(code).filter(|error| !error.driver.is_empty()) else {
        target.set(std::ptr::null());
        return Err(Status::INVALID_VALUE);
    };
    target.set(of(error).as_ptr());
    Ok(())
}

fn find(symbol: In<c_char>, function: Out<u64>, version: i32, flags: u64, result: Out<i32>) -> Outcome {
    let name = symbol.text().ok_or(Status::INVALID_VALUE)?;
    if function.is_null() || flags > 2 {
        return Err(Status::INVALID_VALUE);
    }
    match entry_points::find(&name, version, flags) {
        Ok(address) => {
            function.set(address);
            result.set(0); // CU_GET_PROC_ADDRESS_SUCCESS
            Ok(())
        }
        Err(why) => {
            function.set(0);
            result.set(if why == entry_points::Missing::TooNew { 2 } else { 1 });
            Err(Status::NOT_FOUND)
        }
    }
}

entry_points! { Driver;
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        machine::get().map(drop)
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        if version.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        version.set(versions::driver());
        Ok(())
    }

    fn cuGetErrorName(code: i32, name: Out<*const c_char>) {
        put_text(code, name, |error| error.driver)
    }

    fn cuGetErrorString(code: i32, text: Out<*const c_char>) {
        put_text(code, text, |error| error.text)
    }

    fn cuGetProcAddress(symbol: In<c_char>, function: Out<u64>, version: i32, flags: u64) {
        find(symbol, function, version, flags, Out::nowhere())
    }

    fn cuGetProcAddress_v2(symbol: In<c_char>, function: Out<u64>, version: i32, flags: u64, result: Out<i32>) {
        find(symbol, function, version, flags, result)
    }

    fn cuGetExportTable(table: Out<u64>, id: u64) {
        // Undocumented tables, requested by a CUDA runtime that is statically linked into another library.
        // Such a library cannot work here, so it is reported by name. `id` points into its data.
        let asker = versions::file_at(id);
        if !asker.as_deref().is_some_and(compiles_anyway) {
            let asker = asker.unwrap_or_default();
            crate::machine::count_unmodelled(&format!("cuGetExportTable {asker}"));
        }
        table.set(0);
        Err(Status::NOT_SUPPORTED)
    }
}

/// Returns `true` for compilers, which look up the driver but work without one.
fn compiles_anyway(file: &str) -> bool {
    file.starts_with("libnvrtc.so") || file.starts_with("libnvJitLink.so")
}
