//! What importers need to know of a function or a class, without its source.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::facts::{Flags, Grad, GraphState, GuardTest, Kind, OpKind, Value, Weights};
use crate::position::Span;

/// What a function does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) parameters: Vec<String>,
    /// What stands for the graphs of its parameters in what it returns.
    pub(crate) parameter_graphs: Vec<u32>,
    pub(crate) is_method: bool,
    pub(crate) grad_off: bool,
    pub(crate) ops: Vec<SummaryOp>,
    pub(crate) returns: Option<Returned>,
    /// Containers of its object that it puts parameters into.
    pub(crate) keeps: Vec<Kept>,
}

/// A container of an object that parameters of a method are put into.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// Where, as the method has it: `self.buffer`.
    pub(crate) target: Arc<str>,
    /// The numbers of the parameters.
    pub(crate) parameters: Vec<usize>,
}

#[derive(Clone, Debug)]
pub(crate) struct SummaryOp {
    pub(crate) kind: OpKind,
    pub(crate) receiver: String,
    /// The parameters that it goes to, but for those that the caller brings.
    pub(crate) weights: Weights,
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
    /// The graphs of it that the function made: their numbers, their states and whose parameters they reach.
    pub(crate) made: Vec<(u32, GraphState, Weights)>,
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

impl Summary {
    /// The same of each part, where it returns several.
    pub(crate) fn last_parts(&self) -> Option<Vec<Flags>> {
        let Kind::Tuple(parts) = &self.returns.as_ref()?.value.kind else { return None };
        let last = Flags::SOFTMAX.with(Flags::SIGMOID);
        Some(parts.iter().map(|part| part.flags.common(last)).collect())
    }
}

impl ClassExport {
    /// Whether it has a method of this name.
    pub(crate) fn has(&self, method: &str) -> bool {
        self.methods.contains(method)
    }
}
