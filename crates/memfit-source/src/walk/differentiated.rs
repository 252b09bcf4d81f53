//! Names on which `backward()` is called: whatever is assigned to them is a tensor with a graph, even where
//! the model and the loss function are unknown.

use ruff_python_ast::visitor::source_order::{self, SourceOrderVisitor};
use ruff_python_ast::{Expr, ExprCall, ExprSubscript, Operator, Stmt};
use rustc_hash::FxHashSet;

use super::Walker;
use super::definitions::dotted;
use super::env::Binding;
use super::statement::{assignment, literal};
use crate::facts::{CounterBinding, Flags, Grad, Graph, GraphState, Kind, Value, Weights};

/// Names on which a function or module calls `backward()`.
pub(super) fn names<'a>(body: &'a [Stmt], text: &'a str) -> FxHashSet<&'a str> {
    if !text.contains("backward(") {
        return FxHashSet::default();
    }
    let mut found = Losses { names: FxHashSet::default(), sums: Vec::new(), dictionaries: Vec::new(), text };
    found.visit_body(body);
    // The terms of a sum that is differentiated have graphs as well: `total_loss = loss + penalty`.
    for _ in 0..MAX_SUMS {
        let before = found.names.len();
        let sums = std::mem::take(&mut found.sums);
        for (total, terms) in &sums {
            if found.names.contains(total) {
                found.loss(terms);
            }
        }
        found.sums = sums;
        let dictionaries = std::mem::take(&mut found.dictionaries);
        let summed = dictionaries.iter().filter(|(total, _)| found.names.contains(total));
        let summed: Vec<&str> = summed.map(|(_, values)| *values).collect();
        found.names.extend(summed);
        found.dictionaries = dictionaries;
        if found.names.len() == before {
            break;
        }
    }
    found.names
}

/// Maximum number of sums that a loss is a term of, one in another.
const MAX_SUMS: usize = 3;

struct Losses<'a> {
    names: FxHashSet<&'a str>,
    /// Assigned sums: the name, and the expression.
    sums: Vec<(&'a str, &'a Expr)>,
    /// Names that get the sum of a dictionary's values: the name, and `losses.values()`.
    dictionaries: Vec<(&'a str, &'a str)>,
    text: &'a str,
}

impl<'a> SourceOrderVisitor<'a> for Losses<'a> {
    fn visit_stmt(&mut self, statement: &'a Stmt) {
        // Functions have frames of their own.
        if let Some(([target], value)) = assignment(statement)
            && matches!(value, Expr::BinOp(_) | Expr::Name(_))
            && let Some(name) = dotted(target, self.text)
        {
            self.sums.push((name, value));
        }
        // `batch_loss += loss`
        if let Stmt::AugAssign(node) = statement
            && matches!(node.op, Operator::Add)
            && (self.is_named_loss(&node.value) || matches!(&*node.value, Expr::BinOp(_)))
            && let Some(name) = dotted(&node.target, self.text)
        {
            self.sums.push((name, &node.value));
        }
        // `loss = sum(losses.values())`
        if let Some(([target], value)) = assignment(statement)
            && let Some(values) = self.summed_values(value)
            && let Some(name) = dotted(target, self.text)
        {
            self.dictionaries.push((name, values));
        }
        if !matches!(statement, Stmt::FunctionDef(_) | Stmt::ClassDef(_)) {
            source_order::walk_stmt(self, statement);
        }
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        if let Expr::Call(call) = expression {
            self.call(call);
        }
        source_order::walk_expr(self, expression);
    }
}

impl<'a> Losses<'a> {
    fn call(&mut self, call: &'a ExprCall) {
        let Expr::Attribute(callee) = &*call.func else { return };
        let first = call.arguments.args.first();
        match (callee.attr.id.as_str(), first) {
            ("backward", None) => self.loss(&callee.value),
            // `accelerator.backward(loss)`; the argument of a tensor's `backward` is a gradient.
            ("backward" | "manual_backward", Some(loss)) => {
                let name = dotted(&callee.value, self.text).unwrap_or_default().to_ascii_lowercase();
                let runs = ["accelerator", "fabric", "engine", "manual", "self"];
                if runs.iter().any(|word| name.contains(word)) {
                    self.loss(loss);
                }
            }
            // Apex
            ("scale_loss", Some(loss)) => self.loss(loss),
            _ => {}
        }
    }

