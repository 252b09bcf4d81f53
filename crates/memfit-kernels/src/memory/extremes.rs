//! The least and the greatest integer of a large upload, whose contents are not kept: labels and masks are
//! checked against the number of classes.

/// Labels, indices and token ids are below this: what is not is taken for another type.
const LARGEST: u64 = 1 << 40;
/// The same for 32 bits, where numbers in floating point look like large integers.
const LARGEST_I32: u32 = 1 << 24;
/// The same for one byte, where any image would pass.
const LARGEST_U8: u8 = 64;

/// The extremes of a range of bytes, as each type of integer that it could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extremes {
    /// Bytes that they are of.
    pub bytes: u64,
    u8: Option<(u8, u8)>,
    i32: Option<(i32, i32)>,
    i64: Option<(i64, i64)>,
}

impl Extremes {
    /// Longer uploads are not looked through.
    pub const LONGEST: usize = 32 << 20;

    /// Those of these bytes, if they look like integers of any type.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > Self::LONGEST {
            return None;
        }
        let (words, rest) = bytes.as_chunks::<4>();
        let words = words.iter().map(|word| i32::from_le_bytes(*word));
        let (longs, odd) = bytes.as_chunks::<8>();
        let longs = longs.iter().map(|long| i64::from_le_bytes(*long));
        let found = Self {
            bytes: bytes.len() as u64,
            u8: range(bytes.iter().copied(), |value| value < LARGEST_U8),
            i32: range(words, |value| value.unsigned_abs() < LARGEST_I32).filter(|_| rest.is_empty()),
            i64: range(longs, |value| value.unsigned_abs() < LARGEST).filter(|_| odd.is_empty()),
        };
        (found.u8.is_some() || found.i32.is_some() || found.i64.is_some()).then_some(found)
    }

    /// The least and the greatest, as integers of so many bytes.
    pub fn as_integers_of(&self, size: usize) -> Option<(i64, i64)> {
        match size {
            1 => self.u8.map(|(least, greatest)| (least.into(), greatest.into())),
            4 => self.i32.map(|(least, greatest)| (least.into(), greatest.into())),
            8 => self.i64,
            _ => None,
        }
    }
}

/// The least and the greatest; `None` at the first value that is not plausible.
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
        let found = Extremes::of(&labels).unwrap();
        assert_eq!(found.as_integers_of(8), Some((-100, 20)));
        assert_eq!(found.as_integers_of(1), None);
        let mask = [0_u8, 1, 1, 0, 1];
        assert_eq!(Extremes::of(&mask).unwrap().as_integers_of(1), Some((0, 1)));
        assert_eq!(Extremes::of(&mask).unwrap().as_integers_of(4), None);
        let reals: Vec<u8> = [0.5_f32, -3.25, 1e-3].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(Extremes::of(&reals), None);
    }
}
