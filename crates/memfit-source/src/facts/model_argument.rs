//! Arguments of calls of the text's own model classes.

use super::ClassId;

/// Argument of a model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelArgument {
    /// Class of the model.
    pub class: ClassId,
    /// Position of the argument.
    pub position: usize,
    /// `true` if it certainly has no autograd graph.
    pub is_leaf: bool,
}
