//! Support for the entry points that are generated from the prototype lists.

#![allow(unsafe_code, reason = "pointers of C callers are followed here")]

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Result of a call that returns a string and has none.
pub static EMPTY: &CStr = c"";

/// Two floating-point numbers, passed like `cuComplex`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Complex<T>(pub T, pub T);

/// A structure that is passed or returned by value and not read.
#[repr(C)]
#[derive(Debug)]
pub struct Structure<T>(pub T);

/// Jumps to another entry point with any arguments.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! jump_to {
    ($target:ident) => {
        std::arch::naked_asm!("jmp {}", sym $target)
    };
}

/// Jumps to another entry point with any arguments.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! jump_to {
    ($target:ident) => {
        std::arch::naked_asm!("b {}", sym $target)
    };
}

/// Returns a handle that no other call gets. It cannot be dereferenced: its address is outside user space.
pub fn token() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    0x7ff0_0000_0000_0000 | (NEXT.fetch_add(1, Ordering::Relaxed) << 4)
}

/// Writes an out-parameter unless it is null.
///
/// # Safety
/// `target` must be null, or point to a writable `T`.
pub unsafe fn write_out<T>(target: *mut c_void, value: T) {
    if !target.is_null() {
        // SAFETY: it is not null, and the caller guarantees the rest; C does not promise alignment.
        unsafe { target.cast::<T>().write_unaligned(value) }
    }
}

/// Zeroes an out-parameter of `size` bytes unless it is null.
///
/// # Safety
/// `target` must be null, or point to `size` writable bytes.
pub unsafe fn clear(target: *mut c_void, size: usize) {
    if !target.is_null() {
        // SAFETY: it is not null, and the caller guarantees the rest.
        unsafe { target.cast::<u8>().write_bytes(0, size) }
    }
}
