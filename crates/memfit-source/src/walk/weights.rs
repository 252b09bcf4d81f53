//! Identity of models: by the call that creates them, or else by name.

use ruff_python_ast::{Expr, ExprCall};
use rustc_hash::FxHashMap;

use super::Walker;
use super::env::Binding;
use crate::facts::{
    Argument, Call, ClassId, CounterBinding, Flags, FunctionId, Graph, Kind, Model, ModelId, OpKind,
    Receiver, Value, Weights,
};

/// Origin of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// Call that creates it.
    Call(u32),
    /// Attribute of a class's objects.
    Attribute(ClassId, String),
    /// Name in a function.
    Name(FunctionId, String),
    /// Part of another model.
    Part(ModelId, String),
    /// Model that a called function makes: the end of the call, and which model of the function.
    Returned(u32, ModelId),
}

/// Known models by origin, and their origins in order.
#[derive(Debug, Default)]
pub(super) struct Origins {
    models: FxHashMap<Origin, ModelId>,
    origins: Vec<Origin>,
}

/// Substrings in the names of layers that have parameters.
pub(super) const LAYERS: &[&str] = &[
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
];

/// Returns `true` for a text that makes layers or parameters that are trained: `nn.Parameter(x,
/// requires_grad=False)` is not.
pub(super) fn makes_layers(text: &str) -> bool {
    let trained = |(at, name): (usize, &str)| {
        let arguments = &text[at + name.len()..];
        let mut depth = 1_i32;
        let end = arguments.bytes().position(|byte| {
            depth += match byte {
                b'(' => 1,
                b')' => -1,
                _ => 0,
            };
            depth == 0
        });
        !arguments[..end.unwrap_or(arguments.len())].replace(' ', "").contains("requires_grad=False")
    };
    LAYERS.iter().any(|layer| text.contains(layer)) || text.match_indices("Parameter(").any(trained)
}

/// Returns `true` for the text of a class that has trained parameters, and neither layers nor models.
pub(super) fn keeps_only_parameters(text: &str) -> bool {
    let others = ["Sequential(", "models.", "from_pretrained(", "ModuleList("];
    let has_layers = LAYERS.iter().chain(&others).any(|layer| text.contains(layer));
    !has_layers && text.contains("Parameter(") && makes_layers(text)
}

/// Methods of models: what they are called on and that is called itself is a model.
const MODEL_METHODS: &[&str] = &[
    ".parameters()",
    ".named_parameters()",
    ".eval()",
    ".train()",
    ".state_dict()",
    ".load_state_dict(",
    ".requires_grad_(",
    ".cuda()",
    ".to(",
];

/// Methods of models that change the model and return it.
pub(super) const RETURNS_ITSELF: &[&str] =
    &["to", "cuda", "cpu", "half", "float", "bfloat16", "eval", "train", "requires_grad_"];

/// Maximum length of a name that identifies a model.
const MAX_NAME: usize = 80;

/// Returns `true` for a dotted name, and for an item of one with a literal key: `self.models["encoder"]`.
fn is_plain(name: &str) -> bool {
    let is_path = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    let item = name.strip_suffix(']').and_then(|rest| rest.split_once('['));
    match item {
        Some((owner, key)) => {
            let quoted = ['"', '\''].iter().find_map(|quote| key.strip_prefix(*quote)?.strip_suffix(*quote));
            is_path(owner) && quoted.is_some_and(is_path)
        }
        None => is_path(name),
    }
}

/// Returns `true` for the name of a pipeline of models, as of Diffusers: it records no gradients, and yields
/// pictures or texts.
fn is_pipeline(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    last == "pipe" || last.contains("pipeline") || last.ends_with("_pipe")
}

impl<'a> Walker<'a> {
    /// Origin of a model.
    pub(super) fn origin(&self, id: ModelId) -> Option<&Origin> {
        self.origins.origins.get(id.index())
    }

    pub(super) fn model(&mut self, origin: Origin) -> ModelId {
        if let Some(known) = self.origins.models.get(&origin) {
            return *known;
        }
        let id = ModelId(self.facts.models.len() as u32);
        let (parent, made) = match &origin {
            Origin::Call(_) | Origin::Returned(..) => (None, true),
            Origin::Part(parent, _) => (Some(*parent), true),
            Origin::Attribute(..) | Origin::Name(..) => (None, false),
        };
        self.facts.models.push(Model {
            parent,
            made,
            has_parameters: false,
            parts: Vec::new(),
            of_project: false,
            carries: None,
            detaches: false,
            outputs: None,
            loops: false,
            class_path: None,
            array_switches: Vec::new(),
        });
        self.origins.origins.push(origin.clone());
        self.origins.models.insert(origin, id);
        id
    }

