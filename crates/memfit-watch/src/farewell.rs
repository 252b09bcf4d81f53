//! Shutdown of an interpreter that other threads still use.
//!
//! If a script's last action is a backward pass, an autograd thread may still hold Python objects after the
//! main thread has begun to shut the interpreter down. When such a thread then acquires the interpreter's
//! lock, every CPython before 3.14 ends it with `pthread_exit`. That unwinds its stack, and a function of
//! PyTorch that must not be unwound ends the whole process: "terminate called without an active exception",
//! in a few runs of a hundred, on real and virtual GPUs alike. Since 3.14, CPython lets such a thread sleep
//! instead (github.com/python/cpython/issues/87135); this module does the same for earlier releases.

#![allow(unsafe_code, reason = "functions of PyTorch are interposed")]

use std::{
    ffi::{CStr, c_int, c_void},
    mem,
};

/// CPython's functions that report finalization: the newer name and the older one.
const FINALIZING: [&CStr; 2] = [c"Py_IsFinalizing", c"_Py_IsFinalizing"];

/// `pthread_exit`: a thread that a finalizing interpreter would end sleeps until the process has ended.
///
/// # Safety
/// Must be called as the C library's own function.
#[unsafe(export_name = "pthread_exit")]
pub unsafe extern "C-unwind" fn pthread_exit(value: *mut c_void) -> ! {
    if is_finalizing() && !is_main_thread() {
        loop {
            // SAFETY: waits for a signal, and accesses no memory.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: the name is a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_exit".as_ptr()) };
    if next.is_null() {
        // Without the C library's own function, this thread alone cannot be ended in any other way.
        loop {
            // SAFETY: as above.
            unsafe { libc::pause() };
        }
    }
    // SAFETY: the C library's function of this name has this signature.
    let next: unsafe extern "C-unwind" fn(*mut c_void) -> ! = unsafe { mem::transmute(next) };
    // SAFETY: the caller's own argument, passed on. Nothing in this frame needs to be dropped when it is
    // unwound.
    unsafe { next(value) }
}

/// Returns `true` if an interpreter in this process is being shut down.
fn is_finalizing() -> bool {
    FINALIZING.iter().any(|name| {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        if found.is_null() {
            return false;
        }
        // SAFETY: CPython's functions of these names take nothing, return an int, and do not need the
        // interpreter's lock.
        let ask: unsafe extern "C" fn() -> c_int = unsafe { mem::transmute(found) };
        // SAFETY: as above.
        unsafe { ask() != 0 }
    })
}

/// Returns `true` on the main thread, which shuts the interpreter down and may exit.
fn is_main_thread() -> bool {
    // The C library has `gettid` since glibc 2.30 only, and the wheel loads with 2.17. SAFETY: neither call
    // has arguments or changes any state.
    unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C-unwind" fn leaves(value: *mut c_void) -> *mut c_void {
        // SAFETY: ends this thread, which holds no locks or borrows.
        unsafe { pthread_exit(value) }
    }

    type Leaves = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
    type Body = extern "C" fn(*mut c_void) -> *mut c_void;

    #[test]
    fn a_thread_of_a_process_without_an_interpreter_ends_as_ever() {
        assert!(!is_finalizing());
        let mut result = std::ptr::null_mut();
        // SAFETY: the C library calls a thread's function by the C convention and lets it be unwound, which
        // only the type does not express.
        let body = unsafe { mem::transmute::<Leaves, Body>(leaves) };
        // SAFETY: the thread is joined before `result` is dropped.
        unsafe {
            let mut thread = mem::zeroed();
            let seven = std::ptr::without_provenance_mut(7);
            assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), body, seven), 0);
            assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
        }
        assert_eq!(result.addr(), 7);
    }
}
