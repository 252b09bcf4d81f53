//! Counts refused calls by name in the run's ledger, which the report reads.

#![allow(unsafe_code, reason = "calls are exported under NVML's names")]

use std::ffi::{CStr, c_char};

use memfit_channel::TallyKind;

use crate::cards;

/// Reports a refused call.
pub(crate) fn report(name: &str) {
    if let Some(ledger) = cards::ledger() {
        ledger.count(TallyKind::Unmodelled, name);
    }
}

/// Counts a name.
pub(crate) fn count(name: &str) {
    memfit_abi::tally::count_partial(name, report);
}

/// Number of times that the named call was refused in this process; for tests and debuggers.
///
/// # Safety
/// `name` must be a NUL-terminated string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memfit_nvml_refused(name: *const c_char) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: the caller guarantees a valid string.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_or(0, memfit_abi::tally::refusal_count)
}
