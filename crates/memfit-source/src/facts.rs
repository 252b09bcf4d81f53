//! The facts of one source text: what rules query. Made once, by one walk.

mod fed;
mod text;
mod value;
mod weights;

use std::sync::Arc;

use crate::position::Span;

pub use fed::Fed;
pub use text::{Comment, ImportFrom, MessageSearch, Problem};
pub use value::*;
pub use weights::{Model, Overlap, Weights};

mod query;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u32);

        impl $name {
            #[allow(dead_code, reason = "ids of what is only compared have no use for it")]
            pub(crate) const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A function, a method, or the body of the module, which is the first.
    FunctionId,
    /// A class.
    ClassId,
    /// A loop.
    LoopId,
    /// A branch that may not be taken.
    GuardId,
    /// An `except`.
    HandlerId,
    /// A `try`.
    TryId,
    /// A call that makes a loader.
    LoaderId,
    /// A call that makes a gradient scaler.
    ScalerId,
    /// A model, or a part of one.
    ModelId,
}

impl FunctionId {
    /// The body of the module; of what is done by a function that is called, one of another file.
    pub const MODULE: Self = Self(0);
}

/// The circumstances in which something is done.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The function.
    pub function: FunctionId,
    /// The innermost loop.
    pub looped: Option<LoopId>,
    /// The innermost branch.
    pub guard: Option<GuardId>,
    /// The `except` that it is in.
    pub handler: Option<HandlerId>,
    /// The `try` whose body it is in.
    pub tried: Option<TryId>,
    /// Whether gradients are recorded.
    pub grad: Grad,
    /// The type that autocast casts to, where it is on.
    pub autocast: Option<Option<DType>>,
    /// A framework accumulates, scales and steps by itself here.
    pub managed: bool,
    /// In the order of execution, as far as it is one.
    pub order: u32,
}

/// A function, a method, or the body of the module.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name, with its class: `Trainer.step`; empty for the module.
    pub name: String,
    /// The whole definition.
    pub span: Span,
    /// The class that it is a method of.
    pub class: Option<ClassId>,
    /// The names of its parameters.
    pub parameters: Vec<String>,
    /// The full names of its decorators, as far as they can be told.
    pub decorators: Vec<String>,
    /// Whether gradients are recorded in it, by its decorators and by those who call it.
    pub grad: Grad,
    /// Whether any caller is in sight.
    pub called: bool,
    /// The first statement, and how far in it stands.
    pub body: Span,
    /// The graphs that stand for its parameters.
    pub inputs: Vec<Graph>,
}

/// A class.
#[derive(Clone, Debug)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// The full names of its bases, as far as they can be told.
    pub bases: Vec<String>,
    /// A kind of `torch.nn.Module`.
    pub is_module: bool,
    /// A kind of `torch.utils.data.Dataset`.
    pub is_dataset: bool,
    /// A framework runs its steps: it switches gradients and calls the optimizer.
    pub is_managed: bool,
    /// It builds batch normalisation.
    pub has_batch_norm: bool,
}

/// What a loop goes over.
#[derive(Clone, Debug, PartialEq)]
pub enum Over {
    /// The batches of a loader.
    Loader(Option<LoaderId>),
    /// `range`, with the number of rounds where it is known.
    Range(Option<i64>),
    /// No end.
    Endless,
    /// A list or tuple written out, and how long it is.
    Literal(usize),
    /// Anything else.
    Other,
}

/// A loop.
#[derive(Clone, Debug)]
pub struct Loop {
    /// The whole statement.
    pub span: Span,
    /// Its first line: from the keyword to the end of what is looped over.
    pub header: Span,
    /// The loop around it, in the same function.
    pub parent: Option<LoopId>,
    /// Its function.
    pub function: FunctionId,
    /// `while`, not `for`.
    pub is_while: bool,
    /// What it goes over.
    pub over: Over,
    /// What it goes over, as it was written.
    pub iterable: Span,
    /// The names that each round binds.
    pub targets: Vec<String>,
    /// The index that `enumerate` counts, and where it starts, if that is known.
    pub index: Option<(String, Option<i64>)>,
    /// The names bound in its body, its targets not among them.
    pub assigned: Vec<String>,
    /// The containers that its body empties.
    pub emptied: Vec<String>,
    /// Where it stands.
    pub place: Place,
    /// The order at its end.
    pub end: u32,
}

