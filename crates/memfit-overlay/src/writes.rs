//! Interposed functions of the C library that write to open files, and the probe's reports of checkpoints.

#![allow(unsafe_code, reason = "functions of the C library are interposed")]
#![allow(clippy::missing_safety_doc, reason = "each is called like the C library's function")]
#![allow(missing_docs, reason = "each has the name of a C library function")]

use std::{
    ffi::{c_int, c_long, c_uint, c_void},
    os::fd::BorrowedFd,
    panic::{self, AssertUnwindSafe},
    slice,
};

use libc::{iovec, size_t, ssize_t};
use rustix::{
    fs::{self, SeekFrom},
    io::Errno,
};

use crate::{checkpoints, decide, layer::Layer, next::set_errno, sparse};

/// Minimum bytes that can begin a checkpoint.
const MIN_BEGINNING: usize = 32;

/// Carries out a call in the overlay; `None` if the overlay does not concern it.
fn call_layer(work: impl FnOnce(&'static Layer) -> Option<Result<usize, Errno>>) -> Option<ssize_t> {
    let result = panic::catch_unwind(AssertUnwindSafe(|| work(Layer::get()?))).unwrap_or(None)?;
    Some(match result {
        Ok(count) => count as ssize_t,
        Err(error) => {
            set_errno(error);
            -1
        }
    })
}

/// Bytes of a caller's buffer.
///
/// # Safety
/// The buffer must hold `count` bytes.
unsafe fn bytes<'a>(buffer: *const c_void, count: size_t) -> &'a [u8] {
    if buffer.is_null() {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { slice::from_raw_parts(buffer.cast(), count) }
}

/// Borrows a descriptor; `None` if it is negative.
fn descriptor<'a>(file: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: it is used within one call; a closed one fails as it would have.
    (file >= 0).then(|| unsafe { BorrowedFd::borrow_raw(file) })
}

/// Writes sparsely if the overlay does so for this file; `None` if the kernel should write.
fn write_here(file: c_int, parts: &[&[u8]], at: Option<u64>) -> Option<ssize_t> {
    call_layer(|layer| {
        let file = descriptor(file)?;
        if at.unwrap_or(0) == 0 && parts.first().is_some_and(|part| checkpoints::begins_checkpoint(part)) {
            layer.divert(file);
        }
        if !layer.leaves_out_zeros(file, parts.iter().map(|part| part.len()).sum()) {
            return None;
        }
        let mut done = 0;
        for part in parts {
            let written = match at {
                Some(at) => sparse::write_elsewhere(file, part, at + done as u64),
                None => sparse::write(file, part),
            };
            match written {
                Ok(written) => done += written,
                Err(error) if done == 0 => return Some(Err(error)),
                Err(_) => break,
            }
        }
        Some(Ok(done))
    })
}

/// Next part of a copy from an overlay file.
enum NextPart {
    /// Data: this number of bytes is to be requested from the kernel.
    Data(usize),
    /// A hole of this number of bytes, which the target has now as well.
    Hole(usize),
}

/// Skips a hole at the source's offset by extending the target by a hole of the same length.
fn copy_hole(from: c_int, to: c_int, at: Option<u64>, count: usize) -> NextPart {
    let hole = || -> Option<NextPart> {
        let layer = Layer::get().filter(|layer| layer.is_live())?;
        let (from, to) = (descriptor(from)?, descriptor(to)?);
        if !layer.leaves_out_zeros(from, usize::MAX) {
            return None;
        }
        layer.divert(to);
        if !layer.leaves_out_zeros(to, usize::MAX) {
            return None;
        }
        let position = fs::seek(from, SeekFrom::Current(0)).ok()?;
        let start = at.unwrap_or(position);
        let end = fs::fstat(from).ok()?.st_size as u64;
        if start >= end {
            return None;
        }
        let data = fs::seek(from, SeekFrom::Data(start)).unwrap_or(end);
        let hole = fs::seek(from, SeekFrom::Hole(start)).unwrap_or(end);
        fs::seek(from, SeekFrom::Start(position)).ok()?;
        if data == start {
            return Some(NextPart::Data(count.min((hole - start) as usize)));
        }
        let skipped = count.min((data - start) as usize);
        let target = fs::seek(to, SeekFrom::Current(0)).ok()?;
        let reached = target + skipped as u64;
        if (fs::fstat(to).ok()?.st_size as u64) > target {
            return None;
        }
        fs::ftruncate(to, reached).ok()?;
        fs::seek(to, SeekFrom::Start(reached)).ok()?;
        if at.is_none() {
            fs::seek(from, SeekFrom::Start(start + skipped as u64)).ok()?;
        }
        Some(NextPart::Hole(skipped))
    };
    panic::catch_unwind(AssertUnwindSafe(hole)).unwrap_or(None).unwrap_or(NextPart::Data(count))
}

/// Reads an offset that the caller keeps.
///
/// # Safety
/// The pointer must be null or valid.
unsafe fn offset(at: *mut i64) -> Option<u64> {
    // SAFETY: guaranteed by the caller.
    (!at.is_null()).then(|| unsafe { *at } as u64)
}

fn send_file(to: c_int, from: c_int, at: *mut i64, count: size_t) -> ssize_t {
    // SAFETY: the caller's own argument.
    match copy_hole(from, to, unsafe { offset(at) }, count) {
        // SAFETY: the caller's own arguments, passed on to the kernel.
        NextPart::Data(count) => unsafe { libc::syscall(libc::SYS_sendfile, to, from, at, count) as ssize_t },
        NextPart::Hole(skipped) => {
            if !at.is_null() {
                // SAFETY: the caller's own argument, as above.
                unsafe { *at += skipped as i64 };
            }
            skipped as ssize_t
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    if count >= MIN_BEGINNING
        // SAFETY: the caller's own buffer.
        && let Some(result) = write_here(file, &[unsafe { bytes(buffer, count) }], None)
    {
        return result;
    }
    // SAFETY: the caller's own arguments, passed on to the kernel.
    unsafe { libc::syscall(libc::SYS_write, file, buffer, count) as ssize_t }
}

fn write_at(file: c_int, buffer: *const c_void, count: size_t, at: i64) -> ssize_t {
    if count >= MIN_BEGINNING
        && at >= 0
        // SAFETY: the caller's own buffer.
        && let Some(result) = write_here(file, &[unsafe { bytes(buffer, count) }], Some(at as u64))
    {
        return result;
    }
    // SAFETY: the caller's own arguments, passed on to the kernel.
    unsafe { libc::syscall(libc::SYS_pwrite64, file, buffer, count, at) as ssize_t }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(file: c_int, buffer: *const c_void, count: size_t, at: i64) -> ssize_t {
    write_at(file, buffer, count, at)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(file: c_int, buffer: *const c_void, count: size_t, at: i64) -> ssize_t {
    write_at(file, buffer, count, at)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(file: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    if !parts.is_null() && (1..=libc::UIO_MAXIOV).contains(&count) {
        // SAFETY: the caller's own array.
        let all = unsafe { slice::from_raw_parts(parts, count as usize) };
        let total: usize = all.iter().map(|part| part.iov_len).sum();
        if total >= MIN_BEGINNING {
            // SAFETY: the caller's own buffers.
            let parts: Vec<&[u8]> =
                all.iter().map(|part| unsafe { bytes(part.iov_base, part.iov_len) }).collect();
            if let Some(result) = write_here(file, &parts, None) {
                return result;
            }
        }
    }
    // SAFETY: the caller's own arguments, passed on to the kernel.
    unsafe { libc::syscall(libc::SYS_writev, file, parts, count) as ssize_t }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(to: c_int, from: c_int, at: *mut i64, count: size_t) -> ssize_t {
    send_file(to, from, at, count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(to: c_int, from: c_int, at: *mut i64, count: size_t) -> ssize_t {
    send_file(to, from, at, count)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    let kernel = |count: size_t| -> c_long {
        // SAFETY: the caller's own arguments, passed on to the kernel.
        unsafe { libc::syscall(libc::SYS_copy_file_range, from, from_at, to, to_at, count, flags) }
    };
    if !to_at.is_null() {
        return kernel(count) as ssize_t;
    }
    // SAFETY: the caller's own argument.
    match copy_hole(from, to, unsafe { offset(from_at) }, count) {
        NextPart::Data(count) => kernel(count) as ssize_t,
        NextPart::Hole(skipped) => {
            if !from_at.is_null() {
                // SAFETY: the caller's own argument, as above.
                unsafe { *from_at += skipped as i64 };
            }
            skipped as ssize_t
        }
    }
}

// Calls from the probe

/// Records that a checkpoint writer begins on this thread, or ends if `begins` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_overlay_save(begins: c_int) {
    decide::count_writer(begins != 0);
}

/// Records that a checkpoint is about to be written to an open file.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_overlay_divert(file: c_int) {
    if let (Some(layer), Some(file)) = (Layer::get(), descriptor(file)) {
        layer.divert(file);
    }
}

/// Records that this process puts a checkpoint together in memory.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_overlay_expect() {
    checkpoints::expect_checkpoint();
}

/// Records that this process belongs to another run from here on.
#[unsafe(no_mangle)]
pub extern "C" fn memfit_overlay_become() {
    Layer::become_another();
}
