//! gzip, zstd and xz, unpacked on the fly; a file that unpacks to far more than it is ends there.

use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

use super::OpenError;

/// What a file may unpack to, whatever its size.
const FREE: u64 = 256 << 20;
/// Beyond that, how many times its size. Snapshots shrink to a fiftieth at best, logs to a hundredth.
const MOST_TIMES: u64 = 1000;
/// How much memory an xz stream may ask for, in KiB.
const XZ_MEMORY: u32 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packed {
    Gzip,
    Zstd,
    Xz,
}

/// How a file is compressed, if it is.
pub(super) fn format(start: &[u8]) -> Option<Packed> {
    if start.starts_with(&[0x1f, 0x8b]) {
        Some(Packed::Gzip)
    } else if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Some(Packed::Zstd)
    } else if start.starts_with(&[0xfd, b'7', b'z', b'X', b'Z', 0]) {
        Some(Packed::Xz)
    } else {
        None
    }
}

/// What is in a compressed file.
pub(super) fn unpack<'reader>(
    format: Packed,
    packed: Box<dyn Read + 'reader>,
) -> Result<Box<dyn Read + 'reader>, OpenError> {
    let taken = Rc::new(Cell::new(0));
    let counted = BufReader::new(Counted { inner: packed, taken: Rc::clone(&taken) });
    let inner: Box<dyn Read + 'reader> = match format {
        Packed::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(counted)),
        Packed::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(counted)?;
            decoder.window_log_max(27)?;
            Box::new(decoder)
        }
        Packed::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(counted, true, XZ_MEMORY)),
    };
    Ok(Box::new(Bounded { inner, format, given: 0, taken }))
}

/// Counts what is read.
struct Counted<R> {
    inner: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.taken.set(self.taken.get() + count as u64);
        Ok(count)
    }
}

/// Ends where a file has unpacked to far more than it is, and says where it is damaged.
struct Bounded<R> {
    inner: R,
    format: Packed,
    given: u64,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given > FREE && self.given / MOST_TIMES > self.taken.get() {
            let why = format!("{} bytes unpack to more than {MOST_TIMES} times as many", self.taken.get());
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        }
        match self.inner.read(buffer) {
            Ok(count) => {
                self.given += count as u64;
                Ok(count)
            }
            Err(error) => {
                let why = format!(
                    "the {:?} stream is damaged or cut off near its byte {}: {error}",
                    self.format,
                    self.taken.get()
                );
                Err(io::Error::new(error.kind(), why.to_lowercase()))
            }
        }
    }
}