    /// Parameters of a model that a call creates, including those of its parts.
    pub(super) fn made_weights(&mut self, call: &Call) -> Weights {
        let id = self.model(Origin::Call(call.span.start));
        self.facts.models[id.index()].has_parameters |= self.shows_parameters(call);
        let class = match &call.path {
            Some(path) => self.imported_class(path).filter(|class| class.is_module),
            None => None,
        };
        let class_path = class.as_ref().and(call.path.clone());
        let forward = match (&class_path, &call.target.kind) {
            (Some(path), _) => self.method_there(&path.clone(), "forward"),
            (None, Kind::Class(class)) if call.path.is_none() => {
                let own = self.method_of(*class, "forward", 0);
                own.and_then(|own| self.summary(own))
            }
            _ => None,
        };
        let array_switches: Vec<String> = forward
            .iter()
            .flat_map(|forward| &forward.arrays)
            .flatten()
            .map(|switch| switch.name.clone())
            .collect();
        let of_project = class.is_some() || call.path.is_none() && matches!(call.target.kind, Kind::Class(_));
        let (parts, carries, detaches) = match (&call.path, &call.target.kind) {
            (None, Kind::Class(class)) => {
                let class = self.facts.class(*class);
                (class.parts.clone(), class.carries.clone(), class.detaches)
            }
            (Some(_), _) => match class {
                Some(class) => (class.parts.clone(), class.carries.clone(), class.detaches),
                None => (Vec::new(), None, false),
            },
            _ => (Vec::new(), None, false),
        };
        let model = &mut self.facts.models[id.index()];
        (model.parts, model.carries, model.class_path) = (parts, carries, class_path);
        (model.of_project, model.detaches) = (of_project, detaches);
        model.array_switches = array_switches;
        let own = Weights::from_model(id);
        call.arguments
            .iter()
            .filter(|argument| argument.value.weights.is_known())
            .fold(own, |all, argument| all.union(&argument.value.weights))
    }

    /// Keeps the last operations on the parts of a model's output.
    pub(super) fn set_outputs(&mut self, weights: &Weights, outputs: Option<Vec<Flags>>) {
        if let Some(id) = weights.owners().first() {
            self.facts.models[id.index()].outputs = outputs;
        }
    }

    pub(super) fn outputs_of(&self, weights: &Weights) -> Option<Vec<Flags>> {
        let [id, ..] = weights.owners() else { return None };
        self.facts.models[id.index()].outputs.clone().filter(|_| weights.is_exact())
    }

    /// Returns `true` if the text of a call shows that the model has parameters.
    fn shows_parameters(&self, call: &Call) -> bool {
        let held = || {
            let parts = call.arguments.iter().flat_map(|argument| argument.value.weights.owners());
            parts.into_iter().any(|id| self.facts.models[id.index()].has_parameters)
        };
        match (&call.path, &call.target.kind) {
            (Some(path), _) if path.starts_with("torch.nn.") => {
                makes_layers(path) || held() || makes_layers(self.slice(call.parentheses))
            }
            (Some(path), _) => {
                path.starts_with("torchvision.models.")
                    || path.ends_with("from_pretrained")
                    || &**path == "timm.create_model"
                    || path.ends_with("Loss")
                        && matches!(self.imported_classes.get(&**path), Some(Some(class)) if class.only_parameters)
            }
            (None, Kind::Class(id)) => {
                let node = self.definitions.classes[id.index()].node;
                makes_layers(self.slice(super::span(node)))
            }
            _ => false,
        }
    }

    /// Parameters of a model by its name.
    pub(super) fn weights_of(&mut self, name: &str, value: &Value) -> Weights {
        if value.weights.is_known() {
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
        Weights::from_model(self.model(origin))
    }

    /// Parameters of a part of a model.
    pub(super) fn part_weights(&mut self, whole: &Weights, part: &str) -> Weights {
        match whole.sole_owner() {
            Some(whole) => Weights::from_model(self.model(Origin::Part(whole, part.to_owned()))),
            None if whole.is_known() => whole.clone().uncertain(),
            None => Weights::default(),
        }
    }

    /// Parameters that a backward pass through a graph reaches, without those of the passes in `except`.
    pub(super) fn reach(&self, graph: &Graph, except: &[u32]) -> Weights {
        let mut reach =
            graph.ids.iter().filter(|id| !except.contains(id)).map(|id| self.graphs.weights(*id)).fold(
                Weights::default(),
                |all, weights| {
                    if weights.is_known() { all.union(weights) } else { all.with_unknown_owners() }
                },
            );
        if graph.unknown {
            reach = reach.with_unknown_owners().uncertain();
        }
        reach
    }

    /// Parameters of values: of a model, its `parameters()`, or a container of these.
    pub(super) fn union_of_values<'v>(values: impl Iterator<Item = &'v Value>) -> Weights {
        values.filter(|value| value.weights.is_known()).fold(Weights::default(), |all, value| {
            if all.is_known() { all.union(&value.weights) } else { value.weights.clone() }
        })
    }

