//! Growth of memory from step to step, which a verdict about a few steps does not include.

use super::{count, size};
use crate::wire::RunReport;

/// Number of steps from which their memory can be compared: the first one creates the optimizer state.
pub(super) const STEPS_TO_COMPARE: u64 = 3;

/// Growth that would fill the GPU only after more steps than this is treated as noise: over a few steps it
/// cannot be distinguished from batches of different sizes.
pub(super) const MAX_STEPS: u64 = 10_000;

/// Memory that grows from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Bytes in each step.
    bytes: u64,
    /// Steps until the GPU is full.
    steps_left: u64,
    /// `true` if it was seen between two steps alone: the next one may show none.
    pub(super) once: bool,
    /// `true` if forward passes were counted.
    passes: bool,
}

impl Growth {
    /// Growth in a run; `None` if there was none, or if it may be noise.
    pub fn of_run(report: &RunReport) -> Option<Self> {
        let coverage = &report.coverage;
        let bytes = coverage.growth_per_step.and_then(|growth| u64::try_from(growth).ok())?;
        let steps_left = u64::try_from(report.headroom).unwrap_or(0).checked_div(bytes)?;
        let once = coverage.steps <= STEPS_TO_COMPARE;
        (steps_left <= MAX_STEPS).then_some(Self { bytes, steps_left, once, passes: coverage.forward_only })
    }

    /// How much it is and how long it can go on, for the middle of a sentence.
    pub fn in_words(self) -> String {
        let (step, steps) = if self.passes { ("pass", "passes") } else { ("step", "steps") };
        let (bytes, left) = (size(self.bytes), count(self.steps_left));
        if self.once {
            format!(
                "the last {step} took {bytes} more than the one before: at that rate full after {left} more {steps}"
            )
        } else {
            format!("each {step} takes {bytes} more: full after {left} more {steps}")
        }
    }

    /// The growth with advice, for a verb that shows no single run.
    pub fn with_advice(self) -> String {
        let run = if self.once { "run --steps 10" } else { "run" };
        format!(
            "{}, so a longer training may not fit; `memfit {run} -o run.memfit` and `memfit explain run.memfit` name the line that keeps the memory",
            self.in_words()
        )
    }
}
