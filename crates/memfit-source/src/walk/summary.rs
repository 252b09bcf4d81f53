//! Function summaries: computed once, and replayed at each call, in the same file and in others.

use std::sync::Arc;

use ruff_python_ast::ExprCall;
use rustc_hash::{FxHashMap, FxHashSet};

use super::definitions::Definitions;
use super::env::Binding;
use super::returned::Adopted;
use super::{Frame, MAX_CALL_OPS, Walker};
use crate::facts::{
    Backward, Call, ClassId, CounterBinding, Facts, FunctionId, Guard, GuardId, GuardTest, LoopId, Op, OpKind,
};
use crate::facts::{Flags, Grad, Graph, GraphState, Kind, Value, Weights};
use crate::position::Span;
use crate::project::{ClassExport, Index, Returned, Summary, SummaryOp, Switch, split};

/// Methods that PyTorch's optimizers have.
const OF_OPTIMIZERS: &[&str] = &["step", "zero_grad", "state_dict", "load_state_dict", "add_param_group"];

/// Builds the index of a module.
pub(super) fn index(definitions: &Definitions<'_>, facts: &Facts) -> Index {
    let functions = definitions.top_functions.keys().map(|name| (*name).to_owned()).collect();
    let classes = definitions
        .top_classes
        .iter()
        .map(|(name, id)| {
            let class = facts.class(*id);
            let mut methods = FxHashSet::default();
            collect_methods(definitions, facts, *id, 0, &mut methods);
            let export = ClassExport {
                is_module: class.is_module,
                is_dataset: class.is_dataset,
                is_managed: class.is_managed,
                has_batch_norm: class.has_batch_norm,
                parts: class.parts.clone(),
                carries: class.carries.clone(),
                detaches: class.detaches,
                is_frozen: class.is_frozen,
                is_parameterless: class.is_parameterless,
                only_parameters: class.only_parameters,
                is_optimizer: class.bases.iter().any(|base| base.ends_with("Optimizer"))
                    && methods
                        .iter()
                        .all(|name| name.starts_with('_') || OF_OPTIMIZERS.contains(&name.as_str())),
                methods,
            };
            ((*name).to_owned(), Arc::new(export))
        })
        .collect();
    let reexported = definitions
        .imports
        .iter()
        .filter(|(_, path)| path.starts_with('.'))
        .filter_map(|(name, path)| {
            let (module, there) = split(path)?;
            Some(((*name).to_owned(), (module.to_owned(), there.to_owned())))
        })
        .collect();
    let starred = definitions.starred_modules.iter().map(ToString::to_string).collect();
    Index { functions, classes, reexported, starred }
}

fn collect_methods(
    definitions: &Definitions<'_>,
    facts: &Facts,
    id: ClassId,
    depth: u8,
    into: &mut FxHashSet<String>,
) {
    into.extend(definitions.classes[id.index()].methods.keys().map(|name| (*name).to_owned()));
    if depth > 4 {
        return;
    }
    for base in &facts.class(id).bases {
        if let Some(base) = definitions.top_classes.get(base.as_str()) {
            collect_methods(definitions, facts, *base, depth + 1, into);
        }
    }
}

/// Name of a receiver for the callers of a function: its local variables are none of theirs, whatever they
/// are called.
fn outside_name(receiver: &str, function: &str, frame: &Frame<'_>) -> String {
    let root = receiver.split(['.', '[', '(']).next().unwrap_or(receiver);
    if function.is_empty() || !frame.env.is_own(root) {
        return receiver.to_owned();
    }
    format!("{function}.<locals>.{receiver}")
}

