//! Abstract values of the static analysis. Most values are unknown, and nothing is concluded from them.

use std::sync::Arc;

use crate::facts::{
    Argument, ClassId, Divisor, FunctionId, Graph, GuardTest, HandlerId, LoaderId, Named, ScalerId, Weights,
};
use crate::position::Span;

/// Autograd recording mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grad {
    /// Gradients are recorded.
    On,
    /// Gradients are not recorded: under `no_grad` or `inference_mode`.
    Off,
    /// The mode depends on the caller.
    Unknown,
}

/// Device of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// Unknown.
    #[default]
    Unknown,
    /// Host memory.
    Cpu,
    /// A GPU, if the machine has one.
    Cuda,
    /// The device in a variable named like one; a GPU wherever memory matters.
    Named,
}

impl Device {
    /// Returns `true` if the device is a GPU, as far as the source shows.
    pub const fn is_gpu(self) -> bool {
        matches!(self, Self::Cuda | Self::Named)
    }
}

/// Element type.
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

/// Loss function, as far as rules distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// Takes logits and applies `log_softmax` itself.
    CrossEntropy,
    /// Takes logits and applies `sigmoid` itself.
    BceWithLogits,
    /// Another loss, or one known by its name only.
    Other,
}

/// Kind of a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Kind {
    /// Unknown.
    #[default]
    Unknown,
    /// A name without a binding.
    Undefined,
    /// `None`
    None,
    /// A literal.
    Bool(bool),
    /// A literal, or arithmetic on literals.
    Int(i64),
    /// A number of unknown value.
    Number,
    /// A literal.
    Str(Arc<str>),
    /// A device object.
    Device(Device),
    /// An element type.
    DType(DType),
    /// A tensor.
    Tensor,
    /// A `torch.nn.Module`.
    Module,
    /// A loss function, which takes a prediction and a target.
    Criterion {
        /// Which loss.
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
    /// A list, dict, set or deque that this file creates.
    Container {
        /// `true` if it has a maximum length.
        bounded: bool,
    },
    /// A tuple with known elements.
    Tuple(Arc<[Value]>),
    /// A function of the project.
    Function(FunctionId),
    /// A class of the project; for a method, the class of `self`.
    Class(ClassId),
    /// An instance of a class of this file that is not a module.
    Object(ClassId),
    /// An instance of an imported class that is not a `torch.nn.Module`, by the class's full name.
    Imported(Arc<str>),
    /// An imported object, by its full name.
    Path(Arc<str>),
    /// The result of a test that may guard a step.
    Test(Arc<GuardTest>),
    /// The result of `state_dict()`, which aliases the weights.
    StateDict,
    /// A tokenizer.
    Tokenizer,
    /// An exception bound by `except … as`.
    Exception(HandlerId),
    /// The message of an exception bound by `except … as`.
    ExceptionText(HandlerId),
    /// A context manager that sets the autograd mode.
    GradContext(Grad),
    /// An autocast context manager with its element type.
    Autocast(Option<DType>),
    /// A context manager under which a framework accumulates, scales and steps by itself.
    Managed,
    /// The result of `functools.partial`.
    Partial(Arc<Partial>),
}

/// Partially applied function.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// The function.
    pub of: Value,
    /// Arguments bound so far.
    pub arguments: Vec<Argument>,
}

