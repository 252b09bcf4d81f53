//! Look-up of the driver's functions by name and version (`cuGetProcAddress`).

use crate::{stubs, versions};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// Reason why a function was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// No version of this driver exports it.
    NotFound,
    /// It was added after the requested version.
    TooNew,
}

/// Returns the address of a function as exported by a release of CUDA.
pub(crate) fn find(name: &str, version: i32, flags: u64) -> Result<u64, Missing> {
    if version > versions::driver() {
        return Err(Missing::TooNew);
    }
    let per_thread = if flags & PER_THREAD != 0 {
        ["_ptsz", "_ptds"].iter().find_map(|suffix| {
            let entries = stubs::entry_points(&format!("{name}{suffix}"));
            (!entries.is_empty()).then_some(entries)
        })
    } else {
        None
    };
    let entries = per_thread.unwrap_or_else(|| stubs::entry_points(name));
    let newest = entries.iter().rev().find(|entry| i64::from(entry.since) <= i64::from(version));
    match newest {
        Some(entry) => Ok(entry.address as usize as u64),
        None if entries.is_empty() => Err(Missing::NotFound),
        None => Err(Missing::TooNew),
    }
}
