//! Columns of numbers in four bytes each, with a side table for the few that need more.

/// Flag bit: the other bits are an index into the side table.
const WIDE: u32 = 1 << 31;

/// Numbers that are mostly below 2³¹ times a power of two.
#[derive(Clone, Debug)]
pub(super) struct Packed<const SHIFT: u32> {
    small: Vec<u32>,
    wide: Vec<u64>,
}

impl<const SHIFT: u32> Default for Packed<SHIFT> {
    fn default() -> Self {
        Self { small: Vec::new(), wide: Vec::new() }
    }
}

impl<const SHIFT: u32> PartialEq for Packed<SHIFT> {
    fn eq(&self, other: &Self) -> bool {
        // The side table's order depends on the order in which numbers were set.
        self.len() == other.len() && (0..self.len()).all(|row| self.get(row) == other.get(row))
    }
}

impl<const SHIFT: u32> Eq for Packed<SHIFT> {}

impl<const SHIFT: u32> Packed<SHIFT> {
    pub(super) const fn len(&self) -> usize {
        self.small.len()
    }

    pub(super) fn push(&mut self, value: u64) {
        let code = Self::narrow(value).unwrap_or_else(|| self.widen(value));
        self.small.push(code);
    }

    pub(super) fn set(&mut self, row: usize, value: u64) {
        let Some(&before) = self.small.get(row) else { return };
        let code = match Self::narrow(value) {
            Some(code) => code,
            None if before & WIDE != 0 => {
                if let Some(place) = self.wide.get_mut((before & !WIDE) as usize) {
                    *place = value;
                }
                before
            }
            None => self.widen(value),
        };
        self.small[row] = code;
    }

    /// Number in a row; zero if there is no such row.
    pub(super) fn get(&self, row: usize) -> u64 {
        match self.small.get(row) {
            Some(code) if code & WIDE != 0 => self.wide.get((code & !WIDE) as usize).copied().unwrap_or(0),
            Some(code) => u64::from(*code) << SHIFT,
            None => 0,
        }
    }

    /// Code of a value that fits into a row; `None` if it belongs into the side table.
    fn narrow(value: u64) -> Option<u32> {
        let narrow = u32::try_from(value >> SHIFT).ok().filter(|narrow| narrow & WIDE == 0)?;
        (u64::from(narrow) << SHIFT == value).then_some(narrow)
    }

    /// Adds a value to the side table, and returns the code that refers to it.
    fn widen(&mut self, value: u64) -> u32 {
        self.wide.push(value);
        (self.wide.len() as u32 - 1) | WIDE
    }

    pub(super) fn shrink(&mut self) {
        self.small.shrink_to_fit();
        self.wide.shrink_to_fit();
    }

    pub(super) const fn memory(&self) -> usize {
        self.small.capacity() * size_of::<u32>() + self.wide.capacity() * size_of::<u64>()
    }
}

/// Column of addresses, which lie near each other and on multiples of 512 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    /// Subtracted from each address: the first address, less half of the range of four bytes.
    base: u64,
    offsets: Packed<9>,
}

impl Addresses {
    pub(super) fn push(&mut self, address: u64) {
        if self.offsets.len() == 0 {
            self.base = address.saturating_sub(1 << 39) & !511;
        }
        self.offsets.push(address.wrapping_sub(self.base));
    }

    pub(super) fn get(&self, row: usize) -> u64 {
        if row < self.offsets.len() { self.base.wrapping_add(self.offsets.get(row)) } else { 0 }
    }

    pub(super) fn shrink(&mut self) {
        self.offsets.shrink();
    }

    pub(super) const fn memory(&self) -> usize {
        self.offsets.memory()
    }
}

/// Number of rows that share a base.
const ROWS_PER_BASE: usize = 4096;

/// Column of times in microseconds, which grow slowly; 0 stands for unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    /// Base time of each group of rows.
    bases: Vec<u64>,
    /// Time since the base, plus one. Shorter than the table if the last times are unknown.
    since: Packed<0>,
}

impl PartialEq for Times {
    fn eq(&self, other: &Self) -> bool {
        let rows = self.since.len().max(other.since.len());
        (0..rows).all(|row| self.get(row) == other.get(row))
    }
}