/// How a counter in a test got its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// By nothing in sight, and nothing out of sight could.
    Nowhere,
    /// By a loop's header.
    Target(LoopId),
    /// By an assignment, and the loop in which that stands.
    Assigned(Option<LoopId>),
    /// By the caller.
    Parameter,
    /// Otherwise, or not in sight.
    Elsewhere,
}

/// When a counted test is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residue {
    /// `… % k == 0`
    Zero,
    /// `… % k == k - 1`
    Last,
    /// `count == k` or `count >= k`, for a count that is reset.
    Reached,
    /// Another rest.
    Other,
}

/// A test that is true once every so many rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// The whole comparison.
    pub span: Span,
    /// The name that is counted.
    pub counter: String,
    /// That name, in the test.
    pub counter_span: Span,
    /// What stands left of `%`.
    pub dividend: Span,
    /// How it got its value.
    pub bound: Bound,
    /// A constant added to it.
    pub offset: i64,
    /// It is divided first: not each round counts one.
    pub scaled: bool,
    /// The number of rounds, as it was written.
    pub period: Span,
    /// The number of rounds, where it is known.
    pub rounds: Option<i64>,
    /// When it is true.
    pub residue: Residue,
}

/// A test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuardTest {
    /// The part of it that counts.
    pub counted: Option<Counted>,
    /// It is also true when something else is.
    pub alternative: bool,
    /// It is only true when something else is too.
    pub condition: bool,
    /// It looks for text in the message of an exception.
    pub message: Option<String>,
    /// It is the opposite that counts.
    pub negated: bool,
}

/// A branch that may not be taken.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The branch around it.
    pub parent: Option<GuardId>,
    /// The test, in full.
    pub test: Span,
    /// What it tests.
    pub what: Arc<GuardTest>,
    /// It is taken when the test fails.
    pub negated: bool,
    /// The loop that it stands in.
    pub looped: Option<LoopId>,
}

/// A thing that training does.
#[derive(Clone, Debug, PartialEq)]
pub enum OpKind {
    /// A model is called.
    Forward,
    /// `backward()`
    Backward(Backward),
    /// An optimizer steps, through a scaler or not.
    Step {
        /// `scaler.step(optimizer)`
        scaled: bool,
        /// With a closure, which may do anything.
        closure: bool,
    },
    /// Gradients are cleared; `to_zero` by writing zeros.
    ZeroGrad {
        /// `set_to_none=False`
        to_zero: bool,
    },
    /// `scaler.unscale_(optimizer)`
    Unscale,
    /// `scaler.update()`
    ScalerUpdate,
    /// Gradients are clipped.
    Clip,
    /// A scheduler steps.
    SchedulerStep,
    /// `torch.autograd.grad`
    AutogradGrad,
    /// `train()`
    TrainMode,
    /// `eval()`
    EvalMode,
    /// Gradients of parameters are written: `p.grad = …`, `p.grad *= …`
    WriteGrad {
        /// Of one parameter by its number.
        single: bool,
        /// `None` is written.
        clears: bool,
    },
    /// Gradient synchronisation is put off.
    NoSync,
}

/// A backward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Backward {
    /// What it starts from.
    pub loss: Value,
    /// What it starts from, as it was written.
    pub loss_span: Span,
    /// The forward passes that it goes through, in the order in which they ran: whose parameters each uses.
    /// Nothing where they cannot be told.
    pub passes: Vec<Weights>,
    /// `retain_graph=True`, with its place.
    pub retain: Option<Span>,
    /// `create_graph=True`, with its place.
    pub create: Option<Span>,
    /// It goes through a graph that an earlier round has freed.
    pub through_freed: bool,
    /// A framework does it, and scales the loss by itself.
    pub managed: bool,
    /// The loss is the sum of those of an earlier loop's rounds.
    pub of_loop: Option<LoopId>,
    /// All that it goes through was made in the same round of the innermost loop.
    pub of_round: bool,
    /// A part of what it goes through was made before the innermost loop began.
    pub from_outside: bool,
}

