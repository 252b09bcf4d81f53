//! Columns of numbers for the page: byte by byte, so that they compress, and read in a browser without a loop
//! over bits.
//!
//! A column is a byte that says how many bytes its greatest number takes, then the lowest bytes of all its
//! numbers, then the next ones.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// A section under construction.
#[derive(Default)]
pub(crate) struct Columns(Vec<u8>);

impl Columns {
    /// Numbers as they are.
    pub(crate) fn plain(&mut self, values: impl IntoIterator<Item = u64>) {
        let values: Vec<u64> = values.into_iter().collect();
        let most = values.iter().copied().max().unwrap_or(0);
        let width = (64 - most.leading_zeros()).div_ceil(8);
        self.0.push(width as u8);
        for byte in 0..width {
            self.0.extend(values.iter().map(|value| (value >> (8 * byte)) as u8));
        }
    }

    /// Numbers that lie near each other, as differences with the sign in the lowest bit.
    pub(crate) fn near(&mut self, values: impl IntoIterator<Item = u64>) {
        let mut before = 0_u64;
        self.plain(values.into_iter().map(|value| {
            let difference = value.wrapping_sub(before).cast_signed();
            before = value;
            ((difference << 1) ^ (difference >> 63)).cast_unsigned()
        }));
    }

    /// Bytes as they are, until the end.
    pub(crate) fn rest(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The section, compressed.
    pub(crate) fn pack(self) -> Vec<u8> {
        // Writing to memory does not fail, and neither does finishing.
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(5));
        let _infallible = encoder.write_all(&self.0);
        encoder.finish().unwrap_or_default()
    }
}

/// What the page does: for tests of what it is given.
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

        pub(crate) fn plain(&mut self, count: usize) -> Vec<u64> {
            let width = usize::from(self.0[self.1]);
            let start = self.1 + 1;
            self.1 = start + width * count;
            let byte =
                |place: usize, row: usize| u64::from(self.0[start + place * count + row]) << (8 * place);
            (0..count).map(|row| (0..width).map(|place| byte(place, row)).sum()).collect()
        }

        pub(crate) fn near(&mut self, count: usize) -> Vec<u64> {
            let mut before = 0_u64;
            let differences = self.plain(count).into_iter();
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
            columns.plain(values.iter().copied());
            columns.near(values.iter().copied());
            columns.plain(small.iter().copied());
            columns.rest(&bytes);
            let mut reader = reading::Reader::new(&columns.pack());
            prop_assert_eq!(reader.plain(values.len()), values.clone());
            prop_assert_eq!(reader.near(values.len()), values);
            prop_assert_eq!(reader.plain(small.len()), small);
            prop_assert_eq!(reader.rest(), &bytes[..]);
        }
    }
}
