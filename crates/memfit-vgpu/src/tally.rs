//! Which calls were refused, and how often: what a report lists as unmodelled.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use memfit_link::TallyKind;

use crate::libraries::is_inside;
use crate::machine;
use crate::stubs::REFUSALS;

/// Counts of the calls that the lists refuse, in the order of `REFUSALS`. Plain atomics: a refused call may come from any
/// thread, and from a child after fork, where a lock could be held for ever.
static COUNTS: [AtomicU64; REFUSALS.len()] = [const { AtomicU64::new(0) }; REFUSALS.len()];

/// Counts of what modelled calls refused in part: a mode, an attribute, a layout.
static PARTIAL: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Counts a call from the lists, and gives what it answers.
pub(crate) fn refuse(index: usize) -> u64 {
    let answer = u64::from(REFUSALS[index].status);
    if is_inside() {
        return answer;
    }
    COUNTS[index].fetch_add(1, Ordering::Relaxed);
    machine::count(TallyKind::Unmodelled, REFUSALS[index].name);
    answer
}

/// Counts something that a modelled call does not model, by name: `cudaMemcpy3D(array)`.
#[allow(dead_code, reason = "for the modelled calls")]
pub(crate) fn refused(name: &str) {
    if is_inside() {
        return;
    }
    machine::count(TallyKind::Unmodelled, name);
    let mut partial = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner);
    match partial.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            partial.insert(name.to_owned(), 1);
        }
    }
}

/// Everything refused so far, by name.
#[allow(dead_code, reason = "for whoever reports it")]
pub(crate) fn counts() -> BTreeMap<String, u64> {
    let mut all = PARTIAL.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for (refusal, count) in REFUSALS.iter().zip(&COUNTS) {
        let count = count.load(Ordering::Relaxed);
        if count > 0 {
            *all.entry(refusal.name.to_owned()).or_default() += count;
        }
    }
    all
}

/// How often the call of that name was refused in this process; for tests and debuggers.
///
/// # Safety
/// `name` is a string that ends with NUL.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memfit_vgpu_refused(name: *const c_char) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: the caller vouches for the string.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().ok().and_then(|name| counts().get(name).copied()).unwrap_or(0)
}
