//! Arguments that callers in other files give to functions: models, loss functions, optimizers.

use std::collections::HashMap;

use memfit_source::{Criterion, Flags};

/// Arguments by the name of the called function or class.
pub(crate) type Given = HashMap<String, Vec<GivenArgument>>;

/// Argument of a call of a function that another file defines.
#[derive(Clone, Debug)]
pub(crate) struct GivenArgument {
    /// Position, if it has one.
    pub(crate) position: Option<usize>,
    /// Keyword.
    pub(crate) keyword: Option<String>,
    /// What is known of a model.
    pub(crate) model: Option<GivenModel>,
    /// Last operation on the output of a model.
    pub(crate) last: Flags,
    /// Which loss function it is, if it is one.
    pub(crate) criterion: Option<Criterion>,
    /// Whether the caller, or a function that it calls, clears the gradients of an optimizer.
    pub(crate) clears: Option<bool>,
}

/// Model that a caller gives to a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts of a caller")]
pub(crate) struct GivenModel {
    /// No optimizer of the caller's file holds its parameters, and one holds those of another model.
    pub(crate) loose: bool,
    /// An optimizer of the caller's file holds its parameters.
    pub(crate) held: bool,
    /// The caller evaluates it, loads its weights, or sets them to require no gradients.
    pub(crate) evaluated: bool,
    /// The caller may set its parameters to require no gradients.
    pub(crate) frozen: bool,
}
