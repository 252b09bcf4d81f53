//! Running sums and means: `x += v`, `x = x + v`, `x = 0.9 * x + 0.1 * v`, `x = (x * n + v) / (n + 1)`.

use ruff_python_ast::{Expr, Operator};

use super::bindings::mentions;
use super::{Walker, span};
use crate::facts::{Flags, LoopId, StoreKind, Value};
use crate::position::Span;

/// Methods of a tensor that return it, or a copy, with its graph.
const KEEPS_GRAPH: &[&str] =
    &["to", "cuda", "cpu", "float", "double", "half", "clone", "type_as", "contiguous"];

impl<'a> Walker<'a> {
    /// Records `x = x + v`.
    pub(super) fn store_sum(&mut self, name: &'a str, source: &'a Expr, whole: Span) {
        if let Some(added) = self.added(name, source) {
            let value = self.evaluate_silently(added);
            self.store(StoreKind::Add, name, &value, span(added), whole);
        }
    }

    /// Expression that a sum adds to its own value, in either branch of a conditional expression.
    pub(super) fn added(&self, name: &str, source: &'a Expr) -> Option<&'a Expr> {
        match source {
            Expr::BinOp(node) if matches!(node.op, Operator::Add) => {
                if self.is_scaled(name, &node.left) {
                    Some(&node.right)
                } else if self.is_scaled(name, &node.right) {
                    Some(&node.left)
                } else {
                    None
                }
            }
            // `(x * n + v) / (n + 1)`
            Expr::BinOp(node) if matches!(node.op, Operator::Div) => self.added(name, &node.left),
            Expr::BinOp(node) if matches!(node.op, Operator::Mult) => {
                self.added(name, &node.left).or_else(|| self.added(name, &node.right))
            }
            Expr::If(node) => self.added(name, &node.body).or_else(|| self.added(name, &node.orelse)),
            _ => None,
        }
    }

    /// Returns `true` for `x` and `0.9 * x`, and for `x.get(key, 0)` where the name is `x[key]`.
    fn is_scaled(&self, name: &str, expression: &Expr) -> bool {
        match expression {
            Expr::Call(call) => {
                let Expr::Attribute(way) = &*call.func else { return false };
                let Some(key) = call.arguments.args.first().filter(|_| way.attr.id.as_str() == "get") else {
                    return self.is_itself(name, expression);
                };
                let item = name.strip_prefix(self.slice(span(&*way.value)));
                let item = item.and_then(|rest| rest.strip_prefix('[')?.strip_suffix(']'));
                item == Some(self.slice(span(key)))
            }
            Expr::BinOp(node) if matches!(node.op, Operator::Mult) => {
                self.is_itself(name, &node.left) || self.is_itself(name, &node.right)
            }
            other => self.is_itself(name, other),
        }
    }

    /// Returns `true` for a name, and for a call that moves or copies its value: `x.to(device)`.
    fn is_itself(&self, name: &str, expression: &Expr) -> bool {
        let mut inner = expression;
        while let Expr::Call(call) = inner
            && let Expr::Attribute(way) = &*call.func
            && KEEPS_GRAPH.contains(&way.attr.id.as_str())
        {
            inner = &way.value;
        }
        self.slice(span(inner)) == name
    }

    /// Records `x = average(x, loss)`, where the called function's result has the graphs of both.
    pub(super) fn store_helper_sum(
        &mut self,
        name: &'a str,
        source: &'a Expr,
        result: &Value,
        whole: Span,
    ) -> bool {
        let Expr::Call(call) = source else { return false };
        let keywords = call.arguments.keywords.iter().map(|named| &named.value);
        let given: Vec<&'a Expr> = call.arguments.args.iter().chain(keywords).collect();
        let text: &'a str = self.text;
        let is_own = |argument: &Expr| span(argument).slice(text) == name;
        // Functions of PyTorch are known by what they do.
        let is_of_torch = self.imported_name(&call.func).is_some_and(|path| path.starts_with("torch."));
        if is_of_torch || !given.iter().any(|argument| is_own(argument)) {
            return false;
        }
        let Some(before) = self.frame.env.get(name).map(|binding| binding.value.graph.clone()) else {
            return false;
        };
        if !before.has_passes() || !result.graph.overlaps(&before) {
            return false;
        }
        for argument in given.into_iter().filter(|argument| !is_own(argument)) {
            let value = self.evaluate_silently(argument);
            if value.is(Flags::SCALAR) && value.graph.has_passes() && result.graph.overlaps(&value.graph) {
                self.store(StoreKind::Add, name, &value, span(argument), whole);
                return true;
            }
        }
        false
    }

    /// Marks a value that is computed from the target's own, without its graph: `h = h.detach()`,
    /// `self.h = tuple(part.detach() for part in self.h)`.
    pub(super) fn marked_cut_off(&self, name: &str, value: Value, source: Option<&Expr>) -> Value {
        let own = |source: &Expr| {
            let text = self.slice(span(source));
            if name.contains('.') { text.contains(name) } else { mentions(text, name) }
        };
        if value.graph.is_none() && source.is_some_and(own) {
            value.with_flags(Flags::CUT_OFF)
        } else {
            value
        }
    }

    /// `v` of `x += [v]`, with its value: the same as that of `x.append(v)`.
    pub(super) fn added_element(&mut self, added: &'a Expr, value: Value) -> (&'a Expr, Value) {
        let Expr::List(list) = added else { return (added, value) };
        let [element] = list.elts.as_slice() else { return (added, value) };
        if matches!(element, Expr::Starred(_)) {
            return (added, value);
        }
        (element, self.evaluate_silently(element))
    }

    /// Loops in which a name's value began.
    pub(super) fn origin_of(&self, name: &str) -> Option<(Option<LoopId>, Option<LoopId>)> {
        self.frame.env.get(name).map(|binding| (binding.looped, binding.outer))
    }

    /// Keeps the origin of an accumulator at its first value.
    pub(super) fn keep_origin(&mut self, name: &'a str, began: Option<(Option<LoopId>, Option<LoopId>)>) {
        if let Some((looped, outer)) = began
            && let Some(binding) = self.frame.env.get(name)
        {
            let mut binding = binding.clone();
            (binding.looped, binding.outer) = (looped, outer);
            self.frame.env.set(name, binding);
        }
    }
}
