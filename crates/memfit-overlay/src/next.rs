//! The C library's functions behind the interposed ones, and system calls without a safe wrapper.

#![allow(unsafe_code, reason = "functions of the C library are interposed")]

use std::{
    ffi::{CStr, c_void},
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use rustix::io::Errno;

/// A function of the C library that an interposed one hides, looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Address of the function; null if the C library has none of this name.
    pub(crate) fn find(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls the next function of a name, with a signature.
macro_rules! next {
    ($name:literal as fn($($type:ty),*) -> $result:ty, $($argument:expr),* ; else $missing:expr) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new($name);
        let found = NEXT.find();
        if found.is_null() {
            $crate::next::set_errno(rustix::io::Errno::NOSYS);
            $missing
        } else {
            // SAFETY: the C library's function of this name has this signature.
            let next: unsafe extern "C" fn($($type),*) -> $result = unsafe { std::mem::transmute(found) };
            // SAFETY: the caller's own arguments, passed on.
            unsafe { next($($argument),*) }
        }
    }};
}
pub(crate) use next;

/// Sets `errno` for the calling C code.
pub(crate) fn set_errno(error: Errno) {
    // SAFETY: the address of this thread's `errno`.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
}

/// Makes the descriptor `file` refer to the file behind `own`. Its close-on-exec flag is kept.
pub(crate) fn exchange(own: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), Errno> {
    let closes = rustix::io::fcntl_getfd(file)?.contains(rustix::io::FdFlags::CLOEXEC);
    let flags = if closes { libc::O_CLOEXEC } else { 0 };
    // SAFETY: both descriptors are open; the second one's owner continues with it.
    let done = unsafe { libc::dup3(own.as_raw_fd(), file.as_raw_fd(), flags) };
    if done < 0 { Err(Errno::BADF) } else { Ok(()) }
}
