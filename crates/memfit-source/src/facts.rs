//! Facts of a source text, which lint rules query. One walk over the text collects them.

mod divisor;
mod graph;
mod guard;
mod model_argument;
mod named;
mod returned;
mod text;
mod value;
mod weights;

use std::sync::Arc;

use crate::position::Span;

pub use divisor::Divisor;
pub use graph::{Graph, GraphState};
pub use guard::{CounterBinding, CounterTest, Guard, GuardTest, Residue};
pub use model_argument::ModelArgument;
pub(crate) use named::Named;
pub use returned::ReturnedPart;
pub use text::{Comment, ImportFrom, MessageSearch, Problem};
pub use value::*;
pub use weights::{Model, Overlap, Weights};

mod query;
pub use query::assigned_text;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u32);

        impl $name {
            #[allow(dead_code, reason = "ids are only compared")]
            pub(crate) const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// Id of a function, a method, or the module's body, which is the first.
    FunctionId,
    /// Id of a class.
    ClassId,
    /// Id of a loop.
    LoopId,
    /// Id of a conditional branch.
    GuardId,
    /// Id of an `except` clause.
    HandlerId,
    /// Id of a `try` statement.
    TryId,
    /// Id of a call that creates a loader.
    LoaderId,
    /// Id of a call that creates a gradient scaler.
    ScalerId,
    /// Id of a model, or a part of one.
    ModelId,
}

impl FunctionId {
    /// The module's body. For an operation of a called function, it also stands for a function of another
    /// file.
    pub const MODULE: Self = Self(0);
}

/// Context in which a statement runs.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Enclosing function.
    pub function: FunctionId,
    /// Innermost loop.
    pub looped: Option<LoopId>,
    /// Innermost conditional branch.
    pub guard: Option<GuardId>,
    /// Enclosing `except` clause.
    pub handler: Option<HandlerId>,
    /// `try` statement whose body contains it.
    pub tried: Option<TryId>,
    /// Autograd recording mode.
    pub grad: Grad,
    /// Element type of autocast, if autocast is on.
    pub autocast: Option<Option<DType>>,
    /// `true` if a framework accumulates, scales and steps by itself here.
    pub managed: bool,
    /// Position in the order of execution, as far as there is one.
    pub order: u32,
}

/// Function, method, or the module's body.
#[derive(Clone, Debug)]
pub struct Function {
    /// Qualified name, such as `Trainer.step`; empty for the module.
    pub name: String,
    /// Span of the definition.
    pub span: Span,
    /// Class of a method.
    pub class: Option<ClassId>,
    /// Parameter names.
    pub parameters: Vec<String>,
    /// Full names of the decorators, as far as they are known.
    pub decorators: Vec<String>,
    /// Autograd recording mode in the body, by its decorators and its callers.
    pub grad: Grad,
    /// `true` if the text contains a call of it.
    pub called: bool,
    /// Span of the first statement, from the start of its line's code.
    pub body: Span,
    /// Graphs that represent its parameters.
    pub inputs: Vec<Graph>,
    /// Names that its body binds.
    pub binds: Vec<String>,
    /// `true` if a value that it returns or yields may have a graph.
    pub hands_on: bool,
    /// Graph of the values that it returns.
    pub returned: Graph,
    /// Parts of the value of each `return` statement with one.
    pub returns: Vec<Vec<ReturnedPart>>,
}

/// Class definition.
#[derive(Clone, Debug)]
pub struct Class {
    /// Name.
    pub name: String,
    /// Full names of the base classes, as far as they are known.
    pub bases: Vec<String>,
    /// Derives from `torch.nn.Module`.
    pub is_module: bool,
    /// Derives from `torch.utils.data.Dataset`.
    pub is_dataset: bool,
    /// A framework runs its steps: it sets the autograd mode and calls the optimizer.
    pub is_managed: bool,
    /// Creates batch normalisation layers.
    pub has_batch_norm: bool,
    /// Attributes with layers that have parameters, if nothing in the class turns gradients off.
    pub parts: Vec<String>,
    /// Attribute in which its forward pass hands a state with its graph to the next one.
    pub carries: Option<String>,
    /// Its methods cut values from their graphs: what it returns may be cut.
    pub detaches: bool,
    /// Its `__init__` sets all its parameters to require no gradients.
    pub is_frozen: bool,
    /// A module without layers and parameters, such as one that computes spectrograms.
    pub is_parameterless: bool,
    /// Has trained parameters of its own, and no layers.
    pub only_parameters: bool,
}