/// A thing that training does, where it is done.
#[derive(Clone, Debug)]
pub struct Op {
    /// What.
    pub kind: OpKind,
    /// The call.
    pub span: Span,
    /// On what, as it was written: `optimizer`, `self.model`.
    pub receiver: String,
    /// The parameters that it goes to: those that an optimizer holds, a backward pass reaches, a model has.
    pub weights: Weights,
    /// Where.
    pub place: Place,
    /// It is done by a function that is called here.
    pub via: Option<FunctionId>,
    /// And there, in a loop.
    pub deep: bool,
}

/// An argument of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// Its keyword.
    pub name: Option<Arc<str>>,
    /// With its keyword.
    pub span: Span,
    /// The expression alone.
    pub value_span: Span,
    /// What is known of it.
    pub value: Value,
    /// `*args` or `**kwargs`
    pub starred: bool,
}

/// A call.
#[derive(Clone, Debug)]
pub struct Call {
    /// In full.
    pub span: Span,
    /// What is called, as it was written.
    pub callee: Span,
    /// The full name of what is called, where it is imported.
    pub path: Option<Arc<str>>,
    /// The method's name, where it is one.
    pub method: Option<Arc<str>>,
    /// What the method is called on.
    pub receiver: Option<Receiver>,
    /// The function of this project that is called.
    pub function: Option<FunctionId>,
    /// What is known of what is called, where it is neither imported nor a method.
    pub target: Value,
    /// The arguments in order.
    pub arguments: Vec<Argument>,
    /// From the opening parenthesis to the closing one.
    pub parentheses: Span,
    /// What comes of it.
    pub result: Value,
    /// It is a statement of its own.
    pub is_statement: bool,
    /// Where.
    pub place: Place,
}

/// What a method is called on.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// As it was written.
    pub span: Span,
    /// What is known of it.
    pub value: Value,
}

impl Call {
    /// The argument with this keyword.
    pub fn keyword(&self, name: &str) -> Option<&Argument> {
        self.arguments.iter().find(|argument| argument.name.as_deref() == Some(name))
    }

    /// The argument at this position, or with this keyword.
    pub fn argument(&self, position: usize, name: &str) -> Option<&Argument> {
        let positional =
            self.arguments.iter().filter(|argument| argument.name.is_none() && !argument.starred);
        positional.into_iter().nth(position).or_else(|| self.keyword(name))
    }

    /// Whether arguments may be hidden in `*args` or `**kwargs`.
    pub fn is_open(&self) -> bool {
        self.arguments.iter().any(|argument| argument.starred)
    }

    /// Whether what is called has this full name.
    pub fn is(&self, path: &str) -> bool {
        self.path.as_deref() == Some(path)
    }

    /// Whether a method of this name is called.
    pub fn is_method(&self, name: &str) -> bool {
        self.method.as_deref() == Some(name)
    }
}

/// How a value is put somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `x.append(v)`, `x.extend(v)`, `x += [v]`
    Append,
    /// `x = torch.cat([x, v])`
    Join,
    /// It is given to a method that puts it into a container of its object.
    Give,
    /// `x[key] = v`
    Item,
    /// `x += v`, `x = x + v`
    Add,
    /// `x = v`
    Assign,
}

/// A value put somewhere.
#[derive(Clone, Debug)]
pub struct Store {
    /// How.
    pub how: How,
    /// Where to, as it was written: `losses`, `self.losses`.
    pub target: String,
    /// The whole statement or call.
    pub span: Span,
    /// The value.
    pub value_span: Span,
    /// What is known of it.
    pub value: Value,
    /// The target before.
    pub target_value: Value,
    /// The outermost loop whose rounds add up in the target.
    pub grows: Option<LoopId>,
    /// What became of the value's graph by the end of the function.
    pub graph: GraphState,
    /// What had become of it by the time of the store.
    pub graph_then: GraphState,
    /// Whether anything unseen may use the target later.
    pub escapes: bool,
    /// Its graph goes back into the round before: who holds the last value holds all of them.
    pub carried: bool,
    /// The method that puts it there, and where to.
    pub by: Option<(FunctionId, Arc<str>)>,
    /// Where.
    pub place: Place,
}

