//! Divisors of losses.

use super::{Flags, Kind, Value};
use crate::position::Span;

/// The single number that a loss was divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisor {
    /// A known number.
    Number(i64),
    /// The number of batches of a loader.
    Length,
    /// The size of a batch, by the option's name.
    BatchSize,
}

impl Value {
    /// Divisor of a loss that was not divided or changed before. The size of a batch is known as one by its
    /// name, whatever it divides.
    pub(crate) fn divided_by(&self, divisor: &Self) -> Option<Divisor> {
        let changed = self.is(Flags::OPAQUE) || !self.is(Flags::SCALAR);
        match divisor.kind {
            _ if self.is(Flags::DIVIDED) || changed && !divisor.is(Flags::BATCH_SIZE) => None,
            Kind::Int(number) => Some(Divisor::Number(number)),
            Kind::Number if divisor.is(Flags::LENGTH) => Some(Divisor::Length),
            _ if divisor.is(Flags::BATCH_SIZE) => Some(Divisor::BatchSize),
            _ => None,
        }
    }

    /// Sets the place of the division that gave it its divisor.
    pub(crate) fn divided_in(self, span: Span) -> Self {
        Self { divided_at: self.divisor.map(|_| span), ..self }
    }

    /// Returns `true` if one of two control-flow paths divides a loss by a known number, and nothing else
    /// differs: `if window > 1: loss = loss / batch_size`.
    pub(super) fn is_divided_once(&self, other: &Self) -> bool {
        let one = if self.is(Flags::DIVIDED) { self } else { other };
        one.divisor.is_some() && self.is(Flags::OPAQUE) == other.is(Flags::OPAQUE)
    }
}
