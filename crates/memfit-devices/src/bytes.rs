//! Byte counts, and the single grammar for sizes.
//!
//! `KiB`, `MiB`, `GiB`, `TiB` and the single letters `k`, `m`, `g`, `t` are powers of 1024; `KB`, `MB`, `GB`,
//! `TB` are powers of 1000. A bare number is refused: `--memory 24` could mean anything.

use std::fmt;
use std::ops::{Add, Mul};
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A byte count.
///
/// Serialises as an integer; deserialises from an integer or from a size such as `"23.65 GiB"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Bytes(u64);

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);
    /// Memory of a GPU in runs without a memory limit.
    pub const UNLIMITED: Self = Self::from_gib(1 << 10);

    /// Creates a count of `count` bytes.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// Creates a count of `count` KiB.
    pub const fn from_kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// Creates a count of `count` MiB.
    pub const fn from_mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// Creates a count of `count` GiB.
    pub const fn from_gib(count: u64) -> Self {
        Self(count << 30)
    }

    /// Number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Number of GiB, for display and for ratios.
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / (1_u64 << 30) as f64
    }

    /// Returns the difference, or zero if `other` is greater.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the sum; `None` if it exceeds 64 bits.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }
}

impl Add for Bytes {
    type Output = Self;

    /// Adds with saturation: a sum of sizes beyond 16 EiB is "too much", never a small number.
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Mul<u64> for Bytes {
    type Output = Self;

    /// Multiplies with saturation.
    fn mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

impl fmt::Display for Bytes {
    /// Formats in the largest binary unit with a number of at least one, with at most two decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (shift, unit) in UNITS {
            let one = 1_u64 << shift;
            if self.0 >= one {
                let text = if self.0.is_multiple_of(one) {
                    format!("{} {unit}", self.0 >> shift)
                } else {
                    format!("{:.2} {unit}", self.0 as f64 / one as f64)
                };
                return f.pad(&text);
            }
        }
        f.pad(&format!("{} B", self.0))
    }
}

