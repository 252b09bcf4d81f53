//! Summaries of functions and classes, for modules that import them.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::facts::{
    DType, Flags, Grad, Graph, GraphState, GuardTest, Kind, Model, ModelId, OpKind, Value, Weights,
};
use crate::position::Span;

/// Effects and result of a function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) parameters: Vec<String>,
    /// Graphs that represent its parameters, and then those of the attributes that it reads.
    pub(crate) parameter_graphs: Vec<u32>,
    /// Attributes of the object that a method reads, whose graphs follow those of the parameters.
    pub(crate) reads: Vec<Arc<str>>,
    /// Attributes of the object that a method sets, with their values at its end.
    pub(crate) writes: Vec<(Arc<str>, Value)>,
    /// Graphs created by the function: ids, states, and the parameters that they reach.
    pub(crate) made: Vec<(u32, GraphState, Weights)>,
    pub(crate) is_method: bool,
    /// Position of `**values`.
    pub(crate) named_rest: Option<usize>,
    pub(crate) grad_off: bool,
    pub(crate) ops: Vec<SummaryOp>,
    pub(crate) returns: Option<Returned>,
    /// Returns of arrays beside returns of other values, each with the parameter on whose truth it depends.
    pub(crate) arrays: Vec<Option<ArraySwitch>>,
    /// Containers of the object to which it adds parameters.
    pub(crate) stored_parameters: Vec<StoredParameters>,
    /// Positions of the parameters that it gives to a loss that takes logits.
    pub(crate) logits: Vec<usize>,
    /// Models of the returned value.
    pub(crate) models: Vec<(ModelId, ModelOrigin)>,
}

/// Origin of a model in a returned value, for the caller.
#[derive(Clone, Debug)]
pub(crate) enum ModelOrigin {
    /// Each call makes it anew.
    Made(Box<Model>),
    /// The parameter at this position.
    Given(usize),
}

/// Parameter on whose truth it depends whether a function returns NumPy arrays.
#[derive(Clone, Debug)]
pub(crate) struct ArraySwitch {
    pub(crate) name: String,
    /// `true` if its default is not false.
    pub(crate) is_on: bool,
}

/// Container of an object to which a method adds its parameters.
#[derive(Clone, Debug)]
pub(crate) struct StoredParameters {
    /// Source text in the method: `self.buffer`.
    pub(crate) target: Arc<str>,
    /// Positions of the parameters.
    pub(crate) parameters: Vec<usize>,
    /// `true` if they are added to a running sum.
    pub(crate) sums: bool,
    /// `true` if the class selects elements of the container at random.
    pub(crate) sampled: bool,
    /// `true` if they are added to a container that the class never empties.
    pub(crate) stays: bool,
}

/// Parameter on whose truth it depends whether a function performs an operation.
#[derive(Clone, Debug)]
pub(crate) struct Switch {
    /// Position of the parameter.
    pub(crate) parameter: usize,
    /// Truth with which the operation runs.
    pub(crate) runs: bool,
    /// Truth of the default, if that is a literal.
    pub(crate) default: Option<bool>,
}

#[derive(Clone, Debug)]
pub(crate) struct SummaryOp {
    pub(crate) kind: OpKind,
    pub(crate) receiver: String,
    /// Parameters of models concerned, without those that the caller passes.
    pub(crate) weights: Weights,
    pub(crate) deep: bool,
    /// Enclosing branches, outermost first.
    pub(crate) guards: Vec<(Arc<GuardTest>, bool)>,
    /// Positions of the parameters that a backward pass goes through.
    pub(crate) through: Vec<usize>,
    /// Position of the parameter that decides whether gradients are required.
    pub(crate) switch: Option<usize>,
    pub(crate) grad: Grad,
    /// Element type of the function's own autocast.
    pub(crate) autocast: Option<Option<DType>>,
    /// Parameters that decide whether it runs.
    pub(crate) switches: Vec<Switch>,
    /// Graph of a pass, or of a loss.
    pub(crate) graph: Graph,
    /// `true` if the mode is that of the caller.
    pub(crate) inherits: bool,
    /// Span in the function's file.
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct Returned {
    pub(crate) value: Value,
}

/// Details of a class that importing modules need.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClassExport {
    pub(crate) is_module: bool,
    pub(crate) is_dataset: bool,
    pub(crate) is_managed: bool,
    pub(crate) has_batch_norm: bool,
    /// Attributes with layers, if nothing in the class turns gradients off.
    pub(crate) parts: Vec<String>,
    /// Attribute in which its forward pass hands a state to the next one.
    pub(crate) carries: Option<String>,
    /// Its methods cut values from their graphs.
    pub(crate) detaches: bool,
    /// Its `__init__` sets all its parameters to require no gradients.
    pub(crate) is_frozen: bool,
    /// A module without layers and parameters.
    pub(crate) is_parameterless: bool,
    /// Has trained parameters of its own, and no layers.
    pub(crate) only_parameters: bool,
    /// An optimizer that is used as those of PyTorch are: it has no way of its own to step.
    pub(crate) is_optimizer: bool,
    /// Names of its methods, including those of base classes in its file.
    pub(crate) methods: FxHashSet<String>,
}

impl Summary {
    /// `SOFTMAX` or `SIGMOID` if that was the last operation on the result.
    pub(crate) fn last_operation(&self) -> Flags {
        let flags = self.returns.as_ref().map_or(Flags::NONE, |returned| returned.value.flags);
        flags.intersection(Flags::SOFTMAX.union(Flags::SIGMOID).union(Flags::LOG_SOFTMAX))
    }
}

impl Summary {
    /// [`Self::last_operation`] for each element of a returned tuple.
    pub(crate) fn last_operations(&self) -> Option<Vec<Flags>> {
        let Kind::Tuple(parts) = &self.returns.as_ref()?.value.kind else { return None };
        let last_operation = Flags::SOFTMAX.union(Flags::SIGMOID).union(Flags::LOG_SOFTMAX);
        Some(parts.iter().map(|part| part.flags.intersection(last_operation)).collect())
    }
}

impl ClassExport {
    /// Returns `true` if the class has a method of this name.
    pub(crate) fn has(&self, method: &str) -> bool {
        self.methods.contains(method)
    }
}
