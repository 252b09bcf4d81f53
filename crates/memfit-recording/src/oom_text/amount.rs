//! Amounts as messages print them: rounded, and therefore read as an interval.

use std::ops::Add;

/// Amount of bytes that was printed with two decimals, as the interval of values that round to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Amount {
    /// Lower bound in bytes.
    pub low: u64,
    /// Upper bound in bytes.
    pub high: u64,
}

impl Amount {
    /// An exact amount.
    pub const fn exactly(bytes: u64) -> Self {
        Self { low: bytes, high: bytes }
    }

    /// Midpoint of the interval.
    pub const fn bytes(self) -> u64 {
        self.low + (self.high - self.low) / 2
    }

    /// Difference of two amounts, at least zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self { low: self.low.saturating_sub(other.high), high: self.high.saturating_sub(other.low) }
    }

    /// Parses the amount at the beginning of a text such as `1.50 GiB free`. Returns it with the rest of the
    /// text.
    pub(super) fn parse(text: &str) -> Option<(Self, &str)> {
        let text = text.trim_start();
        let digits = text.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let (number, rest) = text.split_at(digits);
        let rest = rest.trim_start();
        let (unit, rest) = UNITS.iter().find_map(|(name, unit)| Some((*unit, rest.strip_prefix(name)?)))?;
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let whole: u64 = whole.parse().ok()?;
        if part.is_empty() {
            return Some((Self::exactly(whole.checked_mul(unit)?), rest));
        }
        if part.len() > 9 {
            return None;
        }
        // Counted in the smallest step that is printed, with half a step to either side. A driver without a
        // limit prints 2⁶⁴ bytes, so the computation is wider than the result.
        let steps = 10_u128.pow(part.len() as u32);
        let value = (u128::from(whole) * steps + part.parse::<u128>().ok()?) * u128::from(unit) * 2;
        let half = u128::from(unit);
        let low = value.saturating_sub(half).div_ceil(2 * steps);
        let high = (value + half) / (2 * steps);
        Some((Self { low: clamp(low), high: clamp(high) }, rest))
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { low: self.low.saturating_add(other.low), high: self.high.saturating_add(other.high) }
    }
}

fn clamp(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// Units as PyTorch prints them.
const UNITS: [(&str, u64); 10] = [
    ("bytes", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    // Releases up to 2.6 print the binary units of Apple's GPUs in this way.
    ("KB", 1 << 10),
    ("MB", 1 << 20),
    ("GB", 1 << 30),
    ("TB", 1 << 40),
    ("B", 1),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_stands_for_what_it_can_have_been() {
        let parse =
            |text: &str| Amount::parse(text).map(|(amount, rest)| (amount.low, amount.high, rest.to_owned()));
        assert_eq!(parse("512 bytes; "), Some((512, 512, "; ".to_owned())));
        assert_eq!(parse("2.00 MiB free"), Some((2_091_910, 2_102_394, " free".to_owned())));
        let (amount, _) = Amount::parse("23.68 GiB").unwrap();
        // An RTX 3090 has 25 425 608 704 bytes.
        assert!(amount.low <= 25_425_608_704 && 25_425_608_704 <= amount.high);
        assert_eq!(parse("17179869184.00 GiB").unwrap().1, u64::MAX);
        for wrong in [
            "",
            "GiB",
            "1.5",
            "1.5 parsecs",
            "99999999999999999999999 GiB",
            "-1 MiB",
            "1.0000000000 GiB",
            "1.2.3 GiB",
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
