//! Support for the entry points that are generated from the prototype lists.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The answer of a call that returns a string and has nothing to say.
pub static EMPTY: &CStr = c"";

/// Two floating-point numbers, passed as `cuComplex` is.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Complex<T>(pub T, pub T);

/// A structure that is passed or returned by value and not looked at.
#[repr(C)]
#[derive(Debug)]
pub struct Structure<T>(pub T);

/// A jump to another entry point, whatever the arguments.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! jump_to {
    ($target:ident) => {
        std::arch::naked_asm!("jmp {}", sym $target)
    };
}

/// A jump to another entry point, whatever the arguments.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! jump_to {
    ($target:ident) => {
        std::arch::naked_asm!("b {}", sym $target)
    };
}

/// A handle that no other call has been given. Nothing lies behind it: its address is outside user space's
/// reach.
pub fn token() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    0x7ff0_0000_0000_0000 | (NEXT.fetch_add(1, Ordering::Relaxed) << 4)
}

/// Writes an out-parameter unless it is null.
///
/// # Safety
/// `target` is null or points to a `T` that may be written.
pub unsafe fn put<T>(target: *mut c_void, value: T) {
    if !target.is_null() {
        // SAFETY: it is not null, and the caller vouches for the rest; C does not promise alignment.
        unsafe { target.cast::<T>().write_unaligned(value) }
    }
}

/// Fills an out-parameter of `size` bytes with zeros unless it is null.
///
/// # Safety
/// `target` is null or points to `size` bytes that may be written.
pub unsafe fn clear(target: *mut c_void, size: usize) {
    if !target.is_null() {
        // SAFETY: it is not null, and the caller vouches for the rest.
        unsafe { target.cast::<u8>().write_bytes(0, size) }
    }
}
