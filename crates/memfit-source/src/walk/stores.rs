//! Stored values: in tensors that grow, in containers of objects, in copies of weights; and arguments of
//! models.

use ruff_python_ast::Expr;

use super::{Frame, Walker};
use crate::facts::assigned_text;
use crate::facts::{
    Call, Flags, FunctionId, Grad, Graph, GraphState, Kind, LoopId, ModelArgument, Store, StoreKind, Value,
};
use crate::position::Span;
use crate::project::{StoredParameters, Summary};

/// Maximum number of elements of a display that are recorded.
const MAX_PARTS: usize = 16;

/// Functions that concatenate or stack tensors.
const JOIN_FUNCTIONS: &[&str] =
    &["torch.cat", "torch.concat", "torch.concatenate", "torch.vstack", "torch.hstack", "torch.row_stack"];

/// Container to which `losses`, `history["loss"]` and `history.setdefault("loss", [])` belong.
pub(super) fn container_of(mut receiver: &Expr) -> &Expr {
    loop {
        receiver = match receiver {
            Expr::Subscript(subscript) => &subscript.value,
            Expr::Call(call) => match &*call.func {
                Expr::Attribute(of) if ["setdefault", "get"].contains(&of.attr.id.as_str()) => &of.value,
                _ => return receiver,
            },
            other => return other,
        };
    }
}

impl<'a> Walker<'a> {
    /// Records `x = torch.cat([x, v])`, which grows like a list with `append(v)`.
    pub(super) fn store_joined(
        &mut self,
        name: &'a str,
        source: &'a Expr,
        value: &Value,
        whole: Span,
    ) -> bool {
        let call = match source {
            Expr::Call(call) => call,
            // `x = v if x is None else torch.cat([x, v])`
            Expr::If(node) => {
                return self.store_joined(name, &node.body, value, whole)
                    || self.store_joined(name, &node.orelse, value, whole);
            }
            _ => return false,
        };
        let parts = match call.arguments.find_argument_value("tensors", 0) {
            Some(Expr::List(list)) => &list.elts,
            Some(Expr::Tuple(tuple)) => &tuple.elts,
            _ => return false,
        };
        let text: &'a str = self.text;
        let is_own = |part: &Expr| super::span(part).slice(text) == name;
        if !parts.iter().any(is_own) || parts.iter().all(is_own) {
            return false;
        }
        if !self.imported_name(&call.func).is_some_and(|path| JOIN_FUNCTIONS.contains(&&*path)) {
            return false;
        }
        let added: Vec<&Expr> = parts.iter().filter(|part| !is_own(part)).collect();
        let at = if let [one] = added.as_slice() { super::span(*one) } else { super::span(source) };
        self.store(StoreKind::Join, name, value, at, whole);
        true
    }

    /// Loops in which the target of a store began, where it may accumulate and where it is made anew on some
    /// paths only. `None` for a target without a binding here.
    pub(super) fn origin_of_target(
        &self,
        how: StoreKind,
        target: &str,
    ) -> Option<(Option<LoopId>, Option<LoopId>)> {
        let root = target.split('[').next().unwrap_or(target);
        let bound = self.frame.env.get(target).or_else(|| self.frame.env.get(root))?;
        // What begins in one branch (`x = v if x is None`) grows in the others.
        let grows = matches!(how, StoreKind::Add | StoreKind::Join);
        Some((if grows { bound.outer } else { bound.looped }, bound.outer))
    }

