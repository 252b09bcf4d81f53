//! Branches and their conditions.

use std::sync::Arc;

use super::{GuardId, LoopId};
use crate::position::Span;

/// Binding of a counter that is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterBinding {
    /// Never bound.
    Nowhere,
    /// Loop variable.
    Target(LoopId),
    /// Assigned, in this loop.
    Assigned(Option<LoopId>),
    /// Parameter of the function.
    Parameter,
    /// Bound in another way, or outside of the text.
    Elsewhere,
}

/// Condition on a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residue {
    /// `… % k == 0`
    Zero,
    /// `… % k == k - 1`
    Last,
    /// `count == k` or `count >= k`, with a counter that is reset.
    Reached,
    /// Another remainder.
    Other,
}

/// Test that holds once in every N iterations.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterTest {
    /// Span of the comparison.
    pub span: Span,
    /// Name of the counter.
    pub counter: String,
    /// Span of the counter's name in the test.
    pub counter_span: Span,
    /// Span of the left operand of `%`.
    pub dividend: Span,
    /// Binding of the counter.
    pub bound: CounterBinding,
    /// Constant added to the counter.
    pub offset: i64,
    /// `true` if the counter is divided first, so that not each iteration counts.
    pub scaled: bool,
    /// Span of the period.
    pub period: Span,
    /// Period, if it is known.
    pub rounds: Option<i64>,
    /// Remainder for which the test holds.
    pub residue: Residue,
}

/// Condition of a branch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuardTest {
    /// Part of the condition that counts iterations.
    pub counted: Option<CounterTest>,
    /// `true` if the condition also holds under another test (`or`).
    pub alternative: bool,
    /// `true` if the condition also requires another test (`and`).
    pub condition: bool,
    /// Text that it searches for in an exception's message.
    pub message: Option<String>,
    /// `true` if it holds in training mode alone: `self.training`.
    pub training: bool,
    /// `true` if the count applies to the negated condition.
    pub negated: bool,
}

/// Conditional branch.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Enclosing branch.
    pub parent: Option<GuardId>,
    /// Span of the condition.
    pub test: Span,
    /// Meaning of the condition.
    pub what: Arc<GuardTest>,
    /// `true` for an `else` branch.
    pub negated: bool,
    /// `true` for the statements after a branch that leaves, such as a check that raises.
    pub is_rest: bool,
    /// Enclosing loop.
    pub looped: Option<LoopId>,
}