impl Eq for Times {}

impl Times {
    /// Sets the time of a row after the last one that has a time.
    pub(super) fn set(&mut self, row: usize, time: u64) {
        if time == 0 {
            return;
        }
        while self.since.len() < row {
            self.since.push(0);
        }
        while self.bases.len() <= row / ROWS_PER_BASE {
            self.bases.push(time);
        }
        self.since.push(time.wrapping_sub(self.bases[row / ROWS_PER_BASE]).wrapping_add(1));
    }

    pub(super) fn get(&self, row: usize) -> u64 {
        match self.since.get(row) {
            0 => 0,
            since => {
                let base = self.bases.get(row / ROWS_PER_BASE).copied().unwrap_or(0);
                base.wrapping_add(since.wrapping_sub(1))
            }
        }
    }

    pub(super) fn shrink(&mut self) {
        self.bases.shrink_to_fit();
        self.since.shrink();
    }

    pub(super) const fn memory(&self) -> usize {
        self.bases.capacity() * size_of::<u64>() + self.since.memory()
    }
}

/// Column that is mostly the default: it is stored up to the last other value.
#[derive(Clone, Debug, Default)]
pub(super) struct Sparse<T> {
    rows: Vec<T>,
}

impl<T: Copy + Default + PartialEq> PartialEq for Sparse<T> {
    fn eq(&self, other: &Self) -> bool {
        let rows = self.rows.len().max(other.rows.len());
        (0..rows).all(|row| self.get(row) == other.get(row))
    }
}

impl<T: Copy + Default + PartialEq> Eq for Sparse<T> {}

impl<T: Copy + Default + PartialEq> Sparse<T> {
    pub(super) fn set(&mut self, row: usize, value: T) {
        if let Some(place) = self.rows.get_mut(row) {
            *place = value;
        } else if value != T::default() {
            self.rows.resize(row, T::default());
            self.rows.push(value);
        }
    }

    pub(super) fn get(&self, row: usize) -> T {
        self.rows.get(row).copied().unwrap_or_default()
    }

    pub(super) fn shrink(&mut self) {
        self.rows.shrink_to_fit();
    }

    pub(super) const fn memory(&self) -> usize {
        self.rows.capacity() * size_of::<T>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packed_values_are_those_pushed_and_set(values: Vec<u64>, changes: Vec<(prop::sample::Index, u64)>) {
            let mut expected = values.clone();
            let (mut fine, mut coarse, mut addresses) = (Packed::<0>::default(), Packed::<9>::default(), Addresses::default());
            for value in &values {
                fine.push(*value);
                coarse.push(*value);
                addresses.push(*value);
            }
            prop_assert!((0..values.len()).all(|row| addresses.get(row) == values[row]));
            for (index, value) in changes {
                if !expected.is_empty() {
                    let row = index.index(expected.len());
                    expected[row] = value;
                    fine.set(row, value);
                    coarse.set(row, value);
                }
            }
            prop_assert!((0..expected.len()).all(|row| (fine.get(row), coarse.get(row)) == (expected[row], expected[row])));
        }

        #[test]
        fn times_and_sparse_columns_return_the_stored_values(values: Vec<u64>) {
            let (mut times, mut sparse) = (Times::default(), Sparse::default());
            for (row, value) in values.iter().enumerate() {
                times.set(row, *value);
                sparse.set(row, *value);
            }
            prop_assert!((0..values.len()).all(|row| (times.get(row), sparse.get(row)) == (values[row], values[row])));
        }
    }

    #[test]
    fn usual_numbers_take_four_bytes() {
        let (mut sizes, mut addresses, mut times) =
            (Packed::<9>::default(), Addresses::default(), Times::default());
        for row in 0..10_000 {
            sizes.push((80 << 30) - row * 512);
            addresses.push(0x7f12_3400_0000 + row * 2_097_152);
            times.set(row as usize, 1_757_253_255_215_904 + row * 100_000);
        }
        sizes.shrink();
        addresses.shrink();
        times.shrink();
        assert_eq!((sizes.memory(), addresses.memory()), (40_000, 40_000));
        assert!(times.memory() < 40_100, "{}", times.memory());
    }
}
