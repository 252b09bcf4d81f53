//! Assumptions of the virtual device: answers to reads of values that only a GPU computes.

use strum::{EnumString, IntoStaticStr, VariantArray};

/// An assumption about values that a kernel would have computed. The ledger counts it under its id; its text
/// and what it may change stand in the report crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Assumption {
    /// `nonzero`, `masked_select`, indexing with a mask, the boxes that non-maximum suppression keeps.
    Nonzero,
    /// `unique` and `unique_consecutive`.
    Unique,
    /// Rounds of a loop over what `unique` found.
    Groups,
    /// The number of true elements of a mask.
    TrueCount,
    /// `bincount`, `histc`: the number of elements in each bin.
    Histogram,
    /// Running totals of counts, as `repeat_interleave` reads them.
    RunningTotal,
    /// `bincount` without `minlength`.
    BinCount,
    /// The length of what `generate` makes.
    Generation,
    /// `all` of unknown elements.
    AllTrue,
    /// `any` of unknown elements.
    AnyFalse,
    /// Comparisons that hold for all finite numbers.
    Finite,
    /// The sum of unknown integers.
    IntegerSum,
    /// The greatest or the least of unknown integers.
    IntegerExtreme,
    /// The position of the greatest or the least element.
    Position,
    /// The positions of elements by their order, as `topk` and `sort` tell them.
    Ranking,
    /// Random numbers of the device.
    Random,
    /// A single unknown truth value.
    UnknownTruth,
    /// Unknown floating-point numbers.
    UnknownNumber,
    /// Unknown floating-point numbers that the script did more with than to print and to add them up.
    DecidingNumber,
    /// Unknown numbers that may be integers.
    UnknownInteger,
    /// A value that another process of the run was answered by an assumption.
    Elsewhere,
}

impl Assumption {
    /// All of them.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// The name in the ledger.
    pub fn id(self) -> &'static str {
        self.into()
    }
}
