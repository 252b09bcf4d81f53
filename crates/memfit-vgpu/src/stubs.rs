//! The entry points that are generated from the prototype lists: all that are harmless or refused.

#![allow(
    non_snake_case,
    clippy::pedantic,
    clippy::used_underscore_binding,
    clippy::missing_safety_doc,
    improper_ctypes_definitions,
    reason = "generated: names and signatures are CUDA's"
)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::tally::{Refusal, refuse};

/// A jump to another entry point, whatever the arguments.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_to {
    ($target:ident) => {
        std::arch::naked_asm!("jmp {}", sym $target)
    };
}

/// A jump to another entry point, whatever the arguments.
#[cfg(target_arch = "aarch64")]
macro_rules! jump_to {
    ($target:ident) => {
        std::arch::naked_asm!("b {}", sym $target)
    };
}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

/// One version of a call of the driver, as `cuGetProcAddress` hands it out.
pub(crate) struct EntryPoint {
    /// The name without its version; with `_ptsz` or `_ptds` if it means each thread's own default stream.
    pub(crate) name: &'static str,
    /// The CUDA release from which it is the version meant, as 12040 is 12.4.
    pub(crate) since: u32,
    /// Where it is.
    pub(crate) address: unsafe extern "C" fn(),
}

/// The versions of a call of the driver, the oldest first; none if there is no such call.
#[allow(dead_code, reason = "for cuGetProcAddress")]
pub(crate) fn entry_points(name: &str) -> &'static [EntryPoint] {
    let first = ENTRY_POINTS.partition_point(|each| each.name < name);
    let count = ENTRY_POINTS[first..].partition_point(|each| each.name == name);
    &ENTRY_POINTS[first..first + count]
}

/// What a call that returns a string answers when there is nothing to say.
static EMPTY: &CStr = c"";

/// Two floating-point numbers, passed as `cuComplex` is.
#[repr(C)]
#[derive(Default)]
struct Complex<T>(T, T);

/// A structure that is passed or returned by value and not looked at.
#[repr(C)]
struct Structure<T>(T);

/// A handle that no other call has been given. Nothing lies behind it: its address is outside user space's reach.
fn token() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    0x7ff0_0000_0000_0000 | (NEXT.fetch_add(1, Ordering::Relaxed) << 4)
}

/// Writes an out-parameter unless it is null.
///
/// # Safety
/// `target` is null or points to a `T` that may be written.
unsafe fn put<T>(target: *mut c_void, value: T) {
    if !target.is_null() {
        // SAFETY: it is not null, and the caller vouches for the rest; C does not promise alignment.
        unsafe { target.cast::<T>().write_unaligned(value) }
    }
}

/// Fills an out-parameter of `size` bytes with zeros unless it is null.
///
/// # Safety
/// `target` is null or points to `size` bytes that may be written.
unsafe fn clear(target: *mut c_void, size: usize) {
    if !target.is_null() {
        // SAFETY: it is not null, and the caller vouches for the rest.
        unsafe { target.cast::<u8>().write_bytes(0, size) }
    }
}
