//! Streaming decompression of gzip, zstd and xz, with a limit on the ratio against decompression bombs.

use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

use super::OpenError;

/// Decompressed size that any file may reach.
const UNLIMITED_RATIO_BYTES: u64 = 256 << 20;
/// Maximum compression ratio beyond [`UNLIMITED_RATIO_BYTES`]. Snapshots compress to a fiftieth at best, logs
/// to a hundredth.
const MAX_RATIO: u64 = 1000;
/// Memory limit of the xz decoder in KiB.
const XZ_MEMORY_KIB: u32 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packed {
    Gzip,
    Zstd,
    Xz,
}

/// Detects the compression format.
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

/// Decompresses a file.
pub(super) fn unpack<'reader>(
    format: Packed,
    packed: Box<dyn Read + 'reader>,
) -> Result<Box<dyn Read + 'reader>, OpenError> {
    let consumed = Rc::new(Cell::new(0));
    let counted = BufReader::new(Counted { inner: packed, consumed: Rc::clone(&consumed) });
    let inner: Box<dyn Read + 'reader> = match format {
        Packed::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(counted)),
        Packed::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(counted)?;
            decoder.window_log_max(27)?;
            Box::new(decoder)
        }
        Packed::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(counted, true, XZ_MEMORY_KIB)),
    };
    Ok(Box::new(Bounded { inner, format, given: 0, consumed }))
}

/// Counts the bytes read.
struct Counted<R> {
    inner: R,
    consumed: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.consumed.set(self.consumed.get() + count as u64);
        Ok(count)
    }
}

/// Fails when the decompressed size exceeds the limit, and reports the position of damage.
struct Bounded<R> {
    inner: R,
    format: Packed,
    given: u64,
    consumed: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given > UNLIMITED_RATIO_BYTES && self.given / MAX_RATIO > self.consumed.get() {
            let why = format!("{} bytes unpack to more than {MAX_RATIO} times as many", self.consumed.get());
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        }
        match self.inner.read(buffer) {
            Ok(count) => {
                self.given += count as u64;
                Ok(count)
            }
            Err(error) => {
                let why = format!(
                    "the {:?} stream is damaged or truncated near its byte {}: {error}",
                    self.format,
                    self.consumed.get()
                );
                Err(io::Error::new(error.kind(), why.to_lowercase()))
            }
        }
    }
}