/// Bit set of further properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// Was divided, or multiplied by a fraction.
    pub const DIVIDED: Self = Self(1);
    /// A scalar tensor, such as a loss.
    pub const SCALAR: Self = Self(1 << 1);
    /// A view that keeps the storage of a larger tensor alive.
    pub const VIEW: Self = Self(1 << 2);
    /// Detached from its graph by `detach()`.
    pub const DETACHED: Self = Self(1 << 3);
    /// Computed while gradients were off.
    pub const NO_GRAD_BUILT: Self = Self(1 << 4);
    /// The last operation was a softmax.
    pub const SOFTMAX: Self = Self(1 << 5);
    /// The last operation was a sigmoid.
    pub const SIGMOID: Self = Self(1 << 6);
    /// An image at the resolution of its file.
    pub const FULL_IMAGE: Self = Self(1 << 7);
    /// Summed over the batch instead of averaged.
    pub const SUMMED: Self = Self(1 << 8);
    /// Scaled by `GradScaler.scale`.
    pub const SCALED: Self = Self(1 << 9);
    /// Computed by code outside the analysed text.
    pub const OPAQUE: Self = Self(1 << 10);
    /// A model with weights in half precision.
    pub const HALF: Self = Self(1 << 11);
    /// Wrapped for data parallelism.
    pub const DISTRIBUTED: Self = Self(1 << 12);
    /// Output of a model.
    pub const OUTPUT: Self = Self(1 << 13);
    /// A whole batch from a loader, or a part of it.
    pub const BATCH: Self = Self(1 << 14);
    /// Converted by `float()` while on the host.
    pub const WIDENED: Self = Self(1 << 15);
    /// Inferred from its name only.
    pub const BY_NAME: Self = Self(1 << 16);
    /// A model that contains batch normalisation.
    pub const BATCH_NORM: Self = Self(1 << 17);
    /// Random, and therefore different each time.
    pub const RANDOM: Self = Self(1 << 18);
    /// A model with parameters that do not require gradients.
    pub const FROZEN: Self = Self(1 << 19);
    /// Contained bytes: it was divided by 255.
    pub const BYTES: Self = Self(1 << 20);
    /// An option that is named as the size of a batch.
    pub const BATCH_SIZE: Self = Self(1 << 26);
    /// The number of batches of a loader.
    pub const LENGTH: Self = Self(1 << 21);
    /// A model's weights, one by one.
    pub const WEIGHTS: Self = Self(1 << 22);
    /// A copy of weights.
    pub const COPIED: Self = Self(1 << 23);
    /// The last operation was the logarithm of a softmax.
    pub const LOG_SOFTMAX: Self = Self(1 << 25);
    /// A model without parameters, such as an activation function.
    pub const PARAMETERLESS: Self = Self(1 << 27);
    /// A parameter of the function, or a view of one.
    pub const GIVEN: Self = Self(1 << 28);
    /// A number that was read from a tensor, or made of such numbers: it is cut from the tensor's graph.
    pub const READ: Self = Self(1 << 29);
    /// The length of a tensor's first dimension, such as the number of a batch's samples.
    pub const SAMPLES: Self = Self(1 << 30);
    /// Computed from the name's own value before, without its graph.
    pub const CUT_OFF: Self = Self(1 << 24);

    /// Returns `true` if all flags of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Union.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Difference.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Intersection.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// Abstract value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Value {
    /// Kind.
    pub kind: Kind,
    /// Autograd graph.
    pub graph: Graph,
    /// Device.
    pub device: Device,
    /// Further properties.
    pub flags: Flags,
    /// Loader that it came from.
    pub loader: Option<LoaderId>,
    /// Parameters that a model has, an optimizer holds or an iterator yields.
    pub weights: Weights,
    /// Number that it was divided by, if that happened once.
    pub divisor: Option<Divisor>,
    /// Span of that division.
    pub divided_at: Option<Span>,
    /// Class of a model, if it is of this file.
    pub(crate) class: Option<ClassId>,
    /// Join of a container's elements.
    pub(crate) items: Option<Arc<Self>>,
    /// Items of a dictionary display by their keys.
    pub(crate) named: Option<Named>,
}

impl Value {
    /// The unknown value.
    pub fn unknown() -> Self {
        Self { graph: Graph::unknown(), ..Self::default() }
    }

