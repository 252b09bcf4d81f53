//! Look-up of driver functions by name.

use std::ffi::c_char;

use crate::{
    entry_points,
    guard::Runtime,
    machine,
    status::{Outcome, Status},
    versions,
};
use memfit_abi::{In, Out, entry_points};

/// `cudaDriverEntryPointQueryResult`.
const FOUND: i32 = 0;
const NOT_FOUND: i32 = 1;
const TOO_NEW: i32 = 2;

fn find(symbol: In<c_char>, function: Out<u64>, version: i32, flags: u64, result: Out<i32>) -> Outcome {
    let name = symbol.text().ok_or(Status::INVALID_VALUE)?;
    if function.is_null() || flags > 2 {
        return Err(Status::INVALID_VALUE);
    }
    machine::get()?;
    match entry_points::find(&name, version, flags) {
        Ok(address) => {
            function.set(address);
            result.set(FOUND);
        }
        // If the caller requests the result, a missing name is not an error.
        Err(why) => {
            function.set(0);
            if result.is_null() {
                return Err(Status::NOT_FOUND);
            }
            result.set(if why == entry_points::Missing::TooNew { TOO_NEW } else { NOT_FOUND });
        }
    }
    Ok(())
}

entry_points! { Runtime;
    fn cudaGetDriverEntryPoint(symbol: In<c_char>, function: Out<u64>, flags: u64, result: Out<i32>) {
        find(symbol, function, versions::runtime(), flags, result)
    }

    fn cudaGetDriverEntryPointByVersion(
        symbol: In<c_char>, function: Out<u64>, version: u32, flags: u64, result: Out<i32>,
    ) {
        find(symbol, function, version as i32, flags, result)
    }
}
