//! Abstract interpretation of a module: each function once, in order of execution, with the values of all
//! names.
//!
//! There are two passes. The first collects arguments of functions, values of attributes and module-level
//! names; the second records facts. It walks loops twice, first silently, so that the recorded iteration sees
//! the values left by the one before.

mod arguments;
mod bindings;
mod call;
mod callee;
mod control;
mod definitions;
mod describe;
mod differentiated;
mod env;
mod expression;
mod full_names;
mod gradients;
mod imported;
mod library_calls;
mod method;
mod method_names;
mod model_call;
mod parameterless;
mod returned;
mod statement;
mod stores;
mod subscript;
mod summary;
mod sums;
mod switches;
mod test;
mod weights;

use std::sync::Arc;

use ruff_python_ast::{Expr, ModModule};
use ruff_text_size::Ranged;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::facts::{
    ClassId, CounterBinding, Facts, FunctionId, Guard, GuardId, GuardTest, HandlerId, Loop, LoopId, Op,
    OpKind, Site, Store, TryId,
};
use crate::facts::{DType, Flags, Grad, Graph, GraphState, Kind, Value, Weights};
use crate::position::Span;
use crate::project::{ArraySwitch, ClassExport, Imports, Index, StoredParameters, Summary};
use definitions::Definitions;
use env::{Binding, Env, Graphs, forget_graphs};
use full_names::Names;

/// Maximum nesting that is analysed; anything deeper is unknown.
const MAX_DEPTH: usize = 160;

/// Maximum length of a call chain that is followed.
const MAX_CALL_DEPTH: usize = 6;

/// Maximum number of operations recorded for one call.
const MAX_CALL_OPS: usize = 64;

/// State of the function being walked.
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
    /// Stores with the graphs of their values.
    stores: Vec<(Store, Graph)>,
    stored_parts: Vec<(Store, Graph)>,
    /// States of the graphs of stores, by their index, at the end of a branch that leaves.
    left: FxHashMap<usize, GraphState>,
    escaped: FxHashSet<&'a str>,
    /// `true` if it yields values.
    yields: bool,
    /// Returned value, with the states of its graphs at the return.
    returned: Option<(Value, FxHashMap<u32, GraphState>)>,
    /// Returns of arrays, each with the parameter on whose truth it depends.
    arrays: Vec<Option<ArraySwitch>>,
    /// Number of its `return` statements.
    returns: usize,
    /// First graph id of this frame.
    first_graph: u32,
    /// First graph id of the current iteration of the innermost loop.
    iteration_first_graph: u32,
    /// First graph id of the innermost loop.
    loop_first_graph: u32,
    /// Containers of the object to which parameters are added.
    stored_parameters: Vec<StoredParameters>,
    /// Autograd mode at its beginning.
    entered: Grad,
    parameters: Vec<u32>,
    /// Attributes of its object that a method reads, with their graphs, which are among those of
    /// `parameters`.
    reads: Vec<(&'a str, u32)>,
    /// Parameters that it gives to a loss that takes logits.
    logits: Vec<usize>,
    globals: FxHashSet<&'a str>,
    /// Names that an enclosing function bound.
    outer: Option<Arc<FxHashMap<&'a str, Binding>>>,
    /// Names on which `backward()` is called.
    differentiated: FxHashSet<&'a str>,
    /// Names of iterables that wrap others, and what they are: `bar` of `bar = tqdm(enumerate(loader))`.
    iterables: FxHashMap<&'a str, &'a Expr>,
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
    /// Cached lookups of names in other modules.
    imported: FxHashMap<String, Option<Arc<Summary>>>,
    names: Names,
    imported_classes: FxHashMap<String, Option<Arc<ClassExport>>>,
    /// Base classes of each class that are in other modules of the project.
    bases: Vec<Vec<(String, Arc<ClassExport>)>>,
    walked: Vec<bool>,
    /// Final bindings of the module.
    module: FxHashMap<&'a str, Binding>,
    attributes: FxHashMap<(ClassId, &'a str), Value>,
    /// Names of attributes with `self.` before them.
    attribute_names: FxHashMap<&'a str, &'a str>,
    /// Arguments seen for each function's parameters.
    seeds: FxHashMap<(FunctionId, usize), Value>,
    /// Function that other files call.
    summarised: Option<FunctionId>,
    grads: FxHashMap<FunctionId, Grad>,
    /// Mode of each function by its decorators.
    own_modes: Vec<Grad>,
    /// Called names, and whether the text uses them as models.
    used_as_models: FxHashMap<&'a str, bool>,
    closures: FxHashMap<FunctionId, Arc<FxHashMap<&'a str, Binding>>>,
    graphs: Graphs,
    origins: weights::Origins,
    loops_at: FxHashMap<u32, LoopId>,
    /// First graph id of each loop.
    loop_graphs: FxHashMap<LoopId, u32>,
    guards_at: FxHashMap<(u32, bool), GuardId>,
    tries_at: FxHashMap<u32, TryId>,
    handlers_at: FxHashMap<u32, HandlerId>,
    loaders_at: FxHashMap<u32, u32>,
    scalers_at: FxHashMap<u32, u32>,
    order: u32,
    depth: usize,
    /// Arguments of the current call that a loss takes as logits.
    logits: Vec<usize>,
}

pub(crate) fn span(node: &impl Ranged) -> Span {
    let range = node.range();
    Span::new(range.start().to_u32(), range.end().to_u32())
}

/// Collects the facts of a module.
pub(crate) fn walk<'a>(module: &'a ModModule, text: &'a str, imports: &'a dyn Imports) -> Facts {
    let mut walker = Walker::new(module, text, imports);
    walker.walk_all(module);
    walker.begin_second_pass();
    walker.walk_all(module);
    walker.finish()
}