    /// A value without a graph.
    pub fn from_kind(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    pub(crate) fn tensor(graph: Graph) -> Self {
        Self { kind: Kind::Tensor, graph, ..Self::default() }
    }

    #[must_use]
    pub(crate) fn with_device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    #[must_use]
    pub(crate) fn with_flags(mut self, flags: Flags) -> Self {
        self.flags = self.flags.union(flags);
        self
    }

    #[must_use]
    pub(crate) fn without(mut self, flags: Flags) -> Self {
        self.flags = self.flags.without(flags);
        self
    }

    /// Join of a container's elements.
    pub fn elements(&self) -> Option<&Self> {
        self.items.as_deref()
    }

    /// An element of a container, if all are objects of a kind: models, optimizers, objects of a class.
    pub(crate) fn item(&self) -> Option<Self> {
        let item = self.items.as_deref()?;
        let pair = |parts: &[Self]| parts.iter().any(Self::is_object);
        let is_object = item.is_object() || matches!(&item.kind, Kind::Tuple(parts) if pair(parts));
        is_object.then(|| Self { weights: item.weights.clone().uncertain(), ..item.clone() })
    }

    pub(crate) const fn is_object(&self) -> bool {
        matches!(
            self.kind,
            Kind::Module
                | Kind::Criterion { .. }
                | Kind::Optimizer
                | Kind::Scheduler
                | Kind::Loader(_)
                | Kind::Object(_)
                | Kind::Imported(_)
                | Kind::Container { .. }
        )
    }

    /// Adds an element to a container.
    pub(crate) fn add_item(&mut self, item: &Self) {
        let joined = match &self.items {
            Some(known) => Self { graph: known.graph.of_elements(&item.graph), ..known.either(item) },
            None => item.clone(),
        };
        // Containers in containers are followed once.
        let inner = joined.items.as_ref().is_some_and(|inner| inner.items.is_some());
        self.items = Some(Arc::new(if inner { Self { items: None, ..joined } } else { joined }));
    }

    /// Returns `true` if a flag is set.
    pub const fn is(&self, flag: Flags) -> bool {
        self.flags.has(flag)
    }

    /// Integer, if it is known.
    pub const fn int(&self) -> Option<i64> {
        match self.kind {
            Kind::Int(number) => Some(number),
            _ => None,
        }
    }

    /// Truth value, if it is a known literal.
    pub const fn truth(&self) -> Option<bool> {
        match self.kind {
            Kind::Bool(truth) => Some(truth),
            Kind::None => Some(false),
            Kind::Int(number) => Some(number != 0),
            _ => None,
        }
    }

    /// Text, if it is a known literal.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Full name of an imported object.
    pub fn path(&self) -> Option<&str> {
        match &self.kind {
            Kind::Path(path) => Some(path),
            _ => None,
        }
    }

    /// Returns `true` if the kind is unknown.
    pub const fn is_unknown(&self) -> bool {
        matches!(self.kind, Kind::Unknown | Kind::Undefined)
    }

    const fn is_container(&self) -> bool {
        matches!(self.kind, Kind::Container { .. })
    }

    /// Returns `true` if it is a `torch.nn.Module`.
    pub const fn is_module(&self) -> bool {
        matches!(self.kind, Kind::Module)
    }

    /// Collects the ids of all graphs of it and its parts.
    pub(crate) fn graph_ids(&self, into: &mut Vec<u32>) {
        into.extend_from_slice(&self.graph.ids);
        if let Kind::Tuple(parts) = &self.kind {
            parts.iter().for_each(|part| part.graph_ids(into));
        }
        for item in self.named.iter().flat_map(Named::values) {
            item.graph_ids(into);
        }
        into.sort_unstable();
        into.dedup();
    }

    /// Replaces the graphs of it and its parts.
    pub(crate) fn map_graphs(&mut self, graph: &dyn Fn(&Graph) -> Graph) {
        self.change_parts(&|value| value.graph = graph(&value.graph));
    }

    /// Changes it and its parts.
    pub(super) fn change_parts(&mut self, change: &dyn Fn(&mut Self)) {
        change(self);
        if let Some(items) = &self.items {
            let mut items = Self::clone(items);
            items.change_parts(change);
            self.items = Some(Arc::new(items));
        }
        self.named = self.named.as_ref().map(|named| named.map(|item| item.change_parts(change)));
        if let Kind::Tuple(parts) = &mut self.kind {
            let mut changed: Vec<Self> = parts.to_vec();
            for part in &mut changed {
                part.change_parts(change);
            }
            *parts = changed.into();
        }
    }

    /// Forgets which graphs a container's elements have: they are those of another function.
    pub(crate) fn forget_item_graphs(&mut self) {
        if let Some(items) = &self.items {
            let mut items = Self::clone(items);
            items.map_graphs(&|graph| Graph::unknown().clone_if(!graph.is_none()));
            self.items = Some(Arc::new(items));
        }
        let unknown = |graph: &Graph| Graph::unknown().clone_if(!graph.is_none());
        self.named = self.named.as_ref().map(|named| named.map(|item| item.map_graphs(&unknown)));
    }

    /// Removes the graphs of it and its parts; values that had one get these flags.
    pub(crate) fn cut_graphs(&mut self, flags: Flags) {
        if !self.graph.is_none() {
            self.flags = self.flags.union(flags);
            self.graph = Graph::none();
        }
        if let Some(items) = &self.items {
            let mut items = Self::clone(items);
            items.cut_graphs(flags);
            self.items = Some(Arc::new(items));
        }
        self.named = self.named.as_ref().map(|named| named.map(|item| item.cut_graphs(flags)));
        if let Kind::Tuple(parts) = &mut self.kind {
            let mut cut_graphs: Vec<Self> = parts.to_vec();
            for part in &mut cut_graphs {
                part.cut_graphs(flags);
            }
            *parts = cut_graphs.into();
        }
    }

    /// Removes the ids that are meaningless in another file. The weights are those of the caller already.
    pub(crate) fn exported(mut self) -> Self {
        self.loader = None;
        self.class = None;
        self.divided_at = None;
        self.items = self.items.map(|items| Arc::new(Arc::unwrap_or_clone(items).exported()));
        self.named = self.named.map(|named| named.map(|item| *item = std::mem::take(item).exported()));
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
            Kind::Tuple(parts) => Kind::Tuple(parts.iter().cloned().map(Self::exported).collect()),
            kind => kind,
        };
        self
    }