/// A `with` and one thing that it enters.
#[derive(Clone, Debug)]
pub struct With {
    /// The thing.
    pub item: Span,
    /// Its full name, where it is imported.
    pub path: Option<String>,
    /// It is called.
    pub called: bool,
    /// Where.
    pub place: Place,
}

/// An `except`.
#[derive(Clone, Debug)]
pub struct Handler {
    /// In full.
    pub span: Span,
    /// From `except` to the colon.
    pub header: Span,
    /// What it catches, by full names; empty for everything.
    pub types: Vec<String>,
    /// The name that the exception is bound to.
    pub name: Option<String>,
    /// The `try` that it belongs to.
    pub tried: TryId,
    /// Something in it raises, exits, returns or breaks.
    pub leaves: bool,
    /// Something in it raises or exits.
    pub raises: bool,
    /// What it does is print, log, or nothing.
    pub only_tells: bool,
    /// It looks into the message for `out of memory`.
    pub reads_message: bool,
    /// Where.
    pub place: Place,
}

/// An assignment that counts or resets.
#[derive(Clone, Debug)]
pub struct Update {
    /// The name.
    pub name: String,
    /// `+= n` where n is known; nothing for another assignment.
    pub adds: Option<i64>,
    /// A literal that is assigned.
    pub sets: Option<i64>,
    /// Where.
    pub place: Place,
}

/// A window: the rounds of a loop that make one optimizer step.
#[derive(Clone, Debug)]
pub struct Window {
    /// The loop, where it is in sight.
    pub looped: Option<LoopId>,
    /// The branch in which the optimizer steps.
    pub guard: GuardId,
    /// The test.
    pub counted: Counted,
    /// It also steps when something else is true, as at the last batch.
    pub alternative: bool,
    /// The step.
    pub step: usize,
    /// The backward passes of a round.
    pub backwards: Vec<usize>,
    /// The places in a round that clear gradients whatever the count.
    pub clears_each_round: Vec<usize>,
    /// What is left over at the end is stepped after the loop.
    pub flushed: bool,
    /// A step also happens in the loop outside of the window.
    pub steps_elsewhere: bool,
}

/// The facts of one source text.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The text.
    pub text: Arc<str>,
    /// What could not be read.
    pub problems: Vec<Problem>,
    /// Functions; the first is the module.
    pub functions: Vec<Function>,
    /// Classes.
    pub classes: Vec<Class>,
    /// Loops.
    pub loops: Vec<Loop>,
    /// Branches.
    pub guards: Vec<Guard>,
    /// Models and parts of models, as far as they are told apart.
    pub models: Vec<Model>,
    /// What training does, in order.
    pub ops: Vec<Op>,
    /// Calls, in order.
    pub calls: Vec<Call>,
    /// The arguments that models are called with.
    pub fed: Vec<Fed>,
    /// Values put somewhere.
    pub stores: Vec<Store>,
    /// `with`
    pub withs: Vec<With>,
    /// `except`
    pub handlers: Vec<Handler>,
    /// Counting.
    pub updates: Vec<Update>,
    /// Searches in messages.
    pub searches: Vec<MessageSearch>,
    /// Windows.
    pub windows: Vec<Window>,
    /// The calls that make loaders, as indices of calls.
    pub loaders: Vec<usize>,
    /// The calls that make scalers.
    pub scalers: Vec<usize>,
    /// Imports of names.
    pub imports: Vec<ImportFrom>,
    /// Comments that speak of memfit.
    pub comments: Vec<Comment>,
    /// Names of functions that are called while gradients are off.
    pub called_without_grad: Vec<String>,
}
