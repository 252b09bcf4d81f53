//! What is known of a value. Unknown is a value too: most things are, and stay so.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::facts::{Argument, ClassId, FunctionId, GuardTest, HandlerId, LoaderId, ScalerId, Weights};

/// Whether gradients are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grad {
    /// Yes.
    On,
    /// No: under `no_grad` or `inference_mode`.
    Off,
    /// It depends on the caller.
    Unknown,
}

/// Where a tensor's bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// Cannot be told.
    #[default]
    Unknown,
    /// In the host's memory.
    Cpu,
    /// On a GPU, where there is one.
    Cuda,
    /// On whatever a variable named like a device says: a GPU wherever memory matters.
    Named,
}

impl Device {
    /// On a GPU, as far as anyone can tell.
    pub const fn is_gpu(self) -> bool {
        matches!(self, Self::Cuda | Self::Named)
    }
}

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// float16
    Half,
    /// bfloat16
    BFloat16,
    /// float32
    Float,
    /// Any other.
    Other,
}

/// A loss function, as far as rules tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// Takes logits and applies `log_softmax` itself.
    CrossEntropy,
    /// Takes logits and applies `sigmoid` itself.
    BceWithLogits,
    /// Another, or one that is known by its name only.
    Other,
}

/// What a value is.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Kind {
    /// Cannot be told.
    #[default]
    Unknown,
    /// A name that nothing binds.
    Undefined,
    /// `None`
    None,
    /// A literal.
    Bool(bool),
    /// A literal, or arithmetic on literals.
    Int(i64),
    /// Another number.
    Number,
    /// A literal.
    Str(Arc<str>),
    /// A device.
    Device(Device),
    /// A type of elements.
    DType(DType),
    /// A tensor.
    Tensor,
    /// A model or a layer.
    Module,
    /// A function that is called with a prediction and a target.
    Criterion {
        /// Which.
        which: Criterion,
        /// `reduction="sum"`
        sums: bool,
    },
    /// An optimizer.
    Optimizer,
    /// A learning-rate scheduler.
    Scheduler,
    /// A gradient scaler.
    Scaler(Option<ScalerId>),
    /// A data loader.
    Loader(Option<LoaderId>),
    /// A list, dict, set or deque of this file's making.
    Container {
        /// It holds so many at most.
        bounded: bool,
    },
    /// A tuple whose parts are known.
    Tuple(Arc<[Value]>),
    /// A function of the project.
    Function(FunctionId),
    /// A method, and the object that it belongs to is `self`.
    Class(ClassId),
    /// An object of a class of this file that is no module.
    Object(ClassId),
    /// An object of a class of another module that is no module of torch, by the class's full name.
    Imported(Arc<str>),
    /// Something imported, by its full name.
    Path(Arc<str>),
    /// The outcome of a test that may guard a step.
    Test(Arc<GuardTest>),
    /// What `state_dict()` gave: the weights themselves.
    StateDict,
    /// A tokenizer.
    Tokenizer,
    /// What an `except` caught.
    Exception(HandlerId),
    /// The text of what an `except` caught.
    ExceptionText(HandlerId),
    /// A context that switches gradients.
    GradContext(Grad),
    /// An autocast context, and the type it casts to.
    Autocast(Option<DType>),
    /// A context in which a framework accumulates, scales and steps by itself.
    Managed,
    /// What `functools.partial` gave.
    Partial(Arc<Partial>),
}

/// A call that waits for the rest of its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// What will be called.
    pub of: Value,
    /// The arguments that it has already.
    pub arguments: Vec<Argument>,
}

