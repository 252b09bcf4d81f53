//! Least and greatest integer of a large upload, whose contents are not kept: labels and masks are checked
//! against the number of classes.

/// Bound on labels, indices and token ids; data with larger values is treated as another type.
const MAX_PLAUSIBLE: u64 = 1 << 40;
/// The same for 32 bits, where floating-point numbers look like large integers.
const MAX_PLAUSIBLE_I32: u32 = 1 << 24;
/// The same for one byte, where any image would pass.
const MAX_PLAUSIBLE_U8: u8 = 64;

/// Extremes of a range of bytes, for each type of integer that it could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extremes {
    /// Number of bytes that they cover; of a part, that of the whole, in which they occur.
    pub bytes: u64,
    u8: Option<(u8, u8)>,
    i32: Option<(i32, i32)>,
    i64: Option<(i64, i64)>,
}

impl Extremes {
    /// Maximum upload that is scanned, in bytes.
    pub const MAX_BYTES: usize = 32 << 20;

    /// Computes the extremes of bytes that look like integers of any type.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > Self::MAX_BYTES {
            return None;
        }
        let (words, rest) = bytes.as_chunks::<4>();
        let words = words.iter().map(|word| i32::from_le_bytes(*word));
        let (longs, odd) = bytes.as_chunks::<8>();
        let longs = longs.iter().map(|long| i64::from_le_bytes(*long));
        let found = Self {
            bytes: bytes.len() as u64,
            u8: range(bytes.iter().copied(), |value| value < MAX_PLAUSIBLE_U8),
            i32: range(words, |value| value.unsigned_abs() < MAX_PLAUSIBLE_I32).filter(|_| rest.is_empty()),
            i64: range(longs, |value| value.unsigned_abs() < MAX_PLAUSIBLE).filter(|_| odd.is_empty()),
        };
        (found.u8.is_some() || found.i32.is_some() || found.i64.is_some()).then_some(found)
    }

    /// Creates those of integers of `size` bytes; `None` if the integers cannot have these values.
    pub(crate) fn of_integers(size: usize, (least, greatest): (i64, i64), bytes: u64) -> Option<Self> {
        let mut made = Self { bytes, u8: None, i32: None, i64: None };
        match size {
            1 => made.u8 = Some((least.try_into().ok()?, greatest.try_into().ok()?)),
            4 => made.i32 = Some((least.try_into().ok()?, greatest.try_into().ok()?)),
            8 => made.i64 = Some((least, greatest)),
            _ => return None,
        }
        Some(made)
    }

    /// Least and greatest value as integers of `size` bytes.
    pub fn as_integers_of(&self, size: usize) -> Option<(i64, i64)> {
        match size {
            1 => self.u8.map(|(least, greatest)| (least.into(), greatest.into())),
            4 => self.i32.map(|(least, greatest)| (least.into(), greatest.into())),
            8 => self.i64,
            _ => None,
        }
    }
}

/// Least and greatest value; `None` at the first implausible value.
fn range<T: Copy + Ord>(
    mut values: impl Iterator<Item = T>,
    is_plausible: impl Fn(T) -> bool,
) -> Option<(T, T)> {
    let first = values.next().filter(|value| is_plausible(*value))?;
    values.try_fold((first, first), |(least, greatest), value| {
        is_plausible(value).then(|| (least.min(value), greatest.max(value)))
    })
}

#[cfg(test)]
mod tests {
    use super::Extremes;

    #[test]
    fn bytes_are_integers_of_the_types_that_they_look_like() {
        let labels: Vec<u8> = [3_i64, -100, 20, 0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let found = Extremes::from_bytes(&labels).unwrap();
        assert_eq!(found.as_integers_of(8), Some((-100, 20)));
        assert_eq!(found.as_integers_of(1), None);
        let mask = [0_u8, 1, 1, 0, 1];
        assert_eq!(Extremes::from_bytes(&mask).unwrap().as_integers_of(1), Some((0, 1)));
        assert_eq!(Extremes::from_bytes(&mask).unwrap().as_integers_of(4), None);
        let narrower =
            |size| Extremes::of_integers(size, (-1, 300), 8).and_then(|made| made.as_integers_of(size));
        assert_eq!([1, 2, 4, 8].map(narrower), [None, None, Some((-1, 300)), Some((-1, 300))]);
        let reals: Vec<u8> = [0.5_f32, -3.25, 1e-3].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(Extremes::from_bytes(&reals), None);
    }
}
