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

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

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
