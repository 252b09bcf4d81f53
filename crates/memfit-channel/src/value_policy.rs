//! The policy for sizes that only a GPU computes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Position of unknown sizes between their bounds, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ValuePolicy(u16);

impl ValuePolicy {
    /// The upper bound.
    pub const UPPER: Self = Self(1000);
    /// The lower bound.
    pub const LOWER: Self = Self(0);

    /// Creates a policy at a position from 0 (lower bound) to 1 (upper bound); `None` for other numbers.
    pub fn at_fraction(part: f64) -> Option<Self> {
        (0.0..=1.0).contains(&part).then(|| Self((part * 1000.0).round() as u16))
    }

    /// The position of the n-th value that is scattered between its bounds: no two near each other are close.
    pub fn scattered(number: u64) -> Self {
        Self(scattered(number, 1001) as u16)
    }

    /// Chooses a size between two bounds.
    pub fn between(self, low: u64, high: u64) -> u64 {
        let span = u128::from(high.saturating_sub(low));
        // Rounded up: a share of a nonzero size is not zero.
        low + (span * u128::from(self.0)).div_ceil(1000) as u64
    }
}

impl Default for ValuePolicy {
    fn default() -> Self {
        Self::UPPER
    }
}

/// Formats the policy for reports.
impl fmt::Display for ValuePolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UPPER => formatter.write_str("upper bound"),
            Self::LOWER => formatter.write_str("lower bound"),
            Self(thousandths) => {
                write!(
                    formatter,
                    "{} of the way from the lower to the upper bound",
                    f64::from(thousandths) / 1000.0
                )
            }
        }
    }
}

impl FromStr for ValuePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let part = match text {
            "upper" => return Ok(Self::UPPER),
            "lower" => return Ok(Self::LOWER),
            _ => match text.strip_suffix('%') {
                Some(percent) => percent.trim_end().parse().map(|percent: f64| percent / 100.0),
                None => text.parse(),
            },
        };
        part.ok().and_then(Self::at_fraction).ok_or_else(|| {
            format!("`{text}` is not a bound: use `upper`, `lower`, `both`, or a position between them from 0 to 1, such as `0.3`")
        })
    }
}

/// The n-th of numbers that are scattered below a limit of at most 32 bits.
pub fn scattered(number: u64, limit: u64) -> u64 {
    // Multiples of the golden ratio, modulo 1.
    let share = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (share * limit) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_a_place_between_two_bounds() {
        for (text, low, high, expected, said) in [
            ("upper", 0, 1000, 1000, "upper bound"),
            ("lower", 3, 1000, 3, "lower bound"),
            ("0.3", 0, 1000, 300, "0.3 of the way from the lower to the upper bound"),
            ("30 %", 0, 1000, 300, "0.3 of the way from the lower to the upper bound"),
            ("0.5", 0, 1, 1, "0.5 of the way from the lower to the upper bound"),
            ("1", 0, u64::MAX, u64::MAX, "upper bound"),
            ("0", 7, 3, 7, "lower bound"),
        ] {
            let policy: ValuePolicy = text.parse().unwrap();
            assert_eq!((policy.between(low, high), policy.to_string().as_str()), (expected, said), "{text}");
        }
        for wrong in ["", "half", "-0.1", "1.1", "nan", "inf", "120%"] {
            assert!(wrong.parse::<ValuePolicy>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn scattered_positions_differ_and_cover_the_range() {
        let mut found: Vec<u16> = (0..100).map(|number| ValuePolicy::scattered(number).0).collect();
        assert!(found[0] > 100 && found[0] < 900, "the first is at neither bound");
        found.sort_unstable();
        assert!(found.windows(2).all(|pair| (1..25).contains(&(pair[1] - pair[0]))), "{found:?}");
        assert!(found[0] < 25 && found[99] > 975 && found[99] <= 1000);
    }
}
