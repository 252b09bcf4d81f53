//! Findings of further runs about values that only a GPU can compute.

use memfit_channel::{OtherValues, ValuePolicy};

use crate::RunError;
use crate::facts::Facts;
use crate::numbers::{BETWEEN, Numbers};

/// Findings of further runs with other assumed values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tested {
    /// Effect of numbers that were read as zero, and of conditions.
    pub(crate) numbers: Numbers,
    pub(crate) sizes: OtherSizes,
}

/// Effect of sizes that were read back at their upper bound, found by runs with other sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OtherSizes {
    /// There were no such sizes, or no further run.
    #[default]
    Untried,
    /// All runs made the same allocations: the script only reports what it reads, such as an accuracy.
    Inert,
    /// A run with other sizes allocated differently, or did not end as the first one.
    Decisive,
    /// The run with lower bounds ran out of memory, too.
    OutOfMemory,
}

impl OtherSizes {
    /// Determines the effect of sizes on a run with these facts. Returns the facts of the run with lower
    /// bounds as well.
    pub(crate) fn test(
        assumed: &Facts,
        mut run: impl FnMut(OtherValues) -> Result<Facts, RunError>,
    ) -> Result<(Self, Facts), RunError> {
        let lower = Self::lower(&mut run)?;
        if lower.oom.is_some() {
            let found = if assumed.oom.is_some() { Self::OutOfMemory } else { Self::Decisive };
            return Ok((found, lower));
        }
        let same = |first: &Facts, second: &Facts| Numbers::compare(first, second) == Numbers::Harmless;
        let stopped = assumed.was_stopped() || lower.was_stopped();
        let mut inert = same(assumed, &lower);
        if !inert && !stopped && assumed.oom.is_none() && lower.ended == assumed.ended {
            // A script that draws random sizes allocates differently each time.
            inert = same(&run(OtherValues::default())?, &lower);
        }
        if inert {
            let between = ValuePolicy::at_fraction(BETWEEN);
            inert = same(&lower, &run(OtherValues { sizes: between, ..OtherValues::default() })?);
        }
        Ok((if inert { Self::Inert } else { Self::Decisive }, lower))
    }

    /// Runs with sizes at their lower bounds.
    pub(crate) fn lower(
        mut run: impl FnMut(OtherValues) -> Result<Facts, RunError>,
    ) -> Result<Facts, RunError> {
        run(OtherValues { sizes: Some(ValuePolicy::LOWER), ..OtherValues::default() })
    }
}
