#[allow(unused_imports)]
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A call that is always refused.
pub(crate) struct Refusal {
    /// The exported name.
    pub(crate) name: &'static str,
    /// What it answers.
    pub(crate) status: u32,
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

