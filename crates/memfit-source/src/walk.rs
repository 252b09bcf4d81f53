//! The walk: each function once, in the order of execution, with what is known of every name.
//!
//! Two passes. The first learns what functions are called with, what attributes hold and what the module's
//! names are; the second records. Loops are walked twice in the second pass, silently and then for the
//! record, so that what one round leaves to the next is known.

mod call;
mod callee;
mod control;
mod definitions;
mod describe;
mod env;
mod expression;
mod imported;
mod kept;
mod known;
mod method;
mod named;
mod statement;
mod summary;
mod test;
mod weights;

use std::sync::Arc;

use ruff_python_ast::{Expr, ModModule};
use ruff_text_size::Ranged;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::facts::{
    Bound, ClassId, Facts, FunctionId, Guard, GuardId, GuardTest, HandlerId, Loop, LoopId, Op, OpKind, Place,
    Store, TryId,
};
use crate::facts::{DType, Flags, Grad, Graph, GraphState, Kind, Value, Weights};
use crate::names;
use crate::position::Span;
use crate::project::{ClassExport, Imports, Index, Kept, Summary};
use definitions::Definitions;
use env::{Binding, Env, Graphs};
use named::Names;

/// The deepest nesting that is followed; below it everything is unknown.
const DEEPEST: usize = 160;

/// The longest chain of calls that is followed.
const LONGEST_CHAIN: usize = 6;

/// The most operations that one call stands for.
const MOST_OPS: usize = 64;

/// What is being walked: one function.
struct Frame<'a> {
    function: FunctionId,
    env: Env<'a>,
    looped: Option<LoopId>,
    guard: Option<GuardId>,
    handler: Option<HandlerId>,
    tried: Option<TryId>,
    grad: Grad,
    autocast: Option<Option<DType>>,
    managed: bool,
    silent: u32,
    ops: Vec<Op>,
    /// Stores, and the graphs that their values hang on.
    stores: Vec<(Store, Graph)>,
    escaped: FxHashSet<&'a str>,
    /// What is returned, and the states of its graphs when it is.
    returned: Option<(Value, FxHashMap<u32, GraphState>)>,
    /// Graphs from here on are this frame's own.
    first_graph: u32,
    /// Graphs from here on are of this round of the innermost loop.
    round_graph: u32,
    /// Graphs from here on are of the innermost loop.
    loop_graph: u32,
    /// Containers of the object that parameters are put into.
    keeps: Vec<Kept>,
    parameters: Vec<u32>,
    globals: FxHashSet<&'a str>,
    /// Names of this frame that an enclosing function bound.
    outer: Option<Arc<FxHashMap<&'a str, Binding>>>,
}

pub(crate) struct Walker<'a> {
    text: &'a str,
    facts: Facts,
    definitions: Definitions<'a>,
    imports: &'a dyn Imports,
    pass: u8,
    frame: Frame<'a>,
    active: Vec<FunctionId>,
    summaries: Vec<Option<Arc<Summary>>>,
    /// What names of other modules led to: each is asked for once.
    imported: FxHashMap<String, Option<Arc<Summary>>>,
    names: Names,
    imported_classes: FxHashMap<String, Option<Arc<ClassExport>>>,
    /// The bases of each class that other modules of the project define.
    bases: Vec<Vec<(String, Arc<ClassExport>)>>,
    walked: Vec<bool>,
    /// What the module's names are in the end.
    module: FxHashMap<&'a str, Binding>,
    attributes: FxHashMap<(ClassId, &'a str), Value>,
    /// What a function is called with.
    seeds: FxHashMap<(FunctionId, usize), Value>,
    grads: FxHashMap<FunctionId, Grad>,
    closures: FxHashMap<FunctionId, Arc<FxHashMap<&'a str, Binding>>>,
    graphs: Graphs,
    origins: weights::Origins,
    loops_at: FxHashMap<u32, LoopId>,
    guards_at: FxHashMap<(u32, bool), GuardId>,
    tries_at: FxHashMap<u32, TryId>,
    handlers_at: FxHashMap<u32, HandlerId>,
    loaders_at: FxHashMap<u32, u32>,
    scalers_at: FxHashMap<u32, u32>,
    order: u32,
    depth: usize,
}

pub(crate) fn span(node: &impl Ranged) -> Span {
    let range = node.range();
    Span::new(range.start().to_u32(), range.end().to_u32())
}