    /// Records the elements of a list, tuple or dictionary display that is appended as a whole.
    pub(super) fn store_parts(&mut self, target: &'a str, display: &'a Expr, whole: Span) {
        if !self.recording() {
            return;
        }
        let parts: Vec<&'a Expr> = match display {
            Expr::List(node) => node.elts.iter().collect(),
            Expr::Tuple(node) => node.elts.iter().collect(),
            Expr::Dict(node) => node.items.iter().map(|item| &item.value).collect(),
            _ => return,
        };
        let origin = self.origin_of_target(StoreKind::Append, target);
        for part in parts.into_iter().take(MAX_PARTS) {
            let value = self.evaluate_silently(part);
            let (held, _) = self.lookup(target);
            let store =
                self.new_store(StoreKind::Append, target, &value, (super::span(part), whole), held, origin);
            self.frame.stored_parts.push((store, value.graph.clone()));
        }
    }

    pub(super) fn new_store(
        &mut self,
        how: StoreKind,
        target: &str,
        value: &Value,
        (value_span, whole): (Span, Span),
        held: Value,
        origin: Option<(Option<LoopId>, Option<LoopId>)>,
    ) -> Store {
        let grows = self.outermost_until(origin.and_then(|(bound, _)| bound));
        Store {
            kind: how,
            target: target.to_owned(),
            span: whole,
            value_span,
            value: value.clone(),
            target_value: held,
            grows,
            grows_between_resets: self.outermost_until(origin.and_then(|(_, outer)| outer)),
            live_somewhere: value
                .graph
                .ids
                .iter()
                .any(|id| value.graph.has(*id) && self.graphs.state(*id) == GraphState::Live),
            graph: GraphState::Unknown,
            graph_then: self.graphs.state_of(value),
            escapes: target.contains('.') || origin.is_none(),
            carried: self.is_carried(value),
            built_there: self.is_built_in(value, grows),
            by: None,
            sampled: false,
            stays: false,
            site: self.site(),
        }
    }

    /// Records the stores of a function that ends, with the states of their graphs.
    pub(super) fn settle_stores(&mut self, frame: &mut Frame<'a>) {
        let returned: &[u32] = frame.returned.as_ref().map_or(&[], |(value, _)| &value.graph.ids);
        let settled = |(mut store, graph): (Store, Graph)| {
            // The caller may still train on the returned value and its graphs.
            let handed_on = graph.ids.iter().any(|id| returned.contains(id));
            let value = Value { graph, ..Value::default() };
            store.graph = self.graphs.state_of(&value);
            store.escapes |= handed_on || frame.escaped.contains(store.target.as_str());
            store
        };
        for (index, stored) in std::mem::take(&mut frame.stores).into_iter().enumerate() {
            let store = settled(stored);
            let left = frame.left.get(&index).copied();
            self.facts.stores.push(Store { graph: left.unwrap_or(store.graph), ..store });
        }
        self.facts.stored_parts.extend(std::mem::take(&mut frame.stored_parts).into_iter().map(settled));
    }

    /// Returns `true` if a value's graph contains that of an earlier iteration.
    pub(super) fn is_carried(&self, value: &Value) -> bool {
        let earlier = self.frame.loop_first_graph..self.frame.iteration_first_graph;
        let alive = |id: &u32| earlier.contains(id) && self.graphs.state(*id) == GraphState::Live;
        value.graph.ids.iter().any(alive)
    }

    /// Returns `true` if a graph has a part of an earlier iteration of the innermost loop.
    pub(super) fn goes_back(&self, graph: &Graph) -> bool {
        let earlier = self.frame.loop_first_graph..self.frame.iteration_first_graph;
        let own = &self.frame.parameters;
        graph.ids.iter().any(|id| earlier.contains(id) && graph.has(*id) && !own.contains(id))
    }

    /// Returns `true` if a part of a value's graph is built in a loop.
    pub(super) fn is_built_in(&self, value: &Value, looped: Option<LoopId>) -> bool {
        let first = looped.and_then(|looped| self.loop_graphs.get(&looped)).copied();
        let own = &self.frame.parameters;
        let built = |id: &u32, first: u32| *id >= first && value.graph.has(*id) && !own.contains(id);
        first.is_none_or(|first| value.graph.ids.iter().any(|id| built(id, first)))
    }

    /// Records that a method adds its parameters to a container of its object.
    pub(super) fn record_stored_parameters(&mut self, store: &Store) {
        let graph = &store.value.graph;
        let adds = store.kind == StoreKind::Add || self.averages_item(store);
        let sums = adds && graph.ids.iter().any(|id| graph.has(*id));
        if !(sums || matches!(store.kind, StoreKind::Append | StoreKind::Item))
            || !store.target.starts_with("self.")
        {
            return;
        }
        let ids = &store.value.graph.ids;
        let frame = &mut self.frame;
        // Attributes follow the parameters.
        let parameters: Vec<usize> = (0..frame.parameters.len() - frame.reads.len())
            .filter(|index| ids.contains(&frame.parameters[*index]))
            .collect();
        if !parameters.is_empty() {
            let sampled = !sums && self.is_sampled(&store.target);
            let stays = !sums
                && matches!(store.target_value.kind, Kind::Container { bounded: false })
                && !self.is_emptied(&store.target);
            self.frame.stored_parameters.push(StoredParameters {
                target: store.target.as_str().into(),
                parameters,
                sums,
                sampled,
                stays,
            });
        }
    }

    /// Returns `true` for a value that is computed from the item that it replaces, as a moving average is:
    /// `shadow[name] = 0.9 * shadow[name] + 0.1 * value`, at once or by a name.
    fn averages_item(&self, store: &Store) -> bool {
        let whole = self.slice(store.span);
        let Some((item, value)) = whole.split_once('=').map(|(item, value)| (item.trim(), value)) else {
            return false;
        };
        let is_item = store.kind == StoreKind::Item && item.ends_with(']');
        let reads = |text: &str| text.contains(item) && ["+", "lerp"].iter().any(|way| text.contains(way));
        let by_name = || {
            let name = value.trim().split(['.', '(']).next().unwrap_or_default();
            let body = self.slice(self.facts.function(self.frame.function).span);
            body.lines().any(|line| assigned_text(line, name).is_some_and(reads))
        };
        is_item && (reads(value) || by_name())
    }

    /// Returns `true` if the class being walked selects elements of a container at random.
    fn is_sampled(&self, target: &str) -> bool {
        let Some(class) = self.definitions.functions[self.frame.function.index()].class else { return false };
        let text = self.slice(super::span(self.definitions.classes[class.index()].node));
        ["sample(", "choices(", "choice("].iter().any(|way| text.contains(&format!("{way}{target}")))
            || text.contains("rand") && text.contains(&format!("{target}[i"))
            || text.contains("rand") && text.contains(&format!("in {target}["))
    }

    /// Returns `true` if the class being walked empties a container of its object, or makes it anew after its
    /// first time.
    fn is_emptied(&self, target: &str) -> bool {
        let Some(class) = self.definitions.functions[self.frame.function.index()].class else { return true };
        let text = self.slice(super::span(self.definitions.classes[class.index()].node));
        let empty =
            ["[]", "{}", "dict()", "list()", "set()", "defaultdict(", "collections.defaultdict(", "None"];
        let anew = text.lines().filter_map(|line| {
            let value = assigned_text(line, target)?;
            empty.iter().any(|start| value.starts_with(start)).then_some(())
        });
        anew.count() > 1
            || [".clear(", ".pop(", ".popleft("].iter().any(|way| text.contains(&format!("{target}{way}")))
            || text.contains(&format!("del {target}"))
    }

    /// Records an argument of a method whose object keeps it.
    pub(super) fn record_passed_values(
        &mut self,
        summary: &Summary,
        id: Option<FunctionId>,
        arguments: &[(Option<&str>, Value, &'a str)],
        receiver: Option<&str>,
        skipped: usize,
        call: Span,
    ) {
        let Some(receiver) = receiver else { return };
        if !self.recording() {
            return;
        }
        let node = id.and_then(|id| self.definitions.functions[id.index()].node);
        let rest = node.and_then(|node| node.parameters.vararg.as_ref()).map(|rest| rest.name.id.as_str());
        let named_rest = summary.named_rest;
        let is_free = |keyword: &str| !summary.parameters.iter().any(|known| known == keyword);
        for kept in &summary.stored_parameters {
            let mut parts: Vec<Value> = Vec::new();
            for index in &kept.parameters {
                let Some(name) = summary.parameters.get(*index) else { continue };
                let is_rest = rest == Some(name.as_str());
                let from = index.saturating_sub(skipped);
                let mut place = 0;
                for (keyword, value, _) in arguments {
                    let is_it = match keyword {
                        Some(keyword) => {
                            *keyword == name.as_str() || named_rest == Some(*index) && is_free(keyword)
                        }
                        None => {
                            place += 1;
                            place == from + 1 || is_rest && place > from
                        }
                    };
                    if is_it {
                        parts.push(value.clone());
                    }
                }
            }
            let graph = parts.iter().fold(Graph::none(), |all, part| all.union(&part.graph));
            // An object that keeps it in an object of its own.
            if receiver.starts_with("self.") {
                let frame = &self.frame;
                let own: Vec<usize> = (0..frame.parameters.len() - frame.reads.len())
                    .filter(|index| graph.has(frame.parameters[*index]))
                    .collect();
                if !(own.is_empty() || kept.sums && graph.unknown) {
                    self.frame.stored_parameters.push(StoredParameters {
                        target: receiver.into(),
                        parameters: own,
                        sums: kept.sums,
                        sampled: kept.sampled,
                        stays: kept.stays,
                    });
                }
            }
            let value = Value { graph: graph.clone(), ..Value::from_kind(Kind::Tuple(parts.into())) };
            let store = Store {
                kind: if kept.sums { StoreKind::GiveSum } else { StoreKind::Give },
                target: receiver.to_owned(),
                span: call,
                value_span: call,
                target_value: Value::unknown(),
                grows: self.outermost_until(None),
                grows_between_resets: None,
                live_somewhere: false,
                graph: GraphState::Unknown,
                graph_then: self.graphs.state_of(&value),
                built_there: self.is_built_in(&value, self.outermost_until(None)),
                value,
                escapes: true,
                carried: false,
                by: id.map(|id| (id, kept.target.clone())),
                sampled: kept.sampled,
                stays: kept.stays,
                site: self.site(),
            };
            self.frame.stores.push((store, graph));
        }
    }

    /// Records the arguments of a model of this text while gradients are recorded.
    pub(super) fn record_model_arguments(&mut self, call: &Call, module: &Value) {
        let recorded = self.recording() && self.frame.grad != Grad::Off;
        let Some(class) = module.class.filter(|_| recorded) else { return };
        let positional = call.arguments.iter().filter(|argument| argument.name.is_none());
        for (position, argument) in positional.enumerate() {
            let is_leaf = argument.value.graph.is_none() && !argument.starred;
            self.facts.model_arguments.push(ModelArgument { class, position, is_leaf });
        }
    }

    /// One of a model's weights, or its name with it, as a loop over them binds it.
    pub(super) fn one_of_weights(&self, expression: &Expr, weights: &Value) -> Value {
        let flags = weights.flags.intersection(Flags::WEIGHTS.union(Flags::COPIED));
        // The weights of a state have no graph; parameters are leaves of one.
        let text = self.slice(super::span(expression));
        let are_leaves = text.ends_with("parameters()");
        let graph = Graph::unknown().clone_if(are_leaves);
        let one = Value { weights: weights.weights.clone(), ..Value::tensor(graph) };
        let one = one.with_device(weights.device).with_flags(flags);
        if text.ends_with(".items()") || text.ends_with("named_parameters()") {
            return Value::from_kind(Kind::Tuple([Value::from_kind(Kind::Number), one].into()));
        }
        one
    }
}

impl Value {
    /// Marks a value as a copy.
    pub(super) fn marked_copied(self) -> Self {
        if self.is(Flags::WEIGHTS) { self.with_flags(Flags::COPIED) } else { self }
    }
}
