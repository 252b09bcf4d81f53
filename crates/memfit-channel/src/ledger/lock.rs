//! The ledger's lock, between processes and between the threads of one.

#![allow(unsafe_code, reason = "memory and locks are shared with other processes")]

use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A POSIX record lock on a dedicated file, behind a mutex.
///
/// Such a lock belongs to the process, not to the open file: the kernel releases it when the process dies for
/// any reason, and a forked child does not hold it, so neither a kill nor a fork can leave the ledger locked.
/// The price is that it does not distinguish threads (hence the mutex), and that closing *any* descriptor of
/// the file in the process releases it. So the file is not the ledger itself, which readers in the same
/// process may open and close freely.
#[derive(Debug)]
pub(super) struct LedgerLock {
    file: File,
    threads: Mutex<()>,
}

impl LedgerLock {
    pub(super) fn new(file: File) -> Self {
        Self { file, threads: Mutex::new(()) }
    }

    /// Acquires the lock.
    pub(super) fn hold(&self) -> Held<'_> {
        let thread = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(libc::F_WRLCK as libc::c_short);
        Held { lock: self, _thread: thread }
    }

    /// Sets or releases the record lock. It fails only if kernel memory is exhausted, or on file systems
    /// without locks. The mutex alone then remains, which is correct for a single process.
    fn set(&self, kind: libc::c_short) {
        // SAFETY: an all-zero `flock` is a valid value of this plain C struct.
        let mut request: libc::flock = unsafe { std::mem::zeroed() };
        request.l_type = kind;
        request.l_whence = libc::SEEK_SET as libc::c_short;
        request.l_len = 1;
        loop {
            // SAFETY: the descriptor is open for as long as `self`, and `request` is a valid `flock`.
            let status = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLKW, &raw const request) };
            if status == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return;
            }
        }
    }
}

/// Guard that holds the lock.
pub(super) struct Held<'a> {
    lock: &'a LedgerLock,
    _thread: MutexGuard<'a, ()>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.set(libc::F_UNLCK as libc::c_short);
    }
}