/// Collects the definitions of a module.
pub(crate) fn index<'a>(module: &'a ModModule, text: &'a str, imports: &'a dyn Imports) -> Index {
    let walker = Walker::new(module, text, imports);
    summary::index(&walker.definitions, &walker.facts)
}

/// Summary of one function or method. Walks only what it needs.
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
    // Values of attributes come from the other methods.
    let methods: Vec<FunctionId> = class
        .map(|class| walker.definitions.classes[class.index()].methods.values().copied().collect())
        .unwrap_or_default();
    for id in methods.into_iter().chain([id]) {
        if !walker.walked[id.index()] {
            walker.function(id);
        }
    }
    walker.begin_second_pass();
    walker.summarised = Some(id);
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
            stored_parts: Vec::new(),
            left: FxHashMap::default(),
            escaped: FxHashSet::default(),
            yields: false,
            returned: None,
            arrays: Vec::new(),
            returns: 0,
            first_graph,
            iteration_first_graph: first_graph,
            loop_first_graph: first_graph,
            stored_parameters: Vec::new(),
            entered: grad,
            parameters: Vec::new(),
            reads: Vec::new(),
            logits: Vec::new(),
            globals: FxHashSet::default(),
            outer: None,
            differentiated: FxHashSet::default(),
            iterables: FxHashMap::default(),
        }
    }
}

