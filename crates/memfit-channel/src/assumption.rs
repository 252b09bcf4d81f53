//! What the device assumes where the script reads back a value that a kernel would have computed: the names
//! under which assumptions are counted, what each may change, and the policy for sizes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What an assumption may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stake {
    /// A test that a correct script passes, or a number for a log: control flow at the most.
    Value,
    /// A size between nothing and a bound that follows from the arguments.
    Size,
    /// A size for which the arguments give no bound.
    Unbounded,
}

/// An assumption: what it is counted under, and what it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// The name in the ledger.
    pub name: &'static str,
    /// What it may change.
    pub stake: Stake,
}

macro_rules! assumptions {
    ($($(#[$doc:meta])* $constant:ident: $stake:ident = $name:literal;)*) => {
        impl Assumption {
            $($(#[$doc])* pub const $constant: &'static str = $name;)*
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self { name: $name, stake: Stake::$stake }),*];
        }
    };
}

assumptions! {
    /// `nonzero`, `masked_select`, indexing with a mask, the boxes that non-maximum suppression keeps.
    NONZERO: Size = "nonzero: size read back";
    /// `unique` and `unique_consecutive`.
    UNIQUE: Size = "unique: size read back";
    /// How many elements of a mask are true.
    TRUE_COUNT: Size = "sum of a mask: size read back";
    /// `bincount`, `histc`: how many of the elements fell into each bin.
    HISTOGRAM: Size = "histogram: sizes read back";
    /// Running totals of counts, as `repeat_interleave` reads.
    RUNNING_TOTAL: Unbounded = "running total of counts: read back, each 1";
    /// `bincount` without `minlength`.
    BIN_COUNT: Unbounded = "bincount: number of bins, taken as 1";
    /// The length of what `generate` makes.
    GENERATION: Size = "generate: length, by an end that may come early";
    /// `all` of what is not known.
    ALL_TRUE: Value = "all: read back, answered true";
    /// `any` of what is not known.
    ANY_FALSE: Value = "any: read back, answered false";
    /// Comparisons that hold for all finite numbers.
    FINITE: Value = "computed values taken as finite, not negative";
    /// The sum of integers that are not known.
    INTEGER_SUM: Value = "sum of integers: read back, answered 0";
    /// The greatest or the least of integers that are not known.
    INTEGER_EXTREME: Value = "max, min of integers: read back, answered 0";
    /// Where the greatest or the least is.
    POSITION: Value = "argmax, argmin: read back, answered 0";
    /// Random numbers of the device.
    RANDOM: Value = "random numbers of the device: read back";
    /// A single truth value that nothing is known of.
    UNKNOWN_TRUTH: Value = "a computed truth: read back, answered false";
    /// A single number that nothing is known of.
    UNKNOWN_NUMBER: Value = "a computed number: read back, answered 0";
}

impl Assumption {
    /// The assumption that is counted under a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|assumption| assumption.name == name)
    }
}

/// Where sizes that a kernel would have computed are taken between their bounds: in thousandths of the upper
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ValuePolicy(u16);

impl ValuePolicy {
    /// The upper bound.
    pub const UPPER: Self = Self(1000);
    /// The lower bound.
    pub const LOWER: Self = Self(0);

    /// A part of the upper bound, from 0 to 1; nothing if it is none.
    pub fn part(part: f64) -> Option<Self> {
        (0.0..=1.0).contains(&part).then(|| Self((part * 1000.0).round() as u16))
    }

    /// A size that lies between these.
    pub fn between(self, low: u64, high: u64) -> u64 {
        let span = u128::from(high.saturating_sub(low));
        // Rounded up: a part of something is not nothing.
        low + (span * u128::from(self.0)).div_ceil(1000) as u64
    }
}

impl Default for ValuePolicy {
    fn default() -> Self {
        Self::UPPER
    }
}

/// As it is said of a size.
impl fmt::Display for ValuePolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UPPER => formatter.write_str("upper bound"),
            Self::LOWER => formatter.write_str("lower bound"),
            Self(thousandths) => write!(formatter, "{} of the upper bound", f64::from(thousandths) / 1000.0),
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
        part.ok().and_then(Self::part).ok_or_else(|| {
            format!("`{text}` is none of `upper`, `lower`, `both`, or a part from 0 to 1 such as `0.3`")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::NAME_BYTES;

    #[test]
    fn names_are_distinct_and_fit_the_ledger() {
        for (index, assumption) in Assumption::ALL.iter().enumerate() {
            assert!(assumption.name.len() <= NAME_BYTES, "{}", assumption.name);
            assert_eq!(Assumption::named(assumption.name), Some(*assumption));
            assert!(Assumption::ALL[..index].iter().all(|other| other.name != assumption.name));
        }
    }

    #[test]
    fn a_policy_is_a_place_between_two_bounds() {
        for (text, low, high, expected, said) in [
            ("upper", 0, 1000, 1000, "upper bound"),
            ("lower", 3, 1000, 3, "lower bound"),
            ("0.3", 0, 1000, 300, "0.3 of the upper bound"),
            ("30 %", 0, 1000, 300, "0.3 of the upper bound"),
            ("0.5", 0, 1, 1, "0.5 of the upper bound"),
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
}
