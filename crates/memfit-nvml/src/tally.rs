//! Which calls were refused: counted by name in the run's ledger, where a report finds them.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering};

use memfit_link::TallyKind;

use crate::cards;
use crate::stubs::REFUSALS;

/// Counts of the calls that the list refuses, in the order of `REFUSALS`.
static COUNTS: [AtomicU64; REFUSALS.len()] = [const { AtomicU64::new(0) }; REFUSALS.len()];

/// Counts a call from the list, and gives what it answers.
pub(crate) fn refuse(index: usize) -> u64 {
    let refusal = &REFUSALS[index];
    COUNTS[index].fetch_add(1, Ordering::Relaxed);
    count(refusal.name);
    u64::from(refusal.status)
}

/// Counts something by name.
pub(crate) fn count(name: &str) {
    if let Some(ledger) = cards::ledger() {
        ledger.count(TallyKind::Unmodelled, name);
    }
}

/// How often the call of that name was refused in this process; for tests and debuggers.
///
/// # Safety
/// `name` is a string that ends with NUL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memfit_nvml_refused(name: *const c_char) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: the caller vouches for the string.
    let name = unsafe { CStr::from_ptr(name) };
    let found = REFUSALS.iter().position(|refusal| refusal.name.as_bytes() == name.to_bytes());
    found.map_or(0, |index| COUNTS[index].load(Ordering::Relaxed))
}