impl<'a> Walker<'a> {
    pub(super) fn summarise(&self, id: FunctionId, frame: &Frame<'a>) -> Summary {
        let function = self.facts.function(id);
        let through = |value: &Value| -> Vec<usize> {
            let ids = &value.graph.ids;
            (0..frame.parameters.len()).filter(|index| ids.contains(&frame.parameters[*index])).collect()
        };
        let ops = frame
            .ops
            .iter()
            .take(MAX_CALL_OPS)
            .filter(|op| !self.is_dropped(op))
            .map(|op| SummaryOp {
                kind: op.kind.clone(),
                receiver: outside_name(&op.receiver, &function.name, frame),
                weights: match &op.kind {
                    OpKind::Backward(backward) => self.reach(&backward.loss.graph, &frame.parameters),
                    _ => op.weights.clone(),
                },
                deep: op.deep || op.site.looped.is_some(),
                guards: self.chain(op.site.guard),
                through: match &op.kind {
                    OpKind::Backward(backward) => through(&backward.loss),
                    _ => Vec::new(),
                },
                switch: match &op.kind {
                    OpKind::RequireGrad { on: None } => {
                        frame.parameters.iter().position(|id| op.graph.ids.contains(id))
                    }
                    _ => None,
                },
                switches: self.switches(id, frame, op),
                grad: op.site.grad,
                autocast: op.site.autocast,
                graph: op.graph.clone(),
                inherits: op.site.grad == frame.entered && self.is_mode_of_caller(id),
                span: op.span,
            })
            .collect();
        let returns = frame.returned.as_ref().map(|(value, _)| Returned { value: value.clone() });
        let writes = if function.class.is_some() { frame.env.attributes() } else { Vec::new() };
        let made = self.made_graphs(frame, &writes);
        let models = self.returned_models(id, frame, returns.as_ref(), &made);
        Summary {
            models,
            logits: frame.logits.clone(),
            parameters: function.parameters.clone(),
            parameter_graphs: frame.parameters.clone(),
            reads: frame.reads.iter().map(|(name, _)| Arc::from(*name)).collect(),
            writes,
            made,
            is_method: function.class.is_some(),
            named_rest: self.definitions.functions[id.index()].node.and_then(|node| {
                let rest = node.parameters.kwarg.as_ref()?.name.id.as_str();
                function.parameters.iter().position(|parameter| parameter == rest)
            }),
            grad_off: function.grad == Grad::Off,
            ops,
            returns,
            // Where each statement returns arrays, they are the value.
            arrays: if frame.arrays.len() < frame.returns { frame.arrays.clone() } else { Vec::new() },
            stored_parameters: frame.stored_parameters.clone(),
        }
    }

    /// Returns `true` for a pass on constants whose output is dropped, such as one that warms a model up: its
    /// graph is gone at once. As well for gradients that a function takes of what it computes with gradients
    /// turned on: they do not depend on its caller.
    fn is_dropped(&self, op: &Op) -> bool {
        if op.kind == OpKind::AutogradGrad {
            let function = self.facts.function(op.site.function);
            return function.class.is_some() && self.slice(function.span).contains("enable_grad");
        }
        let makes = ["torch.zeros(", "torch.ones(", "torch.rand(", "torch.randn("];
        op.kind == OpKind::Forward
            && op.via.is_none()
            && self.facts.calls.iter().any(|call| {
                let given = call.arguments.first().map(|first| self.slice(first.value_span));
                call.span == op.span
                    && call.is_statement
                    && given.is_some_and(|given| makes.iter().any(|make| given.starts_with(make)))
            })
    }

