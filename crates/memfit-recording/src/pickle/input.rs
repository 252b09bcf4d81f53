//! Buffered stream of bytes that knows its position.

use std::io::{ErrorKind, Read};

use super::PickleErrorKind;

/// Size of the buffer once it has grown.
const BUFFER_BYTES: usize = 32 << 10;
/// Initial size of the buffer, enough for a small file.
const INITIAL_BUFFER_BYTES: usize = 8 << 10;

pub(super) struct Input<R> {
    reader: R,
    buffer: Vec<u8>,
    position: usize,
    filled: usize,
    /// Offset of the buffer in the stream.
    start: u64,
}

impl<R: Read> Input<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, buffer: vec![0; INITIAL_BUFFER_BYTES], position: 0, filled: 0, start: 0 }
    }

    /// Offset of the next byte in the stream.
    pub(super) const fn offset(&self) -> u64 {
        self.start + self.position as u64
    }

    /// Bytes that are in the buffer.
    pub(super) fn buffered(&self) -> &[u8] {
        &self.buffer[self.position..self.filled]
    }

    /// Consumes bytes of the buffer.
    pub(super) fn consume(&mut self, count: usize) {
        self.position = (self.position + count).min(self.filled);
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, PickleErrorKind> {
        if self.position == self.filled {
            self.refill(1)?;
        }
        let byte = self.buffer[self.position];
        self.position += 1;
        Ok(byte)
    }

    /// Reads the next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleErrorKind> {
        if self.filled - self.position < N {
            self.refill(N)?;
        }
        let mut array = [0; N];
        array.copy_from_slice(&self.buffer[self.position..self.position + N]);
        self.position += N;
        Ok(array)
    }

    /// Reads the next `count` bytes, which may exceed the buffer.
    pub(super) fn bytes(&mut self, count: usize) -> Result<&[u8], PickleErrorKind> {
        if self.filled - self.position < count {
            self.refill(count)?;
        }
        let bytes = &self.buffer[self.position..self.position + count];
        self.position += count;
        Ok(bytes)
    }

    /// Reads until `count` bytes are in the buffer. The buffer grows only as bytes arrive, so that a false
    /// length allocates nothing.
    #[cold]
    fn refill(&mut self, count: usize) -> Result<(), PickleErrorKind> {
        // A buffer that was filled completely should grow.
        if self.filled == self.buffer.len() && self.filled < BUFFER_BYTES {
            self.buffer.resize(2 * self.filled, 0);
        }
        self.buffer.copy_within(self.position..self.filled, 0);
        self.start += self.position as u64;
        self.filled -= self.position;
        self.position = 0;
        while self.filled < count {
            if self.filled == self.buffer.len() {
                self.buffer.resize((2 * self.buffer.len()).min(count.max(BUFFER_BYTES)), 0);
            }
            match self.reader.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(PickleErrorKind::CutOff),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Err(PickleErrorKind::CutOff);
                }
                Err(error) => return Err(PickleErrorKind::Io(error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reader that returns one byte at a time.
    struct Drip<'a>(&'a [u8]);

    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = self.0.len().min(buffer.len()).min(1);
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn parts_are_put_together_and_positions_kept() {
        let data: Vec<u8> = (0..=255).cycle().take(3 * BUFFER_BYTES).collect();
        let mut input = Input::new(&data[..]);
        assert_eq!(input.byte().unwrap(), 0);
        assert_eq!(input.bytes(2 * BUFFER_BYTES).unwrap(), &data[1..=2 * BUFFER_BYTES]);
        assert_eq!(input.offset(), 2 * BUFFER_BYTES as u64 + 1);
        assert_eq!(input.array::<2>().unwrap(), [1, 2]);

        let mut input = Input::new(Drip(&[1, 2, 3]));
        assert_eq!(input.array::<3>().unwrap(), [1, 2, 3]);
        assert!(matches!(input.byte(), Err(PickleErrorKind::CutOff)));
    }

    #[test]
    fn a_false_length_allocates_no_memory() {
        let mut input = Input::new(&[0_u8; 10][..]);
        assert!(matches!(input.bytes(1 << 40), Err(PickleErrorKind::CutOff)));
        assert!(input.buffer.len() <= 2 * BUFFER_BYTES);
    }
}
