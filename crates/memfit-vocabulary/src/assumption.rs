//! Assumptions of the virtual device: values that it returns when a script reads what only a GPU can compute.

use strum::{EnumString, IntoStaticStr, VariantArray};

/// An assumption about values that a kernel would have computed. The ledger counts it by id; its text and
/// possible effect are in the report crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Assumption {
    /// `nonzero`, `masked_select`, indexing with a mask, the boxes kept by non-maximum suppression.
    Nonzero,
    /// `unique` and `unique_consecutive`.
    Unique,
    /// Iterations of a loop over the results of `unique`.
    Groups,
    /// The number of true elements of a mask.
    TrueCount,
    /// `bincount`, `histc`: the number of elements per bin.
    Histogram,
    /// Cumulative sums of counts, as read by `repeat_interleave`.
    RunningTotal,
    /// `bincount` without `minlength`.
    BinCount,
    /// The number of tokens that `generate` produces.
    Generation,
    /// The number of steps that an adaptive solver of a differential equation takes.
    SolverSteps,
    /// `all` of unknown elements.
    AllTrue,
    /// `any` of unknown elements.
    UnknownAny,
    /// Comparisons that hold for all finite numbers.
    Finite,
    /// The sum of unknown integers.
    IntegerSum,
    /// The maximum or minimum of unknown integers.
    IntegerExtreme,
    /// The position of the maximum or minimum.
    Position,
    /// The sorted positions of elements, from `topk` and `sort`.
    Ranking,
    /// Random numbers generated on the device.
    Random,
    /// A single unknown boolean.
    UnknownTruth,
    /// Unknown floating-point numbers.
    UnknownNumber,
    /// Unknown floating-point numbers that the script used for more than printing or summing.
    DecidingNumber,
    /// Counts that the script used for more than printing, adding up or as a size.
    DecidingCount,
    /// Data that only a GPU can compute, copied to the host: more than a few numbers.
    CopiedData,
    /// Unknown numbers that may be integers.
    UnknownInteger,
    /// A value that another process of the run got by an assumption.
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
