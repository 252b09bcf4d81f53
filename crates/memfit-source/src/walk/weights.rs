//! Whose parameters something goes to: models are told apart where they are made, and by their names where
//! they are not.

use rustc_hash::FxHashMap;

use super::Walker;
use crate::facts::{Argument, Call, ClassId, FunctionId, Graph, Kind, Model, ModelId, Value, Weights};

/// Where a model was met first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Origin {
    /// The call that makes it.
    Call(u32),
    /// An attribute of the objects of a class.
    Attribute(ClassId, String),
    /// A name in a function.
    Name(FunctionId, String),
    /// A part of another.
    Part(ModelId, String),
}

/// The models that have been met.
#[derive(Debug, Default)]
pub(super) struct Origins(FxHashMap<Origin, ModelId>);

/// Words in the names of layers that have parameters.
const LAYERS: &[&str] = &[
    "Linear",
    "Conv",
    "LSTM",
    "GRU",
    "RNN",
    "Embedding",
    "Transformer",
    "BatchNorm",
    "LayerNorm",
    "GroupNorm",
    "Bilinear",
    "MultiheadAttention",
    "Parameter(",
];

/// The longest name by which a model is known.
const MAX_NAME: usize = 80;

impl<'a> Walker<'a> {
    fn model(&mut self, origin: Origin) -> ModelId {
        if let Some(known) = self.origins.0.get(&origin) {
            return *known;
        }
        let id = ModelId(self.facts.models.len() as u32);
        let (parent, made) = match &origin {
            Origin::Call(_) => (None, true),
            Origin::Part(parent, _) => (Some(*parent), true),
            Origin::Attribute(..) | Origin::Name(..) => (None, false),
        };
        self.facts.models.push(Model { parent, made, has_parameters: false });
        self.origins.0.insert(origin, id);
        id
    }

    /// The parameters of a model that a call makes, with those of the models that it is made of.
    pub(super) fn made_weights(&mut self, call: &Call) -> Weights {
        let id = self.model(Origin::Call(call.span.start));
        self.facts.models[id.index()].has_parameters |= self.shows_parameters(call);
        let own = Weights::of(id);
        call.arguments
            .iter()
            .filter(|argument| argument.value.weights.is_told())
            .fold(own, |all, argument| all.union(&argument.value.weights))
    }

    /// Whether a call makes a model that has parameters, as its text shows.
    fn shows_parameters(&self, call: &Call) -> bool {
        let layered = |text: &str| LAYERS.iter().any(|layer| text.contains(layer));
        let held = || {
            let parts = call.arguments.iter().flat_map(|argument| argument.value.weights.owners());
            parts.into_iter().any(|id| self.facts.models[id.index()].has_parameters)
        };
        match (&call.path, &call.target.kind) {
            (Some(path), _) if path.starts_with("torch.nn.") => {
                layered(path) || held() || layered(self.slice(call.parentheses))
            }
            (Some(path), _) => {
                path.starts_with("torchvision.models.")
                    || path.ends_with("from_pretrained")
                    || &**path == "timm.create_model"
            }
            (None, Kind::Class(id)) => {
                let node = self.definitions.classes[id.index()].node;
                layered(self.slice(super::span(node)))
            }
            _ => false,
        }
    }

    /// The parameters of a model that is known by this name here.
    pub(super) fn weights_of(&mut self, name: &str, value: &Value) -> Weights {
        if value.weights.is_told() {
            return value.weights.clone();
        }
        let name = name.strip_suffix(".forward").unwrap_or(name);
        let name = name.strip_suffix(".module").unwrap_or(name);
        let plain = name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
        if !plain || name.is_empty() || name.len() > MAX_NAME {
            return Weights::default();
        }
        let function = self.frame.function;
        let class = self.definitions.functions[function.index()].class;
        let origin = match (class, name.strip_prefix("self.")) {
            (Some(class), Some(attribute)) => Origin::Attribute(class, attribute.to_owned()),
            _ => {
                let root = name.split('.').next().unwrap_or(name);
                let own = self.frame.env.get(root).is_some();
                Origin::Name(if own { function } else { FunctionId(0) }, name.to_owned())
            }
        };
        Weights::of(self.model(origin))
    }

    /// The parameters of a part of a model.
    pub(super) fn part_weights(&mut self, whole: &Weights, part: &str) -> Weights {
        match whole.only() {
            Some(whole) => Weights::of(self.model(Origin::Part(whole, part.to_owned()))),
            None if whole.is_told() => whole.clone().perhaps(),
            None => Weights::default(),
        }
    }

    /// The parameters that a backward pass through a graph reaches, without what is in some of its passes.
    pub(super) fn reach(&self, graph: &Graph, except: &[u32]) -> Weights {
        let mut reach =
            graph.ids.iter().filter(|id| !except.contains(id)).map(|id| self.graphs.weights(*id)).fold(
                Weights::default(),
                |all, weights| {
                    if weights.is_told() { all.union(weights) } else { all.and_more() }
                },
            );
        if graph.unknown {
            reach = reach.and_more().perhaps();
        }
        reach
    }

    /// The parameters that are handed over: by a model, its `parameters()`, or a container of such.
    pub(super) fn gathered<'v>(values: impl Iterator<Item = &'v Value>) -> Weights {
        values.filter(|value| value.weights.is_told()).fold(Weights::default(), |all, value| {
            if all.is_told() { all.union(&value.weights) } else { value.weights.clone() }
        })
    }

    /// What a function of the language makes of parameters that it is given, where it keeps them.
    pub(super) fn kept_weights(path: &str, arguments: &[Argument]) -> Weights {
        let keeps = matches!(
            path,
            "builtins.list"
                | "builtins.tuple"
                | "builtins.filter"
                | "builtins.iter"
                | "builtins.set"
                | "builtins.dict"
                | "builtins.sorted"
                | "builtins.reversed"
                | "itertools.chain"
                | "itertools.chain.from_iterable"
        );
        if !keeps {
            return Weights::default();
        }
        let gathered = Self::gathered(arguments.iter().map(|argument| &argument.value));
        // What else is chained is not told.
        let hidden = path == "itertools.chain"
            && arguments.iter().any(|argument| argument.starred || !argument.value.weights.is_told());
        match path {
            _ if !gathered.is_told() => gathered,
            "builtins.filter" => gathered,
            _ if hidden => gathered.and_more(),
            _ => gathered,
        }
    }

    /// A name on which `parameters()` is called is a model's, if nothing else is known of it.
    pub(super) fn shown_to_be_module(&mut self, name: &'a str, value: &Value) {
        if !matches!(value.kind, Kind::Unknown | Kind::Undefined) || name == "self" {
            return;
        }
        let Some(binding) = self.frame.env.get(name) else { return };
        let mut binding = binding.clone();
        binding.value = Value { weights: binding.value.weights, ..Value::of(Kind::Module) };
        let found = binding.value.clone();
        self.frame.env.set(name, binding);
        self.attribute(name, &found);
    }
}