    /// `losses.values()` of `sum(losses.values())` and `sum(loss for loss in losses.values())`, and
    /// `losses[name]` of `sum(losses[name] for name in losses)`.
    fn summed_values(&self, expression: &'a Expr) -> Option<&'a str> {
        let Expr::Call(call) = expression else { return None };
        if !matches!(&*call.func, Expr::Name(name) if name.id.as_str() == "sum") {
            return None;
        }
        let (element, part) = match call.arguments.args.first()? {
            Expr::Generator(node) => (Some(&*node.elt), node.generators.first()),
            Expr::ListComp(node) => (Some(&*node.elt), node.generators.first()),
            _ => (None, None),
        };
        let slice = |expression: &Expr| super::span(expression).slice(self.text);
        if let (Some(whole @ Expr::Subscript(item)), Some(part)) = (element, part) {
            let is_each =
                slice(&item.value) == slice(&part.iter) && slice(&item.slice) == slice(&part.target);
            return is_each.then(|| slice(whole));
        }
        let values = part.map_or(call.arguments.args.first()?, |part| &part.iter);
        let text = super::span(values).slice(self.text);
        text.ends_with(".values()").then_some(text)
    }

    /// [`Self::summed_values`], and `losses["boxes"]` of `sum(losses["boxes"])`.
    fn summed(&self, expression: &'a Expr) -> Option<&'a str> {
        let of_item = || {
            let Expr::Call(call) = expression else { return None };
            let is_sum = matches!(&*call.func, Expr::Name(name) if name.id.as_str() == "sum");
            let [item @ Expr::Subscript(node)] = &*call.arguments.args else { return None };
            (is_sum && is_item(node)).then(|| super::span(item).slice(self.text))
        };
        self.summed_values(expression).or_else(of_item)
    }

    /// Adds the names of losses in an expression that is differentiated.
    fn loss(&mut self, expression: &'a Expr) {
        match expression {
            Expr::Name(_) | Expr::Attribute(_) => {
                if let Some(name) = dotted(expression, self.text) {
                    self.names.insert(name);
                }
            }
            // `losses["total"]`
            Expr::Subscript(node) if is_item(node) => {
                self.names.insert(super::span(expression).slice(self.text));
            }
            Expr::Call(_) if let Some(values) = self.summed(expression) => {
                self.names.insert(values);
            }
            // `scaler.scale(loss)`
            Expr::Call(call) => {
                if let (Expr::Attribute(callee), Some(first)) = (&*call.func, call.arguments.args.first())
                    && callee.attr.id.as_str() == "scale"
                {
                    self.loss(first);
                }
            }
            // `(loss / k).backward()`, `(weight * loss).backward()`
            Expr::BinOp(node) => match node.op {
                Operator::Div => self.loss(&node.left),
                Operator::Mult | Operator::Add | Operator::Sub => {
                    for part in [&*node.left, &*node.right] {
                        let is_sum = matches!(part, Expr::BinOp(_)) || self.summed(part).is_some();
                        if is_sum || self.is_named_loss(part) {
                            self.loss(part);
                        }
                    }
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn is_named_loss(&self, expression: &Expr) -> bool {
        let name = dotted(expression, self.text).unwrap_or_default();
        let last = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
        last.contains("loss") || last.contains("cost")
    }
}

/// Results that an expression takes a loss from: `results["loss"]`, `(results["loss"] * weights).mean()`;
/// `true` if the loss is an item of them as it is.
fn whole_of(source: &Expr) -> Option<(&Expr, bool)> {
    match source {
        Expr::Subscript(node) if is_item(node) || literal(&node.slice).is_some() => Some((&node.value, true)),
        Expr::Attribute(node) if node.attr.id.as_str() == "loss" => Some((&node.value, true)),
        Expr::Call(node) => match &*node.func {
            Expr::Attribute(way) if ["mean", "sum"].contains(&way.attr.id.as_str()) => {
                whole_of(&way.value).map(|(whole, _)| (whole, false))
            }
            _ => None,
        },
        Expr::BinOp(node) if matches!(node.op, Operator::Mult | Operator::Div) => {
            whole_of(&node.left).map(|(whole, _)| (whole, false))
        }
        _ => None,
    }
}

/// Returns `true` for an item of a named container by a literal key.
fn is_item(node: &ExprSubscript) -> bool {
    matches!(&*node.value, Expr::Name(_) | Expr::Attribute(_))
        && matches!(&*node.slice, Expr::StringLiteral(_))
}

/// Value of `losses["total"]`, if `losses` is a dictionary of which this item is known.
fn named_item(node: &ExprSubscript, owner: &Value) -> Option<Value> {
    let Expr::StringLiteral(key) = &*node.slice else { return None };
    owner.named.as_ref()?.get(key.value.to_str()).cloned()
}

impl<'a> Walker<'a> {
    /// Value of `losses["total"]`, if `backward()` is called on it.
    pub(super) fn differentiated_item(&mut self, node: &'a ExprSubscript, owner: &Value) -> Option<Value> {
        let name = self.slice(super::span(node));
        if self.sums_values_of(self.slice(super::span(&*node.value))) && !owner.graph.is_none() {
            return Some(Value::tensor(owner.graph.clone()).with_flags(Flags::SCALAR));
        }
        if !is_item(node) || !self.frame.differentiated.contains(name) {
            return None;
        }
        if let Some(binding) = self.frame.env.get(name) {
            return Some(binding.value.clone());
        }
        // One of the results of a model or a criterion has their graph.
        let is_result = matches!(owner.kind, Kind::Tensor) && owner.graph.is_known();
        let mut value = if let Some(item) = named_item(node, owner) {
            item
        } else if is_result {
            Value::tensor(owner.graph.clone()).with_device(owner.device)
        } else {
            Value::unknown()
        };
        self.mark_differentiated(name, &mut value);
        self.share_graph(&node.value, &value);
        let looped = self.frame.looped;
        let how = CounterBinding::Elsewhere;
        self.frame.env.set(name, Binding { value: value.clone(), looped, outer: looped, how });
        Some(value)
    }

    /// Gives the results from which a differentiated loss is taken, as in `loss = results["loss"]`, the
    /// graph of the loss.
    pub(super) fn share_differentiated(&mut self, name: &'a str, source: &'a Expr) {
        let Some((whole, is_scalar)) = whole_of(source) else { return };
        let Some(whole) = dotted(whole, self.text).filter(|_| self.frame.differentiated.contains(name))
        else {
            return;
        };
        let loss = self.frame.env.get(name).map(|binding| binding.value.clone());
        let known = self.frame.env.get(whole).cloned();
        let (Some(loss), Some(mut binding)) = (loss, known) else { return };
        if !matches!(binding.value.kind, Kind::Tensor | Kind::Unknown) || loss.graph.is_none() {
            return;
        }
        if let Some(own) = loss.graph.own {
            binding.value.graph = binding.value.graph.union(&loss.graph).with_own(own);
        }
        if is_scalar {
            binding.value.flags = binding.value.flags.union(Flags::SCALAR);
        }
        self.frame.env.set(whole, binding);
    }

    /// Gives results of which one item is differentiated, `results["loss"].backward()`, the graph of it.
    fn share_graph(&mut self, whole: &'a Expr, loss: &Value) {
        let Some(whole) = dotted(whole, self.text) else { return };
        let Some(binding) = self.frame.env.get(whole) else { return };
        let is_result = matches!(binding.value.kind, Kind::Tensor | Kind::Unknown);
        let (Some(own), true) = (loss.graph.own, is_result) else { return };
        let mut binding = binding.clone();
        binding.value.graph = binding.value.graph.union(&loss.graph).with_own(own);
        binding.value.flags = binding.value.flags.union(Flags::SCALAR);
        self.frame.env.set(whole, binding);
    }

    /// Takes the graph of a differentiated item from the results again: `results["loss"] =
    /// results["loss"].detach()`.
    pub(super) fn replace_differentiated(&mut self, node: &'a ExprSubscript, value: &Value) {
        let item = self.slice(super::span(node));
        let is_loss = matches!(&*node.slice, Expr::StringLiteral(key) if key.value.to_str().contains("loss"));
        let is_it = is_loss || self.frame.differentiated.contains(item);
        if !is_item(node) || !is_it || !value.graph.is_none() {
            return;
        }
        let Some(whole) = dotted(&node.value, self.text) else { return };
        let is_result = |binding: &&Binding| {
            binding.value.graph.own.is_some() && matches!(binding.value.kind, Kind::Tensor | Kind::Unknown)
        };
        let Some(binding) = self.frame.env.get(whole).filter(is_result) else { return };
        let mut binding = binding.clone();
        binding.value.graph = Graph::unknown();
        binding.value.flags = binding.value.flags.without(Flags::SCALAR);
        self.frame.env.set(whole, binding);
        self.frame.env.remove(item);
    }

    /// Element of `losses.items()` or `losses.values()`, if the sum of these values is differentiated, or one
    /// of them.
    pub(super) fn differentiated_element(&mut self, iterated: &'a Expr) -> Option<Value> {
        let text = self.slice(super::span(iterated));
        let pairs = text.strip_suffix(".items()");
        let name = pairs.or_else(|| text.strip_suffix(".values()"))?;
        let graph = self.frame.env.get(name)?.value.graph.clone();
        // One of the values is the differentiated loss.
        if graph.own.is_none() && !self.sums_values_of(name) {
            return None;
        }
        let loss = Value::tensor(graph).with_flags(Flags::SCALAR);
        Some(match pairs {
            Some(_) => Value::from_kind(Kind::Tuple([Value::from_kind(Kind::Number), loss].into())),
            None => loss,
        })
    }

    fn sums_values_of(&self, name: &str) -> bool {
        let is_each = |known: &str| {
            let key = known.strip_prefix(name).and_then(|rest| rest.strip_prefix('['));
            key.is_some_and(|key| !key.starts_with(['"', '\'']))
        };
        self.frame.grad != Grad::Off
            && self
                .frame
                .differentiated
                .iter()
                .any(|known| known.strip_suffix(".values()") == Some(name) || is_each(known))
    }

    /// Notes what a backward pass shows of the name in its loss: it is a scalar tensor with a graph, whatever
    /// computed it. `loss`, `scaler.scale(loss)`, `(loss / k)`
    pub(super) fn know_differentiated(&mut self, loss: &'a str, is_retained: bool) {
        let inner = loss.split_once(".scale(").map_or(loss, |(_, rest)| rest.trim_end_matches(')'));
        let name = inner.trim_matches(['(', ')']).split(['/', '*']).next().unwrap_or_default().trim();
        let Some(mut binding) = self.frame.env.get(name).cloned() else { return };
        let value = &mut binding.value;
        if self.frame.grad == Grad::Off
            || value.graph.is_none()
            || !matches!(value.kind, Kind::Unknown | Kind::Tensor)
        {
            return;
        }
        value.flags = value.flags.union(Flags::SCALAR);
        value.kind = Kind::Tensor;
        if self.graphs.state_of(value) == GraphState::Unknown {
            let state = if is_retained { GraphState::Retained } else { GraphState::Freed };
            let own = self.graphs.fresh(state, Weights::default());
            let before = value.graph.clone();
            value.graph = value.graph.clone().with_own(own);
            // What was stored of it before is the same tensor.
            let text = self.text;
            for (store, graph) in &mut self.frame.stores {
                if store.value_span.slice(text) == name && *graph == before {
                    store.value = value.clone();
                    store.graph_then = GraphState::Kept;
                    graph.clone_from(&value.graph);
                }
            }
        }
        self.frame.env.set(name, binding);
    }

    /// Gives a value that a loss is bound to a graph of its own, if its graph is unknown.
    pub(super) fn mark_differentiated(&mut self, name: &str, value: &mut Value) {
        if self.sums_values_of(name) && !value.graph.is_none() && value.graph.own.is_none() {
            let own = self.graphs.fresh(GraphState::Live, Weights::default());
            value.graph = value.graph.clone().with_own(own);
            return;
        }
        if self.frame.grad == Grad::Off
            || value.graph.is_none()
            || !matches!(value.kind, Kind::Unknown | Kind::Tensor)
            || !self.frame.differentiated.contains(name)
        {
            return;
        }
        value.flags = value.flags.union(Flags::SCALAR);
        if self.graphs.state_of(value) != GraphState::Unknown {
            return;
        }
        let own = self.graphs.fresh(GraphState::Live, Weights::default());
        value.graph = value.graph.clone().with_own(own);
        value.kind = Kind::Tensor;
    }
}
