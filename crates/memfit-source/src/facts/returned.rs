//! Values that `return` statements give.

use super::Function;
use crate::position::Span;

/// Element of a returned tuple, item of a returned dictionary, or a returned value of another kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReturnedPart {
    /// Key of an item, if it is a string.
    pub key: Option<String>,
    /// Span of the value.
    pub span: Span,
}

impl Function {
    /// Elements, items or values of all `return` statements.
    pub fn returned_parts(&self) -> impl Iterator<Item = &ReturnedPart> {
        self.returns.iter().flatten()
    }

    /// The value of each `return` statement; of a tuple or dictionary the first one, which callers take for
    /// the loss.
    pub fn returned_first(&self) -> impl Iterator<Item = Span> {
        self.returns.iter().filter_map(|parts| parts.first()).map(|part| part.span)
    }
}
