//! Column encoding of the file format: a count, then variable-length integers of seven-bit groups. Growing
//! numbers are stored as differences.

use std::io::{self, Read, Write};

use crate::RecordingError;

/// Error of a file that is not a valid recording.
pub(crate) const fn damaged(why: &'static str) -> RecordingError {
    RecordingError::Damaged { why, at: None }
}

/// Largest number of rows in a table.
const MAX_ROWS: u64 = 1 << 30;

/// Writer of columns.
pub(crate) struct ColumnWriter<W>(pub(crate) W);

impl<W: Write> ColumnWriter<W> {
    /// Writes one number.
    pub(crate) fn number(&mut self, mut value: u64) -> io::Result<()> {
        let mut bytes = [0; 10];
        let mut length = 0;
        loop {
            let group = (value & 0x7f) as u8;
            value >>= 7;
            bytes[length] = if value == 0 { group } else { group | 0x80 };
            length += 1;
            if value == 0 {
                return self.0.write_all(&bytes[..length]);
            }
        }
    }

    /// Writes a byte string with its length.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.number(bytes.len() as u64)?;
        self.0.write_all(bytes)
    }

    /// Writes a column without its length, since all columns of a table have the same.
    pub(crate) fn column(&mut self, values: impl Iterator<Item = u64>) -> io::Result<()> {
        values.into_iter().try_for_each(|value| self.number(value))
    }

    /// Writes a column of nearby numbers as differences.
    pub(crate) fn deltas(&mut self, values: impl Iterator<Item = u64>) -> io::Result<()> {
        let mut before = 0_u64;
        values.into_iter().try_for_each(|value| {
            let difference = value.wrapping_sub(before).cast_signed();
            before = value;
            // The sign goes into the lowest bit, so that small differences of either sign stay short.
            self.number(((difference << 1) ^ (difference >> 63)).cast_unsigned())
        })
    }
}

/// Reads columns, within a limit.
pub(crate) struct ColumnReader<R> {
    inner: R,
    remaining: u64,
    limit: u64,
}

impl<R: Read> ColumnReader<R> {
    pub(crate) fn new(inner: R, limit: u64) -> Self {
        Self { inner, remaining: limit, limit }
    }

    fn exact(&mut self, buffer: &mut [u8]) -> Result<(), RecordingError> {
        let length = buffer.len() as u64;
        let remaining =
            self.remaining.checked_sub(length).ok_or(RecordingError::TooLarge { limit: self.limit })?;
        self.inner.read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => damaged("it ends too early"),
            // An error without an operating system code comes from the decompressor.
            _ if error.raw_os_error().is_none() => damaged("its compression is broken"),
            _ => RecordingError::Io(error),
        })?;
        self.remaining = remaining;
        Ok(())
    }

    /// Number of bytes read so far.
    pub(crate) const fn position(&self) -> u64 {
        self.limit - self.remaining
    }

    /// Reads one number.
    pub(crate) fn number(&mut self) -> Result<u64, RecordingError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let mut byte = [0];
            self.exact(&mut byte)?;
            let group = u64::from(byte[0] & 0x7f);
            if shift == 63 && group > 1 {
                break;
            }
            value |= group << shift;
            if byte[0] & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged("a number is too large"))
    }

    /// Number of bytes that may still be read.
    pub(crate) const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Reads a number that fits into 32 bits.
    pub(crate) fn number_u32(&mut self) -> Result<u32, RecordingError> {
        u32::try_from(self.number()?).map_err(|_| damaged("a number is too large"))
    }

    /// Reads a row count. Each row takes at least one byte, so the count is limited by the bytes that remain.
    pub(crate) fn count(&mut self) -> Result<usize, RecordingError> {
        let count = self.number()?;
        if count > MAX_ROWS || count > self.remaining {
            return Err(damaged("a table has too many rows"));
        }
        Ok(count as usize)
    }

    /// Reads a byte string with its length.
    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, RecordingError> {
        let count = self.count()?;
        let mut bytes = Vec::new();
        // Read in parts, so that a false length allocates no more memory than the file can fill.
        let mut part = [0; 4096];
        while bytes.len() < count {
            let wanted = (count - bytes.len()).min(part.len());
            self.exact(&mut part[..wanted])?;
            bytes.extend_from_slice(&part[..wanted]);
        }
        Ok(bytes)
    }

    /// Reads a column of `count` numbers.
    pub(crate) fn column(&mut self, count: usize) -> Result<Vec<u64>, RecordingError> {
        (0..count).map(|_| self.number()).collect()
    }

    /// Reads a column that was written as differences.
    pub(crate) fn deltas(&mut self, count: usize) -> Result<Vec<u64>, RecordingError> {
        let mut before = 0_u64;
        (0..count)
            .map(|_| {
                let zigzag = self.number()?;
                let difference = (zigzag >> 1) ^ (zigzag & 1).wrapping_neg();
                before = before.wrapping_add(difference);
                Ok(before)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn columns_go_both_ways(values: Vec<u64>, text: Vec<u8>) {
            let mut writer = ColumnWriter(Vec::new());
            writer.column(values.iter().copied()).unwrap();
            writer.deltas(values.iter().copied()).unwrap();
            writer.bytes(&text).unwrap();
            let mut reader = ColumnReader::new(&writer.0[..], u64::MAX);
            prop_assert_eq!(reader.column(values.len()).unwrap(), values.clone());
            prop_assert_eq!(reader.deltas(values.len()).unwrap(), values);
            prop_assert_eq!(reader.bytes().unwrap(), text);
        }

        #[test]
        fn any_bytes_can_be_read(bytes: Vec<u8>) {
            let mut reader = ColumnReader::new(&bytes[..], 1 << 20);
            while reader.number().is_ok() {}
            let _ = ColumnReader::new(&bytes[..], 1 << 20).bytes();
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_damage() {
        let bytes = [0xff; 10];
        let error = ColumnReader::new(&bytes[..], 100).number().unwrap_err();
        assert!(matches!(error, RecordingError::Damaged { .. }), "{error}");
    }

    #[test]
    fn the_limit_holds() {
        let error = ColumnReader::new(&[0; 100][..], 10).column(100).unwrap_err();
        assert!(matches!(error, RecordingError::TooLarge { limit: 10 }), "{error}");
    }
}