    /// Join of two control-flow paths.
    pub(crate) fn either(&self, other: &Self) -> Self {
        if self == other {
            return self.clone();
        }
        // In Python code, `x = None` usually means "not yet", so the other kind is kept.
        let kind = match (&self.kind, &other.kind) {
            (a, b) if a == b => a.clone(),
            (Kind::None | Kind::Undefined, kind) | (kind, Kind::None | Kind::Undefined) => kind.clone(),
            (Kind::Scaler(_), Kind::Scaler(_)) => Kind::Scaler(None),
            (Kind::Criterion { sums: a, .. }, Kind::Criterion { sums: b, .. }) => {
                Kind::Criterion { which: Criterion::Other, sums: *a || *b }
            }
            (Kind::Loader(_), Kind::Loader(_)) => Kind::Loader(None),
            (Kind::Tensor, Kind::Number) | (Kind::Number, Kind::Tensor) => Kind::Tensor,
            (Kind::Container { .. }, Kind::Container { .. }) => Kind::Container { bounded: true },
            // Each of several `return generator, discriminator`.
            (Kind::Tuple(a), Kind::Tuple(b)) if a.len() == b.len() => {
                Kind::Tuple(a.iter().zip(b.iter()).map(|(a, b)| a.either(b)).collect())
            }
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
                // `.cuda()` in one branch usually runs if there is a GPU.
                (Device::Cuda, _) | (_, Device::Cuda) => Device::Named,
                _ => Device::Unknown,
            };
            let loader = self.loader.filter(|loader| other.loader == Some(*loader));
            (device, self.flags.intersection(other.flags), loader)
        };
        let opaque = self.is(Flags::OPAQUE) || other.is(Flags::OPAQUE);
        let divided = self.is(Flags::DIVIDED) != other.is(Flags::DIVIDED);
        let divided_once = divided && !nothing(self) && !nothing(other) && self.is_divided_once(other);
        let mut flags = flags;
        if divided_once {
            flags = flags.union(Flags::DIVIDED);
        }
        if opaque || divided && !divided_once {
            flags = flags.union(Flags::OPAQUE);
        }
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
        let divisor = if divided_once {
            self.divisor.or(other.divisor)
        } else {
            self.divisor.filter(|divisor| other.divisor == Some(*divisor))
        };
        let divided_at = self.divided_at.or(other.divided_at).filter(|_| divisor.is_some());
        let items = match (&self.items, &other.items) {
            (Some(a), Some(b)) => Some(Arc::new(a.either(b))),
            // An empty container, or none yet.
            (Some(items), None) if nothing(other) || other.is_container() => Some(items.clone()),
            (None, Some(items)) if nothing(self) || self.is_container() => Some(items.clone()),
            _ => None,
        };
        let named = match (&self.named, &other.named) {
            (Some(a), Some(b)) => a.either(b),
            (Some(named), None) if nothing(other) => Some(named.clone()),
            (None, Some(named)) if nothing(self) => Some(named.clone()),
            _ => None,
        };
        // Where one path cuts the graph off, the other is that of the first iteration, for example.
        let cuts = |value: &Self| value.graph.is_none() && value.is(Flags::CUT_OFF);
        let graph = if (cuts(self) || cuts(other)) && !(self.graph.is_none() && other.graph.is_none()) {
            self.graph.union(&other.graph).with_unknown()
        } else {
            self.graph.either(&other.graph)
        };
        Self { kind, graph, device, flags, loader, weights, divisor, divided_at, class, items, named }
    }
}

/// Returns `true` if an object of this class usually reduces an image's size.
pub fn shrinks(class: &str) -> bool {
    class.starts_with("torchvision.transforms.")
        && ["Resize", "RandomResizedCrop", "CenterCrop", "RandomCrop"]
            .contains(&class.rsplit('.').next().unwrap_or(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_known_in_one_branch_only_is_unknown() {
        let a = Value::tensor(Graph::one(1)).with_flags(Flags::SCALAR);
        let b = Value::tensor(Graph::none());
        let either = a.either(&b);
        assert_eq!(either.kind, Kind::Tensor);
        assert!(either.graph.unknown && !either.is(Flags::SCALAR));
        assert_eq!(a.either(&a), a);
        assert_eq!(Value::from_kind(Kind::None).either(&a).kind, Kind::Tensor);
    }
}