impl<'a> Walker<'a> {
    /// Creates a walker with the definitions, before any walk.
    fn new(module: &'a ModModule, text: &'a str, imports: &'a dyn Imports) -> Self {
        let mut definitions = Definitions::collect(&module.body, text);
        definitions.bring_starred(text, imports);
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
            attribute_names: FxHashMap::default(),
            seeds: FxHashMap::default(),
            summarised: None,
            grads: FxHashMap::default(),
            own_modes: Vec::new(),
            used_as_models: FxHashMap::default(),
            closures: FxHashMap::default(),
            graphs: Graphs::default(),
            origins: weights::Origins::default(),
            loops_at: FxHashMap::default(),
            loop_graphs: FxHashMap::default(),
            guards_at: FxHashMap::default(),
            tries_at: FxHashMap::default(),
            handlers_at: FxHashMap::default(),
            loaders_at: FxHashMap::default(),
            scalers_at: FxHashMap::default(),
            order: 0,
            depth: 0,
            logits: Vec::new(),
        };
        walker.describe(module);
        walker.own_modes = walker.facts.functions.iter().map(|function| function.grad).collect();
        walker
    }

    /// Prepares the second pass.
    fn begin_second_pass(&mut self) {
        self.pass = 2;
        self.summaries = vec![None; self.summaries.len()];
        self.walked = vec![false; self.walked.len()];
    }

    fn recording(&self) -> bool {
        self.pass == 2 && self.frame.silent == 0
    }

    fn site(&mut self) -> Site {
        self.order += 1;
        let frame = &self.frame;
        Site {
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
        span.slice(text)
    }

    /// Returns `true` if a framework calls this method with gradients off.
    fn framework_runs(&self, class: Option<ClassId>, name: &str) -> bool {
        class.is_some_and(|class| self.facts.class(class).is_managed)
            && ["validation_step", "test_step", "predict_step", "prediction_step", "evaluate", "eval_forward"]
                .contains(&name)
    }

    /// Returns `true` for a trainer class of a framework, or a subclass of one.
    fn is_trainer(&self, class: ClassId) -> bool {
        let class = self.facts.class(class);
        class.is_managed && class.bases.iter().any(|base| base.ends_with("Trainer"))
    }

    fn defines(&self, name: &str) -> bool {
        self.definitions.top_functions.contains_key(name)
            || self.definitions.top_classes.contains_key(name)
            || self.module.contains_key(name)
    }

    /// Walks the module and all of its functions once.
    fn walk_all(&mut self, module: &'a ModModule) {
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
        self.frame.differentiated = differentiated::names(&module.body, self.text);
        self.body(&module.body);
        let frame = self.leave();
        let names = frame.env.into_names();
        self.module = Arc::unwrap_or_clone(forget_graphs(&names));
    }

    /// Ends a frame and records its stores and operations.
    fn leave(&mut self) -> Frame<'a> {
        let next = Frame::new(FunctionId(0), Grad::On, self.graphs.count());
        let mut frame = std::mem::replace(&mut self.frame, next);
        if self.pass == 2 {
            self.settle_stores(&mut frame);
            self.facts.ops.extend(frame.ops.iter().cloned());
        }
        frame
    }

    /// Summary of a function, which is walked first if necessary.
    fn summary(&mut self, id: FunctionId) -> Option<Arc<Summary>> {
        if let Some(summary) = &self.summaries[id.index()] {
            return Some(summary.clone());
        }
        if self.walked[id.index()] || self.active.len() >= MAX_CALL_DEPTH || self.active.contains(&id) {
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
        } else if parent != FunctionId(0) {
            self.closures.get(&id).map(|seen| forget_graphs(seen))
        } else {
            None
        };
        self.frame.differentiated = differentiated::names(&node.body, self.text);
        if self.pass == 2 {
            self.facts.functions[id.index()].grad = grad;
        }
        self.facts.functions[id.index()].inputs.clear();
        for (index, parameter) in node.parameters.iter().enumerate() {
            let name = parameter.name().id.as_str();
            let value = self.parameter(id, class, index, name, parameter.annotation());
            let how = CounterBinding::Parameter;
            let binding = Binding { value, looped: None, outer: None, how };
            self.frame.env.set(name, binding);
        }
        self.body(&node.body);
        let frame = self.leave();
        let binds = frame.env.bound().filter(|name| !frame.globals.contains(name));
        self.facts.functions[id.index()].binds = binds.map(str::to_owned).collect();
        let returned = frame.returned.as_ref().is_some_and(|(value, _)| {
            // The graphs of its parameters are those of the caller.
            let own = &frame.parameters[..node.parameters.iter().count().min(frame.parameters.len())];
            value.graph.unknown || value.graph.ids.iter().any(|id| !own.contains(id))
        });
        self.facts.functions[id.index()].hands_on = returned || frame.yields;
        self.facts.functions[id.index()].returned = frame.graph_of_result();
        self.frame = saved;
        self.depth = depth;
        self.active.pop();
        let summary = self.summarise(id, &frame);
        self.summaries[id.index()] = Some(Arc::new(summary));
    }

    /// Returns `true` if a function runs in the mode of its caller: no decorator sets one.
    fn is_mode_of_caller(&self, id: FunctionId) -> bool {
        self.own_modes[id.index()] == Grad::On || self.facts.functions[id.index()].name.ends_with(".forward")
    }

    fn grad_of(&self, id: FunctionId) -> Grad {
        let written = self.own_modes[id.index()];
        // Callers in other files have a mode of their own.
        if self.pass == 1 || written != Grad::On || self.summarised == Some(id) {
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
            let of_model = self.facts.class(class).is_module.then_some(class);
            return Value { class: of_model, ..Value::from_kind(kind) };
        }
        let mut value = self.definitions.suggested(name);
        if let Some(seed) = self.seeds.get(&(id, index)).filter(|seed| self.pass == 2 && !seed.is_unknown()) {
            value = seed.clone();
            // One of several models has the parameter's name, which each call gives a meaning.
            if value.weights.is_known() && !value.weights.is_exact() && value.is_module() {
                value.weights = Weights::default();
            }
            value.graph = Graph::unknown().clone_if(!seed.graph.is_none());
            value.forget_item_graphs();
        } else if let Some(annotation_value) =
            annotation.and_then(|annotation| self.annotation_value(annotation))
        {
            value = annotation_value;
        } else if let Some(given) = self.given_by_others(id, index, name) {
            value = given;
        }
        match value.kind {
            // `def log(self, loss: float)` is also given tensors.
            Kind::Number
                if class.is_some() && annotation.is_some_and(|is| self.slice(span(is)).contains("float")) =>
            {
                value.graph = Graph::of_parameter(graph);
            }
            Kind::Unknown | Kind::Tensor => {
                value.graph = Graph::of_parameter(graph);
                value = value.with_flags(Flags::GIVEN);
            }
            // A transition, or a dictionary of losses, stands for the caller's.
            Kind::Tuple(_) | Kind::Container { .. } if !value.graph.is_none() => {
                value.map_graphs(&|part| Graph::of_parameter(graph).clone_if(!part.is_none()));
            }
            _ => {}
        }
        self.facts.functions[id.index()].inputs.push(value.graph.clone());
        value
    }

    /// Value of a type annotation.
    fn annotation_value(&mut self, annotation: &Expr) -> Option<Value> {
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
            _ => return self.instance_of(&name),
        };
        Some(Value::from_kind(kind))
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

    /// Adds a branch and returns its id.
    fn guard(&mut self, test: Span, what: Arc<GuardTest>, negated: bool) -> GuardId {
        let looped = self.frame.looped;
        let guard = Guard { parent: self.frame.guard, test, what, negated, is_rest: false, looped };
        let id = *self.guards_at.entry((test.start, negated)).or_insert_with(|| {
            let id = GuardId(self.facts.guards.len() as u32);
            self.facts.guards.push(guard.clone());
            id
        });
        self.facts.guards[id.index()] = guard;
        id
    }

    /// Records a training operation.
    fn op(&mut self, kind: OpKind, span: Span, receiver: &str, weights: Weights) {
        if self.frame.silent > 0 || self.frame.ops.len() > 4096 {
            return;
        }
        let site = self.site();
        let receiver = receiver.to_owned();
        let graph = match &kind {
            OpKind::Backward(backward) => backward.loss.graph.clone(),
            _ => Graph::none(),
        };
        let (via, call, deep) = (None, None, false);
        let switches = Vec::new();
        self.frame.ops.push(Op { kind, span, receiver, weights, graph, site, via, call, deep, switches });
    }

    /// Creates the graph of a forward pass; empty if gradients are off.
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
            // `set_grad_enabled(phase == "train")`: on one of the paths it is there.
            Grad::Unknown if self.frame.entered == Grad::Unknown => (Graph::unknown(), Flags::NONE),
            Grad::Unknown => {
                let id = self.graphs.fresh(GraphState::Unknown, weights);
                (Graph { unknown: true, there: false, ..Graph::one(id).union(inputs) }, Flags::NONE)
            }
        }
    }

    fn finish(mut self) -> Facts {
        self.facts.ops.sort_by_key(|op| op.site.order);
        self.facts.stores.sort_by_key(|store| store.site.order);
        crate::windows::find(&mut self.facts);
        self.facts
    }
}

/// Returns `true` for decorators and contexts that disable gradients.
pub(super) fn turns_off(path: &str) -> bool {
    ["no_grad", "inference_mode"].contains(&path.rsplit('.').next().unwrap_or(path))
        || path.ends_with("torch_no_grad")
}