/// What else is known, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Divided, or multiplied by a fraction, on its way.
    pub const DIVIDED: Self = Self(1);
    /// A single number: a loss.
    pub const SCALAR: Self = Self(1 << 1);
    /// A part of a larger tensor whose storage it keeps.
    pub const VIEW: Self = Self(1 << 2);
    /// Cut from its graph by `detach()`.
    pub const DETACHED: Self = Self(1 << 3);
    /// Computed while gradients were off.
    pub const NO_GRAD_BUILT: Self = Self(1 << 4);
    /// Went through a softmax last.
    pub const SOFTMAX: Self = Self(1 << 5);
    /// Went through a sigmoid last.
    pub const SIGMOID: Self = Self(1 << 6);
    /// An image as it came from its file.
    pub const FULL_IMAGE: Self = Self(1 << 7);
    /// Summed over the batch, not averaged.
    pub const SUMMED: Self = Self(1 << 8);
    /// Through `GradScaler.scale`.
    pub const SCALED: Self = Self(1 << 9);
    /// Computed by code that cannot be seen.
    pub const OPAQUE: Self = Self(1 << 10);
    /// A model whose weights were cast to half precision.
    pub const HALF: Self = Self(1 << 11);
    /// Wrapped for data parallelism.
    pub const DISTRIBUTED: Self = Self(1 << 12);
    /// Comes from a model's call.
    pub const OUTPUT: Self = Self(1 << 13);
    /// A whole batch as a loader gave it, or a part of it.
    pub const BATCH: Self = Self(1 << 14);
    /// Passed through `float()` while still on the host.
    pub const WIDENED: Self = Self(1 << 15);
    /// Known by its name alone.
    pub const BY_NAME: Self = Self(1 << 16);
    /// A model that holds batch normalisation.
    pub const BATCH_NORM: Self = Self(1 << 17);
    /// Drawn by lot: another each time.
    pub const RANDOM: Self = Self(1 << 18);
    /// A model of which some or all parameters do not require gradients.
    pub const FROZEN: Self = Self(1 << 19);

    /// Its elements were bytes: it was divided by 255.
    pub const BYTES: Self = Self(1 << 20);
    /// The number of batches that a loader has.
    pub const LENGTH: Self = Self(1 << 21);
    /// A model's weights, one by one.
    pub const WEIGHTS: Self = Self(1 << 22);
    /// Of weights: copied.
    pub const COPIED: Self = Self(1 << 23);

    /// Whether all of these are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These too.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without these.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those that both have.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The one number by which a loss was divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisor {
    /// A known one.
    Number(i64),
    /// The number of batches that a loader has.
    Length,
}

/// Which forward passes a value hangs on.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// Their numbers, in ascending order.
    pub(crate) ids: SmallVec<[u32; 4]>,
    /// There may be others, or these may be cut.
    pub(crate) unknown: bool,
}

impl Clone for Graph {
    // Values are copied at every turn, and a slice of numbers is copied at once.
    fn clone(&self) -> Self {
        Self { ids: SmallVec::from_slice(&self.ids), unknown: self.unknown }
    }
}

/// More forward passes than this are not told apart.
const MOST_IDS: usize = 12;

impl Graph {
    pub(crate) fn none() -> Self {
        Self::default()
    }

    pub(crate) fn unknown() -> Self {
        Self { ids: SmallVec::new(), unknown: true }
    }

    pub(crate) fn one(id: u32) -> Self {
        Self { ids: smallvec![id], unknown: false }
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        if other.ids.is_empty() {
            return Self { ids: self.ids.clone(), unknown: self.unknown || other.unknown };
        }
        let mut ids = self.ids.clone();
        ids.extend_from_slice(&other.ids);
        ids.sort_unstable();
        ids.dedup();
        let full = ids.len() > MOST_IDS;
        if full {
            ids.drain(..ids.len() - MOST_IDS);
        }
        Self { ids, unknown: self.unknown || other.unknown || full }
    }

    /// One of two, whichever way the program went.
    pub(crate) fn either(&self, other: &Self) -> Self {
        if self == other {
            return self.clone();
        }
        let mut both = self.union(other);
        both.unknown = true;
        both
    }

    /// This, or no graph at all.
    pub(crate) fn clone_if(&self, there: bool) -> Self {
        if there { self.clone() } else { Self::none() }
    }

    pub(crate) fn clouded(mut self) -> Self {
        self.unknown = true;
        self
    }

    /// Whether a backward pass through one may go through a part of the other.
    pub fn may_share(&self, other: &Self) -> bool {
        self.unknown || other.unknown || self.ids.iter().any(|id| other.ids.contains(id))
    }

    /// Hangs on something that is known.
    pub fn is_told(&self) -> bool {
        !self.ids.is_empty() && !self.unknown
    }