impl FromStr for Bytes {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_size(text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;

        impl Visitor<'_> for SizeVisitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, or a size such as \"24 GiB\"")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Bytes, E> {
                Ok(Bytes(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Bytes, E> {
                u64::try_from(value)
                    .map(Bytes)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Bytes, E> {
                parse_size(value).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(SizeVisitor)
    }
}

const SIZE_FORM: &str =
    "a size is a number and a unit: `14GiB`, `14336MiB` (powers of 1024), or `15GB` (powers of 1000)";

/// Reason why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeError {
    /// The text does not begin with a decimal number.
    #[error("`{0}` does not begin with a number; {SIZE_FORM}")]
    Number(String),
    /// The number has no unit.
    #[error("`{0}` has no unit; write `{0}GiB`, `{0}MiB` or `{0}B`")]
    NoUnit(String),
    /// The text after the number is not a unit.
    #[error("`{unit}` in `{text}` is not a unit of memory; {SIZE_FORM}")]
    Unit {
        /// Whole text.
        text: String,
        /// Text in place of the unit.
        unit: String,
    },
    /// The size exceeds 64 bits.
    #[error("`{0}` is more memory than 64 bits can address")]
    TooLarge(String),
}

/// Parses a size such as `14GiB`, `1.5 GiB`, `14336MiB`, `8g` or `15 GB`; drops fractions of a byte.
pub fn parse_size(text: &str) -> Result<Bytes, SizeError> {
    let trimmed = text.trim();
    let number_ends =
        trimmed.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(number_ends);
    let (whole, fraction) = decimal(number).ok_or_else(|| SizeError::Number(text.to_owned()))?;
    let unit = unit.trim_start();
    if unit.is_empty() {
        return Err(SizeError::NoUnit(trimmed.to_owned()));
    }
    let factor = unit_factor(unit)
        .ok_or_else(|| SizeError::Unit { text: trimmed.to_owned(), unit: unit.to_owned() })?;
    whole
        .and_then(|whole| whole.checked_mul(factor))
        .and_then(|count| count.checked_add(bytes_of_fraction(fraction, factor)))
        .map(Bytes)
        .ok_or_else(|| SizeError::TooLarge(trimmed.to_owned()))
}

/// Splits `"23.65"` into (23, "65"): exact, where a float would round. The whole part is `None` if it exceeds
/// 64 bits.
fn decimal(number: &str) -> Option<(Option<u64>, &str)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if !whole.starts_with(|c: char| c.is_ascii_digit()) || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let whole = whole.replace('_', "").parse().ok();
    Some((whole, fraction))
}

/// Whole bytes in the decimals of a number, of which one is `factor` bytes. Exact for any number of decimals:
/// dividing from the last digit to the first loses only fractions of a byte.
fn bytes_of_fraction(decimals: &str, factor: u64) -> u64 {
    let digits = decimals.bytes().rev().filter(u8::is_ascii_digit).map(|digit| u64::from(digit - b'0'));
    digits.fold(0, |below, digit| (digit * factor + below) / 10)
}

fn unit_factor(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: u64) {
        assert_eq!(parse_size(text).map(Bytes::get), Ok(expected), "{text}");
    }

    #[test]
    fn binary_and_decimal_units_are_kept_apart() {
        check("14GiB", 14 << 30);
        check("8g", 8 << 30);
        check("8 G", 8 << 30);
        check("14336MiB", 14 << 30);
        check("15 GB", 15_000_000_000);
        check("1.5gib", 3 << 29);
        check(" 23.65 GiB ", 25_393_994_137);
        check("16_376 MiB", 16_376 << 20);
        check("7b", 7);
        check("0.9B", 0);
        check("0.9999999999995 TiB", (1 << 40) - 1);
        // A byte has 40 decimals in TiB.
        check("0.0000000000009094947017729282379150390625 TiB", 1);
        check(&format!("1.{} TiB", "9".repeat(99)), (2 << 40) - 1);
    }

    #[test]
    fn invalid_sizes_are_refused_with_advice() {
        assert_eq!(parse_size("24"), Err(SizeError::NoUnit("24".into())));
        assert_eq!(
            parse_size("24").unwrap_err().to_string(),
            "`24` has no unit; write `24GiB`, `24MiB` or `24B`"
        );
        assert_eq!(parse_size(""), Err(SizeError::Number(String::new())));
        assert_eq!(parse_size("-1GiB"), Err(SizeError::Number("-1GiB".into())));
        assert_eq!(parse_size(".5GiB"), Err(SizeError::Number(".5GiB".into())));
        assert_eq!(parse_size("1.2.3GiB"), Err(SizeError::Number("1.2.3GiB".into())));
        assert_eq!(
            parse_size("24 gigs"),
            Err(SizeError::Unit { text: "24 gigs".into(), unit: "gigs".into() })
        );
        assert!(matches!(parse_size("17179869184GiB"), Err(SizeError::TooLarge(_))));
        assert!(matches!(parse_size(&format!("{}B", "9".repeat(60))), Err(SizeError::TooLarge(_))));
        assert!(matches!(parse_size(&format!("{}.5 TiB", (1 << 24) - 1)), Ok(Bytes(_))));
    }

    #[test]
    fn display_prints_binary_units() {
        assert_eq!(Bytes::new(0).to_string(), "0 B");
        assert_eq!(Bytes::from_kib(1).to_string(), "1 KiB");
        assert_eq!(Bytes::from_mib(1536).to_string(), "1.50 GiB");
        assert_eq!(format!("{:>8}", Bytes::from_gib(24)), "  24 GiB");
    }

    #[test]
    fn integers_and_sizes_both_deserialise() {
        #[derive(Deserialize)]
        struct Holder {
            a: Bytes,
            b: Bytes,
        }
        let held: Holder = toml::from_str("a = 5\nb = \"5 KiB\"").unwrap();
        assert_eq!((held.a, held.b), (Bytes::new(5), Bytes::from_kib(5)));
        assert!(toml::from_str::<Holder>("a = -5\nb = 1").is_err());
        assert_eq!(serde_json::to_string(&Bytes::from_kib(5)).unwrap(), "5120");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "\\PC*") {
            let _ = parse_size(&text);
        }

        #[test]
        fn whole_numbers_are_exact_in_every_unit(count in 0_u64..1 << 20, unit in 0_usize..9) {
            let (name, factor) = [
                ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1_u64 << 40),
                ("KB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("TB", 1_000_000_000_000),
            ][unit];
            for text in [format!("{count}{name}"), format!("{count}.000 {}", name.to_lowercase())] {
                prop_assert_eq!(parse_size(&text), Ok(Bytes::new(count * factor)));
            }
        }

        #[test]
        fn fractions_lose_less_than_a_byte(whole in 0_u64..4096, hundredths in 0_u64..100) {
            let read = parse_size(&format!("{whole}.{hundredths:02} GiB")).unwrap().get();
            let exact = u128::from(whole * 100 + hundredths) << 30;
            prop_assert!(u128::from(read) * 100 <= exact && exact < u128::from(read + 1) * 100);
        }

        #[test]
        fn printed_sizes_parse_back_within_two_decimals(count in any::<u64>()) {
            let printed = Bytes::new(count);
            let read = parse_size(&printed.to_string());
            // The last TiB below 16 EiB rounds up to a number that does not fit in 64 bits.
            if let Ok(read) = read {
                prop_assert!(read.get().abs_diff(count) as f64 <= count as f64 * 0.005 + 1.0);
            } else {
                prop_assert!(count > u64::MAX - (1 << 40));
            }
        }
    }
}
