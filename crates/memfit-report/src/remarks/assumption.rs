//! Assumptions about values that were not computed.

use std::str::FromStr as _;

use memfit_vocabulary::Assumption;

/// The possible effect of an assumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stake {
    /// A test that a correct script passes, or a number for a log.
    Value,
    /// A number that was read as zero. If it becomes a size, the effect is unbounded; a second run with
    /// another number shows whether anything depends on it.
    Number,
    /// A condition that a branch may depend on; runs in which it has the other truth value show
    /// whether the script then needs more memory.
    Condition,
    /// A count between zero and a bound that follows from the arguments, on which a branch may depend; a run
    /// with the lower bound shows whether the script then needs more memory.
    Count,
    /// A size or count between zero and a bound that follows from the arguments; a run with the lower bound
    /// shows whether the script then needs more memory, as where it takes the difference to another number.
    Size,
    /// A size for which the arguments give no bound.
    Unbounded,
}

/// The text and the possible effect of the assumption with this id. The effect of an unknown id is unbounded.
pub fn assumption_text(id: &str) -> (&str, Stake) {
    match Assumption::from_str(id) {
        Ok(assumption) => row(assumption),
        Err(_) => (id, Stake::Unbounded),
    }
}

fn row(assumption: Assumption) -> (&'static str, Stake) {
    match assumption {
        Assumption::Nonzero => ("the size of `nonzero` depends on computed values", Stake::Size),
        Assumption::Unique => ("the size of `unique` depends on computed values", Stake::Size),
        Assumption::Groups => ("loop over the values of `unique`: its first 8 iterations ran", Stake::Size),
        Assumption::TrueCount => ("the number of true entries of a mask", Stake::Size),
        Assumption::Histogram => ("sizes from a histogram of computed values", Stake::Size),
        Assumption::RunningTotal => ("`cumsum` of computed counts, each taken as 1", Stake::Unbounded),
        Assumption::BinCount => ("number of bins of `bincount`, taken as 1", Stake::Unbounded),
        Assumption::Generation => ("length of generated text, which an end token may shorten", Stake::Size),
        Assumption::SolverSteps => (
            "the steps of an adaptive ODE solver (autograd saves each): one step between two time points was assumed",
            Stake::Unbounded,
        ),
        Assumption::AllTrue => ("`all` of computed values, taken as true", Stake::Condition),
        Assumption::UnknownAny => (
            "`any` of computed values, taken as true in `if mask.any():` before a block that works on, else as false",
            Stake::Condition,
        ),
        Assumption::Finite => ("computed values, taken as finite and not negative", Stake::Value),
        Assumption::IntegerSum => ("a sum of computed integers, taken as 0", Stake::Number),
        Assumption::IntegerExtreme => ("`max` or `min` of computed integers, taken as 0", Stake::Number),
        Assumption::Position => ("a result of `argmax` or `argmin`, taken as 0", Stake::Number),
        Assumption::Ranking => ("indices of `topk` or `sort`, taken in ascending order", Stake::Number),
        Assumption::Random => ("random numbers that the GPU generates", Stake::Size),
        Assumption::UnknownTruth => {
            ("a condition on computed values, taken as false, or as true in an `assert`", Stake::Condition)
        }
        Assumption::UnknownNumber => {
            ("a value that only a GPU can compute, read by the script and taken as 0", Stake::Value)
        }
        Assumption::DecidingNumber => (
            "a value that only a GPU can compute, which the script compares, rounds, formats or copies to the host; taken as 0",
            Stake::Number,
        ),
        Assumption::DecidingCount => (
            "a count or random number that only a GPU can compute, used other than for printing, adding up or as a size",
            Stake::Count,
        ),
        Assumption::CopiedData => {
            ("data that only a GPU can compute, copied to the host; taken as zeros", Stake::Number)
        }
        Assumption::UnknownInteger => {
            ("an integer that only a GPU can compute, read by the script and taken as 0", Stake::Number)
        }
        Assumption::Elsewhere => {
            ("values that another process took from the virtual device", Stake::Unbounded)
        }
    }
}