/// Walks a module and gives its facts.
pub(crate) fn walk<'a>(module: &'a ModModule, text: &'a str, imports: &'a dyn Imports) -> Facts {
    let mut walker = Walker::new(module, text, imports);
    walker.all(module);
    walker.again();
    walker.all(module);
    walker.finish()
}

/// What a module defines.
pub(crate) fn index<'a>(module: &'a ModModule, text: &'a str, imports: &'a dyn Imports) -> Index {
    let walker = Walker::new(module, text, imports);
    summary::index(&walker.definitions, &walker.facts)
}

/// What one function of a module does, or a method: no more is walked than it takes.
pub(crate) fn summary_of<'a>(
    module: &'a ModModule,
    text: &'a str,
    imports: &'a dyn Imports,
    name: &str,
) -> Option<Arc<Summary>> {
    let mut walker = Walker::new(module, text, imports);
    let (id, class) = match name.split_once('.') {
        None => (*walker.definitions.top_functions.get(name)?, None),
        Some((class, method)) => {
            let class = *walker.definitions.top_classes.get(class)?;
            (walker.method_of(class, method, 0)?, Some(class))
        }
    };
    walker.module_body(module);
    // What attributes hold is what the other methods give them.
    let methods: Vec<FunctionId> = class
        .map(|class| walker.definitions.classes[class.index()].methods.values().copied().collect())
        .unwrap_or_default();
    for id in methods.into_iter().chain([id]) {
        if !walker.walked[id.index()] {
            walker.function(id);
        }
    }
    walker.again();
    walker.summary(id)
}

impl Frame<'_> {
    fn new(function: FunctionId, grad: Grad, first_graph: u32) -> Self {
        Self {
            function,
            env: Env::default(),
            looped: None,
            guard: None,
            handler: None,
            tried: None,
            grad,
            autocast: None,
            managed: false,
            silent: 0,
            ops: Vec::new(),
            stores: Vec::new(),
            escaped: FxHashSet::default(),
            returned: None,
            first_graph,
            round_graph: first_graph,
            loop_graph: first_graph,
            keeps: Vec::new(),
            parameters: Vec::new(),
            globals: FxHashSet::default(),
            outer: None,
        }
    }
}

impl<'a> Walker<'a> {
    /// A walker that knows what is defined, and has walked nothing.
    fn new(module: &'a ModModule, text: &'a str, imports: &'a dyn Imports) -> Self {
        let definitions = Definitions::collect(&module.body);
        let functions = definitions.functions.len();
        let mut walker = Self {
            text,
            facts: Facts::default(),
            definitions,
            imports,
            pass: 1,
            frame: Frame::new(FunctionId(0), Grad::On, 0),
            active: Vec::new(),
            summaries: vec![None; functions],
            imported: FxHashMap::default(),
            names: Names::default(),
            imported_classes: FxHashMap::default(),
            bases: Vec::new(),
            walked: vec![false; functions],
            module: FxHashMap::default(),
            attributes: FxHashMap::default(),
            seeds: FxHashMap::default(),
            grads: FxHashMap::default(),
            closures: FxHashMap::default(),
            graphs: Graphs::default(),
            origins: weights::Origins::default(),
            loops_at: FxHashMap::default(),
            guards_at: FxHashMap::default(),
            tries_at: FxHashMap::default(),
            handlers_at: FxHashMap::default(),
            loaders_at: FxHashMap::default(),
            scalers_at: FxHashMap::default(),
            order: 0,
            depth: 0,
        };
        walker.describe(module);
        walker
    }

    /// Begins the second pass.
    fn again(&mut self) {
        self.pass = 2;
        self.summaries = vec![None; self.summaries.len()];
        self.walked = vec![false; self.walked.len()];
    }

    fn recording(&self) -> bool {
        self.pass == 2 && self.frame.silent == 0
    }

    fn place(&mut self) -> Place {
        self.order += 1;
        let frame = &self.frame;
        Place {
            function: frame.function,
            looped: frame.looped,
            guard: frame.guard,
            handler: frame.handler,
            tried: frame.tried,
            grad: frame.grad,
            autocast: frame.autocast,
            managed: frame.managed,
            order: self.order,
        }
    }

