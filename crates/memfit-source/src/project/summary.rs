//! What importers need to know of a function or a class, without its source.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::facts::{Flags, Grad, GraphState, GuardTest, OpKind, Value};
use crate::position::Span;

/// What a function does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) parameters: Vec<String>,
    pub(crate) is_method: bool,
    pub(crate) grad_off: bool,
    pub(crate) ops: Vec<SummaryOp>,
    pub(crate) returns: Option<Returned>,
}

#[derive(Clone, Debug)]
pub(crate) struct SummaryOp {
    pub(crate) kind: OpKind,
    pub(crate) receiver: String,
    pub(crate) deep: bool,
    /// Its branches, from the outside.
    pub(crate) guards: Vec<(Arc<GuardTest>, bool)>,
    /// The parameters that a backward pass goes through.
    pub(crate) through: Vec<usize>,
    pub(crate) grad: Grad,
    /// In the file of the function.
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct Returned {
    pub(crate) value: Value,
    pub(crate) state: GraphState,
    pub(crate) through: Vec<usize>,
}

/// As much of a class as its importers need.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClassExport {
    pub(crate) is_module: bool,
    pub(crate) is_dataset: bool,
    pub(crate) is_managed: bool,
    pub(crate) has_batch_norm: bool,
    /// Its own methods, and those of the classes of its file that it is derived from.
    pub(crate) methods: FxHashSet<String>,
}

impl Summary {
    /// Whether what it returns went through a softmax or a sigmoid last.
    pub(crate) fn last(&self) -> Flags {
        let flags = self.returns.as_ref().map_or(Flags::NONE, |returned| returned.value.flags);
        flags.common(Flags::SOFTMAX.with(Flags::SIGMOID))
    }
}

impl ClassExport {
    /// Whether it has a method of this name.
    pub(crate) fn has(&self, method: &str) -> bool {
        self.methods.contains(method)
    }
}