/// Iterable of a loop.
#[derive(Clone, Debug, PartialEq)]
pub enum IterableKind {
    /// The batches of a loader.
    Loader(Option<LoaderId>),
    /// `range`, with the number of iterations if it is known.
    Range(Option<i64>),
    /// Endless, such as `while True` or `itertools.count`.
    Endless,
    /// A list or tuple display, with its length.
    Literal(usize),
    /// Anything else.
    Other,
}

/// Loop statement.
#[derive(Clone, Debug)]
pub struct Loop {
    /// Span of the statement.
    pub span: Span,
    /// Span from the keyword to the end of the iterable.
    pub header: Span,
    /// Enclosing loop in the same function.
    pub parent: Option<LoopId>,
    /// Enclosing function.
    pub function: FunctionId,
    /// `true` for `while`, `false` for `for`.
    pub is_while: bool,
    /// Kind of the iterable.
    pub iterable_kind: IterableKind,
    /// Span of the iterable.
    pub iterable: Span,
    /// Names that each iteration binds.
    pub targets: Vec<String>,
    /// Index variable of `enumerate` and its start value, if known.
    pub index: Option<(String, Option<i64>)>,
    /// Names bound in the body, without the loop variables.
    pub assigned: Vec<String>,
    /// Containers that the body empties.
    pub emptied: Vec<String>,
    /// Site of the loop.
    pub site: Site,
    /// Order of execution at its end.
    pub end: u32,
}

/// Kind of training operation.
#[derive(Clone, Debug, PartialEq)]
pub enum OpKind {
    /// Call of a model.
    Forward,
    /// Call of a method of a model whose code is not known: it may run a pass.
    Method {
        /// Name of the method, or of a part of the model.
        name: Arc<str>,
    },
    /// `backward()`
    Backward(Box<Backward>),
    /// Optimizer step, with or without a gradient scaler.
    Step {
        /// `scaler.step(optimizer)`
        scaled: bool,
        /// `true` if a closure is passed, which may run any code.
        closure: bool,
    },
    /// Clearing of gradients.
    ZeroGrad {
        /// `set_to_none=False`
        to_zero: bool,
    },
    /// `scaler.unscale_(optimizer)`
    Unscale,
    /// `scaler.update()`
    ScalerUpdate,
    /// Gradient clipping.
    Clip,
    /// Learning-rate scheduler step.
    SchedulerStep,
    /// `torch.autograd.grad`
    AutogradGrad,
    /// `train()`
    TrainMode,
    /// `eval()`
    EvalMode,
    /// Write to parameters' gradients: `p.grad = …`, `p.grad *= …`
    WriteGrad {
        /// `true` if it concerns one parameter selected by index.
        single: bool,
        /// `true` if `None` is written.
        clears: bool,
    },
    /// `no_sync()`: gradient synchronisation is deferred.
    NoSync,
    /// Parameters of a model are overwritten with those of another one: a copy, or a moving average.
    CopyWeights,
    /// Parameters of a model are set to require gradients or not.
    RequireGrad {
        /// Whether they do, if that is known.
        on: Option<bool>,
    },
}

impl OpKind {
    /// Returns `true` for what computes gradients.
    pub const fn differentiates(&self) -> bool {
        matches!(self, Self::Backward(_) | Self::AutogradGrad)
    }

    /// Returns `true` for what computes gradients, or updates parameters with them.
    pub const fn updates(&self) -> bool {
        self.differentiates() || matches!(self, Self::Step { .. })
    }

    /// Returns `true` for what only a training does.
    pub const fn trains(&self) -> bool {
        self.updates() || matches!(self, Self::ZeroGrad { .. } | Self::TrainMode)
    }
}

/// Backward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Backward {
    /// Value of the loss.
    pub loss: Value,
    /// Span of the loss.
    pub loss_span: Span,
    /// Parameters used by each forward pass in the graph, in order of execution. Empty if unknown.
    pub passes: Vec<Weights>,
    /// Span of `retain_graph=True`.
    pub retain: Option<Span>,
    /// Span of `create_graph=True`.
    pub create: Option<Span>,
    /// Graphs that it goes through, and that an earlier iteration or an earlier line has freed.
    pub freed: Graph,
    /// `true` if it goes through a graph of an earlier iteration.
    pub carried: bool,
    /// `true` if a framework runs it and scales the loss.
    pub managed: bool,
    /// Earlier loop whose iterations the loss sums up.
    pub of_loop: Option<LoopId>,
    /// `true` if the whole graph was built in the same iteration of the innermost loop.
    pub built_this_iteration: bool,
    /// `true` if a part of the graph was built before the innermost loop.
    pub has_outer_graph: bool,
}

