//! A file mapped as one value that consists of atomics only.

use std::{io, marker::PhantomData, os::fd::RawFd, ptr::NonNull};

/// A shared mapping of a `T`.
#[derive(Debug)]
pub(super) struct Mapping<T> {
    address: NonNull<T>,
    value: PhantomData<T>,
}

// SAFETY: the mapping is only ever read through `&T`, and `T` itself may be shared between threads.
unsafe impl<T: Sync> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mapping<T> {}

impl<T> Mapping<T> {
    /// Maps a file of `length` bytes for reading and writing.
    pub(super) fn writable(file: RawFd, length: u64) -> io::Result<Self> {
        Self::new(file, length, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps a file of `length` bytes for reading. Storing to an atomic in it would be a fault.
    pub(super) fn readable(file: RawFd, length: u64) -> io::Result<Self> {
        Self::new(file, length, libc::PROT_READ)
    }

    fn new(file: RawFd, length: u64, protection: libc::c_int) -> io::Result<Self> {
        if length != size_of::<T>() as u64 {
            let why = format!("the file has {length} bytes instead of {}", size_of::<T>());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), size_of::<T>(), protection, libc::MAP_SHARED, file, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address =
            NonNull::new(address.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Self { address, value: PhantomData })
    }

    pub(super) fn get(&self) -> &T {
        // SAFETY: the mapping lives as long as `self`, is page-aligned and as large as `T`; all its fields are atomics, for
        // which every bit pattern is valid and which other processes may change at any time.
        unsafe { self.address.as_ref() }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.address.as_ptr().cast(), size_of::<T>()) };
    }
}