    fn slice(&self, span: Span) -> &'a str {
        let text: &'a str = self.text;
        span.of(text)
    }

    /// A framework calls this method, and turns gradients off first.
    fn framework_runs(&self, class: Option<ClassId>, name: &str) -> bool {
        class.is_some_and(|class| self.facts.class(class).is_managed)
            && ["validation_step", "test_step", "predict_step", "prediction_step", "evaluate", "eval_forward"]
                .contains(&name)
    }

    fn defines(&self, name: &str) -> bool {
        self.definitions.top_functions.contains_key(name)
            || self.definitions.top_classes.contains_key(name)
            || self.module.contains_key(name)
    }

    /// One pass over the module and all of its functions.
    fn all(&mut self, module: &'a ModModule) {
        self.module_body(module);
        for index in 1..self.definitions.functions.len() {
            if !self.walked[index] {
                self.function(FunctionId(index as u32));
            }
        }
    }

    fn module_body(&mut self, module: &'a ModModule) {
        self.frame = Frame::new(FunctionId(0), Grad::On, self.graphs.count());
        self.walked[0] = true;
        self.body(&module.body);
        let frame = self.leave();
        let names = frame.env.into_names();
        self.module = names
            .into_iter()
            .map(|(name, mut binding)| {
                binding.value.graph = Graph::unknown().clone_if(!binding.value.graph.is_none());
                binding.looped = None;
                (name, binding)
            })
            .collect();
    }

    /// Ends a frame: its stores and operations go on record.
    fn leave(&mut self) -> Frame<'a> {
        let next = Frame::new(FunctionId(0), Grad::On, self.graphs.count());
        let mut frame = std::mem::replace(&mut self.frame, next);
        if self.pass == 2 {
            let returned: &[u32] = frame.returned.as_ref().map_or(&[], |(value, _)| &value.graph.ids);
            for (mut store, graph) in frame.stores.drain(..) {
                // What is returned may still be trained on, and all that it hangs on.
                let handed_on = graph.ids.iter().any(|id| returned.contains(id));
                let value = Value { graph, ..Value::default() };
                store.graph = self.graphs.of(&value);
                store.escapes |= handed_on || frame.escaped.contains(store.target.as_str());
                self.facts.stores.push(store);
            }
            self.facts.ops.extend(frame.ops.iter().cloned());
        }
        frame
    }

    /// What a function does, walking it first if that has not been done.
    fn summary(&mut self, id: FunctionId) -> Option<Arc<Summary>> {
        if let Some(summary) = &self.summaries[id.index()] {
            return Some(summary.clone());
        }
        if self.walked[id.index()] || self.active.len() >= LONGEST_CHAIN || self.active.contains(&id) {
            return None;
        }
        self.function(id);
        self.summaries[id.index()].clone()
    }

    fn function(&mut self, id: FunctionId) {
        let Some(node) = self.definitions.functions[id.index()].node else { return };
        let (class, parent) = {
            let node = &self.definitions.functions[id.index()];
            (node.class, node.parent)
        };
        self.walked[id.index()] = true;
        self.active.push(id);
        let grad = self.grad_of(id);
        let frame = Frame::new(id, grad, self.graphs.count());
        let saved = std::mem::replace(&mut self.frame, frame);
        let depth = std::mem::replace(&mut self.depth, 0);
        self.frame.outer = if parent == saved.function && parent != FunctionId(0) {
            self.closures.get(&id).cloned()
        } else {
            None
        };
        if self.pass == 2 {
            self.facts.functions[id.index()].grad = grad;
        }
        self.facts.functions[id.index()].inputs.clear();
        for (index, parameter) in node.parameters.iter().enumerate() {
            let name = parameter.name().id.as_str();
            let value = self.parameter(id, class, index, name, parameter.annotation());
            let binding = Binding { value, looped: None, how: Bound::Parameter };
            self.frame.env.set(name, binding);
        }
        self.body(&node.body);
        let frame = self.leave();
        self.frame = saved;
        self.depth = depth;
        self.active.pop();
        let summary = self.summarise(id, &frame);
        self.summaries[id.index()] = Some(Arc::new(summary));
    }

    fn grad_of(&self, id: FunctionId) -> Grad {
        let written = self.facts.functions[id.index()].grad;
        if self.pass == 1 || written != Grad::On {
            return written;
        }
        self.grads.get(&id).copied().unwrap_or(Grad::On)
    }

    fn parameter(
        &mut self,
        id: FunctionId,
        class: Option<ClassId>,
        index: usize,
        name: &str,
        annotation: Option<&'a Expr>,
    ) -> Value {
        let graph = self.graphs.fresh(GraphState::Unknown, Weights::default());
        self.frame.parameters.push(graph);
        if index == 0
            && let Some(class) = class
            && name == "self"
        {
            let kind = if self.facts.class(class).is_module { Kind::Module } else { Kind::Object(class) };
            self.facts.functions[id.index()].inputs.push(Graph::none());
            return Value::of(kind);
        }
        let mut value = names::suggested(name);
        if let Some(seed) = self.seeds.get(&(id, index)).filter(|seed| self.pass == 2 && !seed.is_unknown()) {
            value = seed.clone();
            value.graph = Graph::unknown().clone_if(!seed.graph.is_none());
        } else if let Some(annotated) = annotation.and_then(|annotation| self.annotated(annotation)) {
            value = annotated;
        }
        if matches!(value.kind, Kind::Unknown | Kind::Tensor) {
            value.graph = Graph::one(graph);
        }
        self.facts.functions[id.index()].inputs.push(value.graph.clone());
        value
    }

    /// What an annotation says.
    fn annotated(&self, annotation: &Expr) -> Option<Value> {
        let name = self.full_name(annotation)?;
        let last = name.rsplit('.').next().unwrap_or(&name);
        let kind = match last {
            "Module" if name.contains("nn") => Kind::Module,
            "Optimizer" => Kind::Optimizer,
            "LRScheduler" | "_LRScheduler" => Kind::Scheduler,
            "GradScaler" => Kind::Scaler(None),
            "DataLoader" => Kind::Loader(None),
            "Tensor" => Kind::Tensor,
            "str" | "int" | "float" | "bool" => Kind::Number,
            _ => return None,
        };
        Some(Value::of(kind))
    }

    fn looped(&mut self, at: u32, make: impl FnOnce() -> Loop) -> LoopId {
        if let Some(id) = self.loops_at.get(&at) {
            return *id;
        }
        let id = LoopId(self.facts.loops.len() as u32);
        self.facts.loops.push(make());
        self.loops_at.insert(at, id);
        id
    }

    /// Enters a branch of the text.
    fn guard(&mut self, test: Span, what: Arc<GuardTest>, negated: bool) -> GuardId {
        let looped = self.frame.looped;
        let guard = Guard { parent: self.frame.guard, test, what, negated, looped };
        let id = *self.guards_at.entry((test.start, negated)).or_insert_with(|| {
            let id = GuardId(self.facts.guards.len() as u32);
            self.facts.guards.push(guard.clone());
            id
        });
        self.facts.guards[id.index()] = guard;
        id
    }

    /// Records a thing that training does.
    fn op(&mut self, kind: OpKind, span: Span, receiver: &str, weights: Weights) {
        if self.frame.silent > 0 || self.frame.ops.len() > 4096 {
            return;
        }
        let place = self.place();
        let receiver = receiver.to_owned();
        self.frame.ops.push(Op { kind, span, receiver, weights, place, via: None, deep: false });
    }

    /// Binds a name.
    fn bind(&mut self, name: &'a str, mut value: Value, how: Bound) {
        if value.is_unknown() && !matches!(how, Bound::Target(_)) {
            let suggested = names::suggested(name);
            if !suggested.is_unknown() {
                let graph = value.graph;
                value = Value {
                    graph,
                    device: value.device,
                    flags: value.flags.with(suggested.flags),
                    weights: value.weights,
                    ..suggested
                };
                if !matches!(value.kind, Kind::Tensor) {
                    value.graph = Graph::none();
                }
            }
        }
        if matches!(value.kind, Kind::Undefined) {
            value.kind = Kind::Unknown;
        }
        self.frame.env.remove_below(name);
        self.attribute(name, &value);
        let binding = Binding { value, looped: self.frame.looped, how };
        self.frame.env.set(name, binding);
        let looped = self.frame.looped;
        if !matches!(how, Bound::Target(_)) {
            let mut next = looped;
            while let Some(id) = next {
                let found = &mut self.facts.loops[id.index()];
                if !found.assigned.iter().any(|known| known == name) {
                    found.assigned.push(name.to_owned());
                }
                next = found.parent;
            }
        }
    }

    /// Remembers what `self.x` holds for the other methods.
    fn attribute(&mut self, name: &'a str, value: &Value) {
        let Some(class) = self.definitions.functions[self.frame.function.index()].class else { return };
        let Some(attribute) = name.strip_prefix("self.").filter(|rest| !rest.contains('.')) else { return };
        let mut value = value.clone();
        value.graph = Graph::unknown().clone_if(!value.graph.is_none());
        let joined = match self.attributes.get(&(class, attribute)) {
            // A guess from a name gives way to what is known.
            Some(old) if !(old.is(Flags::BY_NAME) && old.kind == value.kind) => old.either(&value),
            _ => value,
        };
        self.attributes.insert((class, attribute), joined);
    }

    /// What a name or a dotted name holds.
    fn lookup(&mut self, name: &'a str) -> (Value, Bound) {
        if let Some(binding) = self.frame.env.get(name) {
            return (binding.value.clone(), binding.how);
        }
        if let Some(binding) = self.frame.outer.as_ref().and_then(|outer| outer.get(name)) {
            let mut value = binding.value.clone();
            value.graph = Graph::unknown().clone_if(!value.graph.is_none());
            return (value, Bound::Elsewhere);
        }
        if let Some(attribute) = name.strip_prefix("self.")
            && let Some(class) = self.definitions.functions[self.frame.function.index()].class
            && let Some(value) = self.attributes.get(&(class, attribute))
        {
            return (value.clone(), Bound::Elsewhere);
        }
        if name.contains('.') {
            return (Value::unknown(), Bound::Elsewhere);
        }
        if let Some(id) = self.definitions.top_functions.get(name) {
            return (Value::of(Kind::Function(*id)), Bound::Elsewhere);
        }
        if let Some(id) = self.definitions.top_classes.get(name) {
            return (Value::of(Kind::Class(*id)), Bound::Elsewhere);
        }
        if let Some(binding) = self.module.get(name).filter(|_| self.frame.function != FunctionId(0)) {
            return (binding.value.clone(), Bound::Elsewhere);
        }
        if let Some(path) = self.definitions.imports.get(name) {
            return (Value::of(Kind::Path(path.clone())), Bound::Elsewhere);
        }
        if names::is_builtin(name) {
            return (Value::of(Kind::Path(self.names.builtin(name))), Bound::Elsewhere);
        }
        if self.definitions.starred || self.module.contains_key(name) || self.frame.globals.contains(name) {
            return (names::suggested(name), Bound::Elsewhere);
        }
        if let Some(path) = names::customary(name) {
            return (Value::of(Kind::Path(self.names.keep(path))), Bound::Nowhere);
        }
        let mut value = names::suggested(name);
        if value.is_unknown() {
            value.kind = Kind::Undefined;
        }
        // A name of an enclosing function that was not walked with this one is somewhere.
        let nested = self.definitions.functions[self.frame.function.index()].parent != FunctionId(0)
            && self.frame.function != FunctionId(0);
        (value, if nested || self.pass == 1 { Bound::Elsewhere } else { Bound::Nowhere })
    }

    /// A new forward pass, or none where gradients are off.
    fn forward(&mut self, inputs: &Graph, weights: Weights) -> (Graph, Flags) {
        match self.frame.grad {
            Grad::On => {
                let id = self.graphs.fresh(GraphState::Live, weights);
                let mut graph = Graph::one(id);
                graph.ids.extend_from_slice(&inputs.ids);
                graph.ids.sort_unstable();
                graph.ids.dedup();
                (graph, Flags::NONE)
            }
            Grad::Off => (Graph::none(), Flags::NO_GRAD_BUILT),
            Grad::Unknown => (Graph::unknown(), Flags::NONE),
        }
    }

    fn finish(mut self) -> Facts {
        self.facts.ops.sort_by_key(|op| op.place.order);
        self.facts.stores.sort_by_key(|store| store.place.order);
        crate::windows::find(&mut self.facts);
        self.facts
    }
}

/// A decorator or context under which nothing is recorded.
pub(super) fn turns_off(path: &str) -> bool {
    ["no_grad", "inference_mode"].contains(&path.rsplit('.').next().unwrap_or(path))
        || path.ends_with("torch_no_grad")
}