    /// Parameters kept by the result of a built-in function.
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
        let union_of_values = Self::union_of_values(arguments.iter().map(|argument| &argument.value));
        // Other chained iterables are unknown.
        let hidden = path == "itertools.chain"
            && arguments.iter().any(|argument| argument.starred || !argument.value.weights.is_known());
        match path {
            _ if !union_of_values.is_known() => union_of_values,
            "builtins.filter" => union_of_values,
            _ if hidden => union_of_values.with_unknown_owners(),
            _ => union_of_values,
        }
    }

    /// Returns `true` for a name whose `parameters()` the text lists, whose mode it switches, or that it does
    /// other things with that are done with models only.
    pub(super) fn is_used_as_model(&mut self, name: &'a str) -> bool {
        if !is_plain(name) || name.is_empty() || name.len() > MAX_NAME || is_pipeline(name) {
            return false;
        }
        if let Some(known) = self.used_as_models.get(name) {
            return *known;
        }
        let text = self.text;
        let found = text.match_indices(name).any(|(at, _)| {
            let used = text[at + name.len()..].starts_with('.')
                && MODEL_METHODS.iter().any(|method| text[at + name.len()..].starts_with(method));
            let before = || text[..at].chars().next_back();
            used && !before().is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '.')
        });
        let found = found || self.definitions.is_one_of_models(name);
        self.used_as_models.insert(name, found);
        found
    }

    /// Returns `true` for the variable of a loop that its function does not treat as a model: another
    /// function may have a model of the same name. A pipeline is no model either.
    pub(super) fn is_other_target(&self, name: &str) -> bool {
        if is_pipeline(name) {
            return true;
        }
        let how = self.frame.env.get(name).map(|binding| binding.how);
        let Some(CounterBinding::Target(id)) = how else { return false };
        let over = self.slice(self.facts.loops[id.index()].iterable);
        let root = over.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default();
        // What the function or its object has may be layers.
        if root == "self" || self.frame.env.get(root).is_some() {
            return false;
        }
        let Some(node) = self.definitions.functions[self.frame.function.index()].node else { return false };
        let text = self.slice(super::span(node));
        !MODEL_METHODS.iter().any(|method| text.contains(&format!("{name}{method}")))
    }

    /// Returns `true` for a plain name that the text puts into evaluation mode, or whose parameters it lists.
    pub(super) fn switches_mode(&mut self, name: &'a str) -> bool {
        name.chars().all(|c| c.is_alphanumeric() || c == '_')
            && self.is_used_as_model(name)
            && [".eval()", ".parameters()"].iter().any(|way| self.text.contains(&format!("{name}{way}")))
    }

    /// Weights of `self.model` in `model = self.model.to(device)`: the name is another one for the same
    /// model.
    pub(super) fn alias_weights(&mut self, source: &'a Expr) -> Weights {
        let name = match source {
            Expr::Call(call) => self.moved_name(call),
            Expr::Attribute(_) => super::definitions::dotted(source, self.text),
            _ => None,
        };
        let Some(name) = name.filter(|name| name.starts_with("self.")) else { return Weights::default() };
        let known = self.lookup(name.strip_suffix(".module").unwrap_or(name)).0;
        if known.is_module() { self.weights_of(name, &known) } else { Weights::default() }
    }

    /// Treats a name as a model if `parameters()` is called on it and its kind is unknown.
    pub(super) fn infer_module(&mut self, name: &'a str, value: &Value) {
        if !matches!(value.kind, Kind::Unknown | Kind::Undefined | Kind::Tensor) || name == "self" {
            return;
        }
        let Some(binding) = self.frame.env.get(name) else { return };
        let mut binding = binding.clone();
        binding.value = Value {
            weights: binding.value.weights,
            device: binding.value.device,
            ..Value::from_kind(Kind::Module)
        };
        let found = binding.value.clone();
        self.frame.env.set(name, binding);
        self.attribute(name, &found);
    }

    /// Name of the model of `model.cuda().eval()`.
    pub(super) fn moved_name(&self, node: &'a ExprCall) -> Option<&'a str> {
        let Expr::Attribute(attribute) = &*node.func else { return None };
        let mut owner = &*attribute.value;
        while let Expr::Call(call) = owner {
            let Expr::Attribute(way) = &*call.func else { return None };
            if !RETURNS_ITSELF.contains(&way.attr.id.as_str()) {
                return None;
            }
            owner = &way.value;
        }
        super::definitions::dotted(owner, self.text)
    }

    /// `x.train()` and `x.eval()` show that `x` is a model, unless another object has such a method.
    pub(super) fn switch_mode(
        &mut self,
        node: &'a ExprCall,
        call: &Call,
        receiver: &Receiver,
        name: &str,
        inputs: &Graph,
    ) -> Value {
        let text = self.moved_name(node).unwrap_or_else(|| self.slice(receiver.span));
        let plain = text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
        let is_sent_alone = call.arguments.is_empty() && plain && text != "self";
        if !is_sent_alone {
            return self.call_unknown(node, inputs);
        }
        let mut value = receiver.value.clone();
        value.kind = Kind::Module;
        value.graph = Graph::none();
        let looped = self.frame.looped;
        let how = CounterBinding::Elsewhere;
        let known = self.frame.env.get(text).cloned();
        let known = known.unwrap_or(Binding { value: Value::default(), looped, outer: looped, how });
        self.frame.env.set(text, Binding { value: value.clone(), ..known });
        self.attribute(text, &value);
        let weights = self.weights_of(text, &value);
        self.op(if name == "eval" { OpKind::EvalMode } else { OpKind::TrainMode }, call.span, text, weights);
        value
    }
}
