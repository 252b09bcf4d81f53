//! Source of an image's bytes: memory, or a range of an open file that is read on demand.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

/// Bytes of an image.
#[derive(Clone, Debug)]
pub enum Input {
    /// Bytes in memory.
    Memory(Arc<[u8]>),
    /// Range of a file.
    File {
        /// File.
        file: Arc<File>,
        /// Offset of the image.
        start: u64,
        /// Length of the image in bytes.
        length: u64,
    },
}

impl Input {
    /// Opens a whole file.
    pub fn open(path: &std::path::Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(io::Error::other("it is not a file"));
        }
        Ok(Self::File { file: Arc::new(file), start: 0, length: about.len() })
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File { length, .. } => *length,
        }
    }

    /// Returns `true` for bytes in memory, which are not part of the loader's budget.
    pub fn in_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// Returns an independent reader, positioned at the beginning.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader { input: self, at: 0 }
    }
}

/// Reader of an input; several may read the same one.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    input: &'a Input,
    at: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.input.length().saturating_sub(self.at);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if count == 0 {
            return Ok(0);
        }
        let got = match self.input {
            Input::Memory(bytes) => {
                let at = self.at as usize;
                buffer[..count].copy_from_slice(&bytes[at..at + count]);
                count
            }
            Input::File { file, start, .. } => file.read_at(&mut buffer[..count], start + self.at)?,
        };
        self.at += got as u64;
        Ok(got)
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.input.length().checked_add_signed(by),
        };
        self.at = place
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a place before the beginning"))?;
        Ok(self.at)
    }
}