/// Training operation.
#[derive(Clone, Debug)]
pub struct Op {
    /// Kind.
    pub kind: OpKind,
    /// Span of the call.
    pub span: Span,
    /// Source text of the receiver: `optimizer`, `self.model`; `step.<locals>.optimizer` for a local variable
    /// of the called function that performs it.
    pub receiver: String,
    /// Parameters concerned: those that an optimizer holds, a backward pass reaches, a model has.
    pub weights: Weights,
    /// Graph of the result of a forward pass, or of the loss of a backward pass, with what a called function
    /// adds to it.
    pub graph: Graph,
    /// Site of the operation.
    pub site: Site,
    /// Called function that performs it.
    pub via: Option<FunctionId>,
    /// Span of the call of that function.
    pub call: Option<Span>,
    /// `true` if it is in a loop of that function.
    pub deep: bool,
    /// Parameters of the enclosing function on whose truth it depends whether a called function performs it.
    pub(crate) switches: Vec<(usize, bool)>,
}

/// Argument of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// Keyword.
    pub name: Option<Arc<str>>,
    /// Span, including the keyword.
    pub span: Span,
    /// Span of the expression.
    pub value_span: Span,
    /// Value.
    pub value: Value,
    /// `*args` or `**kwargs`
    pub starred: bool,
}

/// Call expression.
#[derive(Clone, Debug)]
pub struct Call {
    /// Span of the call.
    pub span: Span,
    /// Span of the callee.
    pub callee: Span,
    /// Full name of an imported callee.
    pub path: Option<Arc<str>>,
    /// Method name.
    pub method: Option<Arc<str>>,
    /// Receiver of a method call.
    pub receiver: Option<Receiver>,
    /// Called function, if it is of this file.
    pub function: Option<FunctionId>,
    /// `true` if the called function is of the project, so that what it does is known.
    pub is_followed: bool,
    /// Value of a callee that is neither imported nor a method.
    pub target: Value,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
    /// Span from the opening parenthesis to the closing one.
    pub parentheses: Span,
    /// Result.
    pub result: Value,
    /// `true` if the call is a statement.
    pub is_statement: bool,
    /// Indices of the arguments that the called function gives to a loss that takes logits.
    pub logits: Vec<usize>,
    /// Site of the call.
    pub site: Site,
}

/// Receiver of a method call.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// Span.
    pub span: Span,
    /// Value.
    pub value: Value,
}

impl Call {
    /// Argument with this keyword.
    pub fn keyword(&self, name: &str) -> Option<&Argument> {
        self.arguments.iter().find(|argument| argument.name.as_deref() == Some(name))
    }

    /// Argument at this position, or with this keyword.
    pub fn argument(&self, position: usize, name: &str) -> Option<&Argument> {
        let positional =
            self.arguments.iter().filter(|argument| argument.name.is_none() && !argument.starred);
        positional.into_iter().nth(position).or_else(|| self.keyword(name))
    }

    /// Returns `true` if `*args` or `**kwargs` may hide arguments.
    pub fn is_open(&self) -> bool {
        self.arguments.iter().any(|argument| argument.starred)
    }

    /// Returns `true` if the callee has this full name.
    pub fn is(&self, path: &str) -> bool {
        self.path.as_deref() == Some(path)
    }

    /// Returns `true` if a method of this name is called.
    pub fn is_method(&self, name: &str) -> bool {
        self.method.as_deref() == Some(name)
    }
}

/// Way in which a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// `x.append(v)`, `x.extend(v)`, `x += [v]`
    Append,
    /// `x = torch.cat([x, v])`
    Join,
    /// Passed to a method that adds it to a container of its object.
    Give,
    /// Passed to a method that adds it to a running sum of its object.
    GiveSum,
    /// `x[key] = v`
    Item,
    /// `x += v`, `x = x + v`
    Add,
    /// `x = v`
    Assign,
}

/// Store of a value.
#[derive(Clone, Debug)]
pub struct Store {
    /// Way in which it is stored.
    pub kind: StoreKind,
    /// Source text of the target: `losses`, `self.losses`.
    pub target: String,
    /// Span of the statement or call.
    pub span: Span,
    /// Span of the value.
    pub value_span: Span,
    /// Value.
    pub value: Value,
    /// Value of the target before.
    pub target_value: Value,
    /// Outermost loop whose iterations accumulate in the target.
    pub grows: Option<LoopId>,
    /// The same, where the target is made anew on some control-flow paths only.
    pub grows_between_resets: Option<LoopId>,
    /// `true` if the value's graph is alive on some control-flow path, of which none may have cut it off.
    pub live_somewhere: bool,
    /// State of the value's graph at the end of the function.
    pub graph: GraphState,
    /// State of the value's graph at the store.
    pub graph_then: GraphState,
    /// `true` if code outside the text may use the target later.
    pub escapes: bool,
    /// `true` if the value's graph contains that of the previous iteration, so that the last value keeps all
    /// of them alive.
    pub carried: bool,
    /// `true` if the value's graph was built in the loop that accumulates.
    pub built_there: bool,
    /// Method that stores it, and the method's target.
    pub by: Option<(FunctionId, Arc<str>)>,
    /// `true` if the object that keeps it selects elements at random.
    pub sampled: bool,
    /// `true` if the method's object keeps it in a container that its class never empties.
    pub stays: bool,
    /// Site of the store.
    pub site: Site,
}

