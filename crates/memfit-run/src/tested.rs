//! What further runs found about values that only a GPU can compute.

use memfit_channel::OtherValues;

use crate::RunError;
use crate::facts::Facts;
use crate::numbers::Numbers;

/// Findings of further runs with other assumed values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tested {
    /// Effect of numbers that were read as zero, and of conditions.
    pub(crate) numbers: Numbers,
    pub(crate) sizes: LowerSizes,
}

/// Effect of sizes that were read back at their upper bound, found by a run with their lower bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LowerSizes {
    /// There were no such sizes, or no second run.
    #[default]
    Untried,
    /// Both runs made the same allocations: the script only reports what it reads, such as an accuracy.
    Inert,
    /// The run with lower bounds allocated differently, or did not end as the first one.
    Decisive,
    /// The run with lower bounds ran out of memory, too.
    OutOfMemory,
}

impl LowerSizes {
    /// Determines the effect of sizes on a run with these facts. Returns the facts of the run with lower
    /// bounds as well.
    pub(crate) fn test(
        assumed: &Facts,
        mut run: impl FnMut(OtherValues) -> Result<Facts, RunError>,
    ) -> Result<(Self, Facts), RunError> {
        let lower = run(OtherValues { lower_sizes: true, ..OtherValues::default() })?;
        if lower.oom.is_some() {
            let found = if assumed.oom.is_some() { Self::OutOfMemory } else { Self::Decisive };
            return Ok((found, lower));
        }
        let mut inert = Numbers::compare(assumed, &lower) == Numbers::Harmless;
        if !inert && assumed.oom.is_none() && lower.ended == assumed.ended {
            // A script that draws random sizes allocates differently each time.
            inert = Numbers::compare(&run(OtherValues::default())?, &lower) == Numbers::Harmless;
        }
        Ok((if inert { Self::Inert } else { Self::Decisive }, lower))
    }
}
