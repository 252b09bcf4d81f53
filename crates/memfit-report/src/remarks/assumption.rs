//! Assumptions about values that nobody computed.

use std::str::FromStr as _;

use memfit_vocabulary::Assumption;

/// What an assumption may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stake {
    /// Control flow at the most: a test that a correct script passes, or a number for a log.
    Value,
    /// A number that was answered zero. If it becomes a size, nothing bounds that; a second run with
    /// another number in its place tells whether anything depends on it.
    Number,
    /// A size between zero and a bound that follows from the arguments.
    Size,
    /// A size for which the arguments give no bound.
    Unbounded,
}

/// The text and the stake of the assumption with this id. An unknown one has no bound.
pub fn assumption_text(id: &str) -> (&str, Stake) {
    match Assumption::from_str(id) {
        Ok(assumption) => row(assumption),
        Err(_) => (id, Stake::Unbounded),
    }
}

fn row(assumption: Assumption) -> (&'static str, Stake) {
    match assumption {
        Assumption::Nonzero => ("nonzero: size read back", Stake::Size),
        Assumption::Unique => ("unique: size read back", Stake::Size),
        Assumption::Groups => ("loop over what unique found: its first 8 rounds were run", Stake::Size),
        Assumption::TrueCount => ("sum of a mask: size read back", Stake::Size),
        Assumption::Histogram => ("histogram: sizes read back", Stake::Size),
        Assumption::RunningTotal => ("running total of counts: read back, each 1", Stake::Unbounded),
        Assumption::BinCount => ("bincount: number of bins, taken as 1", Stake::Unbounded),
        Assumption::Generation => ("generate: length, by an end that may come early", Stake::Size),
        Assumption::AllTrue => ("all: read back, answered true", Stake::Value),
        Assumption::AnyFalse => ("any: read back, answered false", Stake::Value),
        Assumption::Finite => ("computed values taken as finite, not negative", Stake::Value),
        Assumption::IntegerSum => ("sum of integers: read back, answered 0", Stake::Number),
        Assumption::IntegerExtreme => ("max, min of integers: read back, answered 0", Stake::Number),
        Assumption::Position => ("argmax, argmin: read back, answered 0", Stake::Number),
        Assumption::Ranking => {
            ("topk, sort: positions read back, answered in ascending order", Stake::Number)
        }
        Assumption::Random => ("random numbers of the device: read back", Stake::Value),
        Assumption::UnknownTruth => ("a computed truth: read back, answered false", Stake::Value),
        Assumption::UnknownNumber => ("a computed number: read back, answered 0", Stake::Value),
        Assumption::DecidingNumber => {
            ("a computed number: compared, made an integer or copied to the host, answered 0", Stake::Number)
        }
        Assumption::UnknownInteger => ("a computed integer: read back, answered 0", Stake::Number),
        Assumption::Elsewhere => ("values that another process was answered", Stake::Unbounded),
    }
}
