//! Column encoding for the page: byte planes, which compress well and need no bit loops in a browser.
//!
//! A column is one byte `width`, then byte 0 (the lowest) of every number, then byte 1 of every number, up to
//! `width` bytes. The count is not stored: the reader has to know it.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// A section of the page's data under construction: columns one after the other.
#[derive(Default)]
pub(crate) struct Columns(Vec<u8>);

impl Columns {
    /// Writes numbers.
    pub(crate) fn numbers(&mut self, values: impl IntoIterator<Item = u64>) {
        let values: Vec<u64> = values.into_iter().collect();
        let most = values.iter().copied().max().unwrap_or(0);
        let width = (64 - most.leading_zeros()).div_ceil(8);
        self.0.push(width as u8);
        for byte in 0..width {
            self.0.extend(values.iter().map(|value| (value >> (8 * byte)) as u8));
        }
    }

    /// Writes nearby numbers as differences, with the sign in the lowest bit.
    pub(crate) fn deltas(&mut self, values: impl IntoIterator<Item = u64>) {
        let mut before = 0_u64;
        self.numbers(values.into_iter().map(|value| {
            let difference = value.wrapping_sub(before).cast_signed();
            before = value;
            ((difference << 1) ^ (difference >> 63)).cast_unsigned()
        }));
    }

    /// Writes the remaining bytes of the section.
    pub(crate) fn rest(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Compresses the section.
    pub(crate) fn pack(self) -> Vec<u8> {
        // Writing to memory does not fail, and neither does finishing.
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(5));
        let _infallible = encoder.write_all(&self.0);
        encoder.finish().unwrap_or_default()
    }
}

/// Decoder as in the page, for tests.
#[cfg(test)]
pub(crate) mod reading {
    use std::io::Read as _;

    pub(crate) struct Reader(Vec<u8>, usize);

    impl Reader {
        pub(crate) fn new(packed: &[u8]) -> Self {
            let mut bytes = Vec::new();
            flate2::read::DeflateDecoder::new(packed).read_to_end(&mut bytes).unwrap();
            Self(bytes, 0)
        }

        pub(crate) fn numbers(&mut self, count: usize) -> Vec<u64> {
            let width = usize::from(self.0[self.1]);
            let start = self.1 + 1;
            self.1 = start + width * count;
            let byte =
                |place: usize, row: usize| u64::from(self.0[start + place * count + row]) << (8 * place);
            (0..count).map(|row| (0..width).map(|place| byte(place, row)).sum()).collect()
        }

        pub(crate) fn deltas(&mut self, count: usize) -> Vec<u64> {
            let mut before = 0_u64;
            let differences = self.numbers(count).into_iter();
            differences
                .map(|coded| {
                    before = before.wrapping_add((coded >> 1) ^ (coded & 1).wrapping_neg());
                    before
                })
                .collect()
        }

        pub(crate) fn rest(&self) -> &[u8] {
            &self.0[self.1..]
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn columns_go_both_ways(values: Vec<u64>, small in proptest::collection::vec(0..300_u64, 0..50), bytes: Vec<u8>) {
            let mut columns = Columns::default();
            columns.numbers(values.iter().copied());
            columns.deltas(values.iter().copied());
            columns.numbers(small.iter().copied());
            columns.rest(&bytes);
            let mut reader = reading::Reader::new(&columns.pack());
            prop_assert_eq!(reader.numbers(values.len()), values.clone());
            prop_assert_eq!(reader.deltas(values.len()), values);
            prop_assert_eq!(reader.numbers(small.len()), small);
            prop_assert_eq!(reader.rest(), &bytes[..]);
        }
    }
}
