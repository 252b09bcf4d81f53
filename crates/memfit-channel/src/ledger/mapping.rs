//! A file mapped as one value that consists only of atomics.

#![allow(unsafe_code, reason = "memory and locks are shared with other processes")]

use std::{fs::File, io, marker::PhantomData};

use memmap2::{MmapOptions, MmapRaw};

/// A shared mapping of a `T`.
#[derive(Debug)]
pub(super) struct Mapping<T> {
    map: MmapRaw,
    value: PhantomData<T>,
}

impl<T> Mapping<T> {
    /// Maps a file for reading and writing.
    pub(super) fn writable(file: &File) -> io::Result<Self> {
        Self::new(file, |options| options.map_raw(file))
    }

    /// Maps a file for reading. Storing to an atomic in it would fault.
    pub(super) fn readable(file: &File) -> io::Result<Self> {
        Self::new(file, |options| options.map_raw_read_only(file))
    }

    fn new(file: &File, map: impl FnOnce(&MmapOptions) -> io::Result<MmapRaw>) -> io::Result<Self> {
        let length = file.metadata()?.len();
        if length != size_of::<T>() as u64 {
            let why = format!("the file has {length} bytes instead of {}", size_of::<T>());
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { map: map(MmapOptions::new().len(size_of::<T>()))?, value: PhantomData })
    }

    pub(super) fn get(&self) -> &T {
        // SAFETY: the mapping lives as long as `self`, is page-aligned and as large as `T`; all its fields
        // are atomics, for which every bit pattern is valid and which other processes may change at any time.
        unsafe { &*self.map.as_ptr().cast() }
    }
}