/// Item of a `with` statement.
#[derive(Clone, Debug)]
pub struct With {
    /// Span of the item.
    pub item: Span,
    /// Full name, if it is imported.
    pub path: Option<String>,
    /// `true` if the item is a call.
    pub called: bool,
    /// Site of the statement.
    pub site: Site,
}

/// `except` clause.
#[derive(Clone, Debug)]
pub struct Handler {
    /// Span of the clause.
    pub span: Span,
    /// Span from `except` to the colon.
    pub header: Span,
    /// Full names of the caught types; empty for a bare `except`.
    pub types: Vec<String>,
    /// Name that the exception is bound to.
    pub name: Option<String>,
    /// `try` statement that it belongs to.
    pub tried: TryId,
    /// `true` if it contains a raise, exit, return or break.
    pub leaves: bool,
    /// `true` if it contains a raise or exit.
    pub raises: bool,
    /// `true` if it only prints, logs, or has no effect.
    pub only_tells: bool,
    /// `true` if it searches the message for `out of memory`.
    pub reads_message: bool,
    /// Site of the clause.
    pub site: Site,
}

/// Assignment that counts or resets.
#[derive(Clone, Debug)]
pub struct Update {
    /// Name.
    pub name: String,
    /// Increment of `+= n`; `None` for another assignment.
    pub adds: Option<i64>,
    /// Literal that is assigned.
    pub sets: Option<i64>,
    /// Site of the assignment.
    pub site: Site,
}

/// Gradient accumulation window: the loop iterations that make one optimizer step.
#[derive(Clone, Debug)]
pub struct Window {
    /// Loop, if it is in the text.
    pub looped: Option<LoopId>,
    /// Branch that contains the optimizer step.
    pub guard: GuardId,
    /// Counter test of that branch.
    pub counted: CounterTest,
    /// `true` if it also steps under another condition, such as the last batch.
    pub alternative: bool,
    /// Operation index of the step.
    pub step: usize,
    /// Operation indices of the backward passes of an iteration.
    pub backwards: Vec<usize>,
    /// Operation indices that clear gradients in every iteration.
    pub clears_each_iteration: Vec<usize>,
    /// `true` if the remaining micro-batches are stepped after the loop.
    pub flushed: bool,
    /// `true` if the loop also steps outside of the window.
    pub steps_elsewhere: bool,
}

/// Facts of one source text.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Source text.
    pub text: Arc<str>,
    /// Syntax errors.
    pub problems: Vec<Problem>,
    /// Functions; the first is the module's body.
    pub functions: Vec<Function>,
    /// Classes.
    pub classes: Vec<Class>,
    /// Loops.
    pub loops: Vec<Loop>,
    /// Conditional branches.
    pub guards: Vec<Guard>,
    /// Models, and parts of models that the analysis distinguishes.
    pub models: Vec<Model>,
    /// Training operations in order.
    pub ops: Vec<Op>,
    /// Calls in order.
    pub calls: Vec<Call>,
    /// Arguments of model calls.
    pub model_arguments: Vec<ModelArgument>,
    /// Stores of values.
    pub stores: Vec<Store>,
    /// Elements of displays that are stored as a whole: those of `x.append((a, b))`.
    pub stored_parts: Vec<Store>,
    /// Items of `with` statements.
    pub withs: Vec<With>,
    /// `except` clauses.
    pub handlers: Vec<Handler>,
    /// Counter updates.
    pub updates: Vec<Update>,
    /// Searches in exception messages.
    pub searches: Vec<MessageSearch>,
    /// Gradient accumulation windows.
    pub windows: Vec<Window>,
    /// Indices in `calls` of the calls that create loaders.
    pub loaders: Vec<usize>,
    /// Indices in `calls` of the calls that create gradient scalers.
    pub scalers: Vec<usize>,
    /// `from … import` statements.
    pub imports: Vec<ImportFrom>,
    /// Comments that mention memfit.
    pub comments: Vec<Comment>,
    /// Names of functions that are called while gradients are off.
    pub called_without_grad: Vec<String>,
    /// `true` if it reads the gradients of parameters: `p.grad`.
    pub reads_gradients: bool,
    /// Test of the first `if __name__ == "__main__":`.
    pub main_guard: Option<Span>,
}