    /// Graphs that a function makes and that its caller may see: in its result, in attributes, in its passes.
    fn made_graphs(
        &self,
        frame: &Frame<'a>,
        writes: &[(Arc<str>, Value)],
    ) -> Vec<(u32, GraphState, Weights)> {
        let mut ids = Vec::new();
        if let Some((value, _)) = &frame.returned {
            value.graph_ids(&mut ids);
        }
        for (_, value) in writes {
            value.graph_ids(&mut ids);
        }
        let differentiates = frame.ops.iter().any(|op| op.kind.differentiates());
        if frame.parameters.len() > self.facts.function(frame.function).parameters.len()
            || !writes.is_empty()
            || differentiates
        {
            for op in frame.ops.iter().take(MAX_CALL_OPS) {
                ids.extend_from_slice(&op.graph.ids);
            }
        }
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| !frame.parameters.contains(id));
        let at_return = frame.returned.as_ref().map(|(_, states)| states);
        let state = |id: u32| {
            let known = at_return.and_then(|states| states.get(&id)).copied();
            known.unwrap_or_else(|| self.graphs.state(id))
        };
        ids.into_iter().map(|id| (id, state(id), self.graphs.weights(id).clone())).collect()
    }

    fn chain(&self, from: Option<GuardId>) -> Vec<(Arc<GuardTest>, bool)> {
        let mut chain: Vec<_> = self
            .facts
            .guards_of(from)
            .take(8)
            .map(|id| {
                let guard = self.facts.guard(id);
                (guard.what.clone(), guard.negated)
            })
            .collect();
        chain.reverse();
        chain
    }

    /// Call of a function or method with a known summary.
    pub(super) fn call_summary(
        &mut self,
        node: &'a ExprCall,
        call: &Call,
        id: Option<FunctionId>,
        summary: &Summary,
        receiver: Option<&'a str>,
    ) -> Value {
        for argument in &node.arguments.args {
            self.escape(argument);
        }
        let arguments: Vec<_> = call
            .arguments
            .iter()
            .filter(|argument| !argument.starred)
            .map(|argument| {
                (argument.name.as_deref(), argument.value.clone(), self.slice(argument.value_span))
            })
            .collect();
        let mut result = self.replay(summary, id, &arguments, receiver, call.span, call.is_open());
        let skipped = usize::from(summary.is_method && receiver.is_some());
        if summary.may_give_arrays(call, skipped) {
            result =
                Value { graph: result.graph.with_unknown(), ..Value::unknown() }.with_flags(Flags::OPAQUE);
        }
        self.logits = Self::arguments_of_logits(summary, call, receiver.is_some());
        result
    }

    /// Applies the effects of a called function, and returns its result.
    pub(super) fn replay(
        &mut self,
        summary: &Summary,
        id: Option<FunctionId>,
        arguments: &[(Option<&str>, Value, &'a str)],
        receiver: Option<&str>,
        call: Span,
        is_open: bool,
    ) -> Value {
        let skipped = usize::from(summary.is_method && receiver.is_some());
        let argument = |index: usize| -> Option<&(Option<&str>, Value, &'a str)> {
            let name = summary.parameters.get(index)?;
            arguments.iter().find(|(keyword, ..)| *keyword == Some(name.as_str())).or_else(|| {
                arguments.iter().filter(|(keyword, ..)| keyword.is_none()).nth(index.checked_sub(skipped)?)
            })
        };
        // Attributes that the method reads are those of this object.
        let read: Vec<Graph> = summary
            .reads
            .iter()
            .map(|name| match receiver {
                Some("self") => self.attribute_graph(name),
                _ => Graph::unknown(),
            })
            .collect();
        let parameters = summary.parameters.len();
        let through = |indices: &[usize]| {
            indices.iter().fold(Graph::none(), |graph, index| match index.checked_sub(parameters) {
                Some(index) => graph.union(read.get(index).unwrap_or(&Graph::unknown())),
                None => argument(*index).map_or(graph.clone(), |(_, value, _)| graph.union(&value.graph)),
            })
        };
        let is_here = id.is_some();
        let given = |index: usize| argument(index).map(|(_, value, text)| (value.clone(), *text));
        let adopted = self.adopt(summary, summary.returns.as_ref(), &given, call, is_here);
        // Each call creates the function's graphs again.
        let made: FxHashMap<u32, u32> = summary
            .made
            .iter()
            .map(|(id, state, weights)| (*id, self.graphs.fresh(*state, adopted.weights(weights))))
            .collect();
        let graph = |graph: &Graph| {
            let start = if graph.unknown { Graph::unknown() } else { Graph::none() };
            let own = graph.own.and_then(|id| made.get(&id)).copied();
            let found = graph.ids.iter().fold(start, |all, id| {
                let parameter = summary.parameter_graphs.iter().position(|known| known == id);
                match (parameter, made.get(id)) {
                    (Some(index), _) if graph.has(*id) => all.union(&through(&[index])),
                    (Some(index), _) => all.union(&through(&[index]).with_unknown()),
                    (None, Some(made)) => all.union(&Graph::one(*made)),
                    (None, None) => all.with_unknown(),
                }
            });
            Graph { own, ..found }
        };
        let mut copies: FxHashMap<Vec<usize>, GuardId> = FxHashMap::default();
        let outside = self.frame.guard;
        for op in &summary.ops {
            let truth = |switch: &Switch| match argument(switch.parameter) {
                Some((_, given, _)) => given.truth(),
                None => switch.default.filter(|_| !is_open),
            };
            if op.switches.iter().any(|switch| truth(switch).is_some_and(|truth| truth != switch.runs)) {
                continue;
            }
            let mut kind = op.kind.clone();
            if let (OpKind::RequireGrad { on }, Some((_, given, _))) =
                (&mut kind, op.switch.and_then(&argument))
            {
                *on = given.truth();
            }
            if let OpKind::Backward(backward) = &mut kind {
                let graph = through(&op.through);
                self.mark_freed(&graph, backward, op.through.is_empty());
                // The parameter itself is the loss.
                if let ([only], true, true) =
                    (&*op.through, backward.loss.is(Flags::GIVEN), op.guards.is_empty() && !op.deep)
                    && let Some((_, _, text)) = argument(*only)
                {
                    self.know_differentiated(text, backward.retain.is_some());
                }
                if id.is_none() {
                    backward.loss = std::mem::take(&mut backward.loss).exported();
                    backward.loss.map_weights(&|_| Weights::default());
                    backward.loss.items = None;
                }
                backward.loss.graph = graph;
                backward.loss_span = call;
                backward.retain = backward.retain.map(|_| call);
                backward.create = backward.create.map(|_| call);
                backward.of_loop = None;
                backward.built_this_iteration = false;
                backward.has_outer_graph = false;
                backward.passes = Vec::new();
                backward.freed = Graph::none();
                backward.carried = self.goes_back(&backward.loss.graph);
            }
            if self.frame.silent > 0 || self.frame.ops.len() > 4096 {
                continue;
            }
            let named = Self::receiver_at_caller(&op.receiver, summary, &argument, receiver);
            // A receiver that is a parameter's name represents the caller's argument.
            let given = summary.parameters.iter().position(|parameter| *parameter == op.receiver);
            let given = given.and_then(&argument).map(|(_, value, _)| value.weights.clone());
            let own = if id.is_some() { op.weights.clone() } else { Weights::default() };
            let weights = match (&kind, given) {
                (OpKind::Backward(_), _) if id.is_some() && op.through.is_empty() => own,
                (OpKind::Backward(backward), _) => {
                    let through = self.reach(&backward.loss.graph, &[]);
                    if id.is_some() { own.union(&through) } else { through.with_unknown_owners() }
                }
                (_, Some(given)) if given.is_known() => given,
                _ => own,
            };
            let mut site = self.site();
            site.guard = self.copy_guards(&op.guards, outside, call, &mut copies);
            if op.grad != Grad::On && !op.inherits {
                site.grad = op.grad;
            }
            site.autocast = op.autocast.or(site.autocast);
            let span = if id.is_some() { op.span } else { call };
            self.frame.ops.push(Op {
                kind,
                span,
                receiver: named,
                weights,
                graph: graph(&op.graph),
                site,
                via: id.or(Some(FunctionId(0))),
                call: Some(call),
                deep: op.deep,
                switches: op
                    .switches
                    .iter()
                    .filter_map(|switch| {
                        let (_, _, text) = argument(switch.parameter)?;
                        let (own, is_same) = self.tested_parameter(&self.frame, text)?;
                        Some((own, is_same == switch.runs))
                    })
                    .collect(),
            });
        }
        self.record_passed_values(summary, id, arguments, receiver, skipped, call);
        if receiver == Some("self") {
            self.replay_writes(summary, &adopted, &graph);
        }
        let Some(returned) = &summary.returns else { return Value::from_kind(Kind::None) };
        let mut value = returned.value.clone();
        if self.frame.grad == Grad::Off {
            value.cut_graphs(if summary.grad_off { Flags::NONE } else { Flags::NO_GRAD_BUILT });
        } else {
            value.map_graphs(&graph);
        }
        value.map_weights(&|weights| adopted.weights(weights));
        // References to the other file are meaningless here.
        if matches!(value.kind, Kind::Test(_) | Kind::Exception(_) | Kind::ExceptionText(_)) {
            value.kind = Kind::Unknown;
        }
        if is_here { value } else { value.exported() }
    }

    /// Graph of an attribute of the object at a call of a method.
    fn attribute_graph(&self, name: &str) -> Graph {
        let known = self.attribute_name(name).and_then(|name| self.frame.env.get(name));
        if let Some(binding) = known {
            return binding.value.graph.clone();
        }
        let read = self.frame.reads.iter().find(|(known, _)| *known == name);
        read.map_or_else(Graph::unknown, |(_, id)| Graph::of_parameter(*id))
    }

    /// Name of an attribute in this text, if it occurs there.
    fn attribute_name(&self, name: &str) -> Option<&'a str> {
        self.attribute_names.get(name).copied()
    }

    /// Sets the attributes that a called method of the same object sets.
    fn replay_writes(&mut self, summary: &Summary, adopted: &Adopted, graph: &dyn Fn(&Graph) -> Graph) {
        for (name, value) in &summary.writes {
            let Some(own) = self.attribute_name(name) else { continue };
            let mut value = value.clone();
            if self.frame.grad == Grad::Off {
                value.cut_graphs(if summary.grad_off { Flags::NONE } else { Flags::NO_GRAD_BUILT });
            } else {
                value.map_graphs(graph);
            }
            value.map_weights(&|weights| adopted.weights(weights));
            let value = value.exported();
            let looped = self.frame.looped;
            let how = CounterBinding::Assigned(looped);
            self.frame.env.set(own, Binding { value, looped, outer: looped, how });
        }
    }

    /// Translates a receiver of the function to the caller's name.
    fn receiver_at_caller<'v>(
        name: &str,
        summary: &Summary,
        argument: &dyn Fn(usize) -> Option<&'v (Option<&'v str>, Value, &'a str)>,
        receiver: Option<&str>,
    ) -> String
    where
        'a: 'v,
    {
        let (root, rest) = name.split_once('.').map_or((name, None), |(root, rest)| (root, Some(rest)));
        let index = summary.parameters.iter().position(|parameter| parameter == root);
        let base = match index {
            Some(0) if summary.is_method && receiver.is_some() => receiver.map(str::to_owned),
            Some(index) => argument(index).map(|(_, _, text)| (*text).to_owned()),
            None => None,
        };
        match (base, rest) {
            (Some(base), Some(rest)) => format!("{base}.{rest}"),
            (Some(base), None) => base,
            (None, _) => name.to_owned(),
        }
    }

    /// Copies the function's branches into those of the caller.
    fn copy_guards(
        &mut self,
        guards: &[(Arc<GuardTest>, bool)],
        outside: Option<GuardId>,
        call: Span,
        copies: &mut FxHashMap<Vec<usize>, GuardId>,
    ) -> Option<GuardId> {
        let mut parent = outside;
        let mut key = Vec::new();
        for (what, negated) in guards {
            key.push(Arc::as_ptr(what) as usize);
            key.push(usize::from(*negated));
            let known = copies.get(&key).copied();
            let id = known.unwrap_or_else(|| {
                let id = GuardId(self.facts.guards.len() as u32);
                let looped: Option<LoopId> = self.frame.looped;
                self.facts.guards.push(Guard {
                    parent,
                    test: call,
                    what: what.clone(),
                    negated: *negated,
                    is_rest: false,
                    looped,
                });
                copies.insert(key.clone(), id);
                id
            });
            parent = Some(id);
        }
        parent
    }

    /// Marks the graphs that a backward pass frees.
    pub(super) fn mark_freed(&mut self, graph: &Graph, backward: &Backward, blind: bool) {
        let since = self.frame.first_graph;
        if blind && graph.is_none() {
            // It goes through a graph of the called function, which is not visible here.
            return;
        }
        let retained = backward.retain.is_some() || backward.create.is_some();
        for id in &graph.ids {
            let next = match (retained, graph.has(*id)) {
                (true, true) => GraphState::Retained,
                (false, true) => GraphState::Freed,
                (_, false) => GraphState::Kept,
            };
            let state = self.graphs.state(*id);
            let keeps = next == GraphState::Kept && [GraphState::Freed, GraphState::Unknown].contains(&state);
            if !keeps {
                self.graphs.set(*id, next);
            }
        }
        if let Some(own) = graph.own {
            self.graphs.set(own, if retained { GraphState::Retained } else { GraphState::Freed });
        }
        if graph.unknown {
            self.graphs.mark_uncertain(since);
        }
    }
}
