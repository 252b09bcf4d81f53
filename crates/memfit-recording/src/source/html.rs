//! HTML pages of PyTorch's memory_viz, which contain the snapshot as base64.

use std::io::{self, BufRead, Read};

use super::{OpenError, Source};
use crate::snapshot::Problem;
use crate::{PickleLimits, Snapshot};

/// Maximum number of bytes before the snapshot.
const MAX_PREAMBLE_BYTES: u64 = 16 << 20;
const KEY: &[u8] = b"\"base64\"";

/// Reads the first snapshot in a page.
pub(super) fn read(
    mut page: impl BufRead,
    limits: PickleLimits,
) -> Result<(Source, Vec<Problem>), OpenError> {
    let broken = |why: &str| OpenError::Broken { format: "HTML page", why: why.to_owned() };
    let mut passed = 0;
    // Python's json module writes a space after a colon, other writers do not.
    if !skip_past(&mut page, KEY, &mut passed)? || !skip_past(&mut page, b"\"", &mut passed)? {
        return Err(broken("no snapshot is in it: there is no `\"base64\"` in front of data"));
    }
    let (snapshot, problems) = Snapshot::read(Base64::new(page, passed), limits)?;
    Ok((Source::Snapshot(Box::new(snapshot)), problems))
}

/// Skips bytes up to the end of `wanted`. Returns `false` if it was not found.
fn skip_past(page: &mut impl BufRead, wanted: &[u8], passed: &mut u64) -> io::Result<bool> {
    let mut matched = 0;
    loop {
        let available = page.fill_buf()?;
        if available.is_empty() || *passed > MAX_PREAMBLE_BYTES {
            return Ok(false);
        }
        let mut used = 0;
        for byte in available {
            used += 1;
            matched = if *byte == wanted[matched] { matched + 1 } else { usize::from(*byte == wanted[0]) };
            if matched == wanted.len() {
                page.consume(used);
                *passed += used as u64;
                return Ok(true);
            }
        }
        page.consume(used);
        *passed += used as u64;
    }
}

/// Decoder of a base64 text that ends at a quote.
struct Base64<R> {
    inner: R,
    /// Offset of the next character in the page.
    at: u64,
    ended: bool,
    bits: u32,
    held: u32,
}

impl<R: BufRead> Base64<R> {
    const fn new(inner: R, at: u64) -> Self {
        Self { inner, at, ended: false, bits: 0, held: 0 }
    }
}

impl<R: BufRead> Read for Base64<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut given = 0;
        while given < buffer.len() && !self.ended {
            let available = self.inner.fill_buf()?;
            if available.is_empty() {
                self.ended = true;
            }
            let mut used = 0;
            for character in available {
                if given == buffer.len() {
                    break;
                }
                used += 1;
                let value = match character {
                    b'A'..=b'Z' => character - b'A',
                    b'a'..=b'z' => character - b'a' + 26,
                    b'0'..=b'9' => character - b'0' + 52,
                    b'+' | b'-' => 62,
                    b'/' | b'_' => 63,
                    b'\\' | b'\n' | b'\r' => continue,
                    b'=' | b'"' | b'\'' => {
                        self.ended = true;
                        break;
                    }
                    _ => {
                        let why = format!(
                            "at byte {} of the page: {character:#04x} is not base64",
                            self.at + used as u64 - 1
                        );
                        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                    }
                };
                self.bits = (self.bits << 6) | u32::from(value);
                self.held += 6;
                if self.held >= 8 {
                    self.held -= 8;
                    buffer[given] = (self.bits >> self.held) as u8;
                    given += 1;
                }
            }
            self.inner.consume(used);
            self.at += used as u64;
        }
        Ok(given)
    }
}
