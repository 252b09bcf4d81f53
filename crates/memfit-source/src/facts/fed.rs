//! The arguments that models of a text's own classes are called with.

use super::ClassId;

/// One argument of one call of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fed {
    /// The model's class.
    pub class: ClassId,
    /// The argument's place.
    pub position: usize,
    /// It hangs on no graph, for certain.
    pub is_leaf: bool,
}
