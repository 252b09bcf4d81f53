//! Policy for sizes that only a real GPU can compute: run at the upper bound, the lower bound, or both.

use std::str::FromStr;

use memfit_channel::ValuePolicy;
use serde::Deserialize;

/// Position of sizes that only a GPU can compute between their bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Sizes {
    /// The upper bound; also the lower one if the verdict depends on it.
    #[default]
    Bounds,
    /// Always both bounds.
    Both,
    /// Position that the user chose.
    At(ValuePolicy),
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "both" => Ok(Self::Both),
            "upper" => Ok(Self::Bounds),
            other => other.parse().map(Self::At),
        }
    }
}

impl TryFrom<String> for Sizes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_a_position_between_their_bounds() {
        let parse = |text: &str| text.parse::<Sizes>();
        assert_eq!(parse("upper"), Ok(Sizes::Bounds));
        assert_eq!(parse("both"), Ok(Sizes::Both));
        assert_eq!(parse("lower"), Ok(Sizes::At(ValuePolicy::LOWER)));
        assert_eq!(parse("0.25"), Ok(Sizes::At(ValuePolicy::at_fraction(0.25).unwrap())));
        for wrong in ["", "most", "2", "-1"] {
            assert!(parse(wrong).is_err(), "{wrong:?} was accepted");
        }
    }
}