    /// Hangs on nothing, for certain.
    pub fn is_none(&self) -> bool {
        self.ids.is_empty() && !self.unknown
    }
}

/// The state of what a value hangs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphState {
    /// No graph.
    None,
    /// A graph whose activations are alive.
    Live,
    /// Alive, and a backward pass that was told to retain it has been through.
    Retained,
    /// A backward pass has freed it.
    Freed,
    /// Cannot be told.
    #[default]
    Unknown,
}

/// All that is known of a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Value {
    /// What it is.
    pub kind: Kind,
    /// What it hangs on.
    pub graph: Graph,
    /// Where it is.
    pub device: Device,
    /// What else is known.
    pub flags: Flags,
    /// The loader that it came from.
    pub loader: Option<LoaderId>,
    /// The parameters that a model has, that an optimizer holds, that an iterator gives.
    pub weights: Weights,
    /// The number that it was divided by, where that was done once.
    pub divisor: Option<Divisor>,
    /// The class of this file that a model is of.
    pub(crate) class: Option<ClassId>,
}

impl Value {
    /// Nothing is known.
    pub fn unknown() -> Self {
        Self { graph: Graph::unknown(), ..Self::default() }
    }

    /// Something without a graph.
    pub fn of(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    pub(crate) fn tensor(graph: Graph) -> Self {
        Self { kind: Kind::Tensor, graph, ..Self::default() }
    }

    #[must_use]
    pub(crate) fn on(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    #[must_use]
    pub(crate) fn with(mut self, flags: Flags) -> Self {
        self.flags = self.flags.with(flags);
        self
    }

    #[must_use]
    pub(crate) fn without(mut self, flags: Flags) -> Self {
        self.flags = self.flags.without(flags);
        self
    }

    /// Whether a flag is set.
    pub const fn is(&self, flag: Flags) -> bool {
        self.flags.has(flag)
    }

    /// A number, if it is a literal one.
    pub const fn int(&self) -> Option<i64> {
        match self.kind {
            Kind::Int(number) => Some(number),
            _ => None,
        }
    }

    /// A truth value, if it is a literal one.
    pub const fn truth(&self) -> Option<bool> {
        match self.kind {
            Kind::Bool(truth) => Some(truth),
            Kind::None => Some(false),
            Kind::Int(number) => Some(number != 0),
            _ => None,
        }
    }

    /// A text, if it is a literal one.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The full name of what it was imported as.
    pub fn path(&self) -> Option<&str> {
        match &self.kind {
            Kind::Path(path) => Some(path),
            _ => None,
        }
    }

    /// Nothing can be told of what it is.
    pub const fn is_unknown(&self) -> bool {
        matches!(self.kind, Kind::Unknown | Kind::Undefined)
    }

    /// A model or a layer.
    pub const fn is_module(&self) -> bool {
        matches!(self.kind, Kind::Module)
    }

    /// The numbers of all graphs that it hangs on, and its parts.
    pub(crate) fn graph_ids(&self, into: &mut Vec<u32>) {
        into.extend_from_slice(&self.graph.ids);
        if let Kind::Tuple(parts) = &self.kind {
            parts.iter().for_each(|part| part.graph_ids(into));
        }
        into.sort_unstable();
        into.dedup();
    }

    /// Hangs it, and its parts, on other graphs.
    pub(crate) fn on_graphs(&mut self, graph: &dyn Fn(&Graph) -> Graph) {
        self.graph = graph(&self.graph);
        if let Kind::Tuple(parts) = &mut self.kind {
            let mut hung: Vec<Self> = parts.to_vec();
            for part in &mut hung {
                part.on_graphs(graph);
            }
            *parts = hung.into();
        }
    }

    /// Cuts it, and its parts, off all graphs; what hung on one gets these flags.
    pub(crate) fn cut(&mut self, flags: Flags) {
        if !self.graph.is_none() {
            self.flags = self.flags.with(flags);
            self.graph = Graph::none();
        }
        if let Kind::Tuple(parts) = &mut self.kind {
            let mut cut: Vec<Self> = parts.to_vec();
            for part in &mut cut {
                part.cut(flags);
            }
            *parts = cut.into();
        }
    }

    /// As another file knows it: what has its number in one file means nothing in the other.
    pub(crate) fn abroad(mut self) -> Self {
        self.loader = None;
        self.class = None;
        self.weights = Weights::default();
        self.kind = match self.kind {
            Kind::Loader(_) => Kind::Loader(None),
            Kind::Scaler(_) => Kind::Scaler(None),
            Kind::Function(_)
            | Kind::Class(_)
            | Kind::Object(_)
            | Kind::Imported(_)
            | Kind::Test(_)
            | Kind::Exception(_)
            | Kind::ExceptionText(_)
            | Kind::Partial(_) => Kind::Unknown,
            Kind::Tuple(parts) => Kind::Tuple(parts.iter().cloned().map(Self::abroad).collect()),
            kind => kind,
        };
        self
    }

    /// One of two, whichever way the program went.
    pub(crate) fn either(&self, other: &Self) -> Self {
        if self == other {
            return self.clone();
        }
        // `x = None` is how code says "not yet": what it may be later is the better knowledge.
        let kind = match (&self.kind, &other.kind) {
            (a, b) if a == b => a.clone(),
            (Kind::None | Kind::Undefined, kind) | (kind, Kind::None | Kind::Undefined) => kind.clone(),
            (Kind::Scaler(_), Kind::Scaler(_)) => Kind::Scaler(None),
            (Kind::Loader(_), Kind::Loader(_)) => Kind::Loader(None),
            (Kind::Tensor, Kind::Number) | (Kind::Number, Kind::Tensor) => Kind::Tensor,
            (Kind::Container { .. }, Kind::Container { .. }) => Kind::Container { bounded: true },
            _ => Kind::Unknown,
        };
        let nothing = |value: &Self| matches!(value.kind, Kind::None | Kind::Undefined);
        let (device, flags, loader) = if nothing(self) {
            (other.device, other.flags, other.loader)
        } else if nothing(other) {
            (self.device, self.flags, self.loader)
        } else {
            let device = match (self.device, other.device) {
                (a, b) if a == b => a,
                // `.cuda()` in one branch is what happens where there is a GPU.
                (Device::Cuda, _) | (_, Device::Cuda) => Device::Named,
                _ => Device::Unknown,
            };
            let loader = self.loader.filter(|loader| other.loader == Some(*loader));
            (device, self.flags.common(other.flags), loader)
        };
        let opaque = self.is(Flags::OPAQUE) || other.is(Flags::OPAQUE);
        let divided = self.is(Flags::DIVIDED) != other.is(Flags::DIVIDED);
        let flags = if opaque || divided { flags.with(Flags::OPAQUE) } else { flags };
        let class = if nothing(self) {
            other.class
        } else {
            self.class.filter(|class| nothing(other) || other.class == Some(*class))
        };
        let weights = if nothing(self) {
            other.weights.clone()
        } else if nothing(other) {
            self.weights.clone()
        } else {
            self.weights.either(&other.weights)
        };
        let divisor = self.divisor.filter(|divisor| other.divisor == Some(*divisor));
        let graph = self.graph.either(&other.graph);
        Self { kind, graph, device, flags, loader, weights, divisor, class }
    }
}

/// Whether an object of this class makes an image smaller, as a rule.
pub fn shrinks(class: &str) -> bool {
    class.starts_with("torchvision.transforms.")
        && ["Resize", "RandomResizedCrop", "CenterCrop", "RandomCrop"]
            .contains(&class.rsplit('.').next().unwrap_or(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_one_way_knows_is_not_known() {
        let a = Value::tensor(Graph::one(1)).with(Flags::SCALAR);
        let b = Value::tensor(Graph::none());
        let either = a.either(&b);
        assert_eq!(either.kind, Kind::Tensor);
        assert!(either.graph.unknown && !either.is(Flags::SCALAR));
        assert_eq!(a.either(&a), a);
        assert_eq!(Value::of(Kind::None).either(&a).kind, Kind::Tensor);
    }

    #[test]
    fn graphs_are_bounded() {
        let mut graph = Graph::none();
        for id in 0..100 {
            graph = graph.union(&Graph::one(id));
        }
        assert!(graph.ids.len() <= MOST_IDS && graph.unknown);
    }
}
