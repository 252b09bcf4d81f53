//! Items and slices.

use ruff_python_ast::{Expr, Operator, UnaryOp};

use super::definitions::dotted;
use super::model_call::LAST_OPERATIONS;
use super::{Walker, span};
use crate::facts::{Flags, Graph, Kind, Value};
use crate::position::Span;

impl<'a> Walker<'a> {
    /// `outputs["loss"] = loss`
    pub(super) fn set_item(&mut self, subscript: &'a ruff_python_ast::ExprSubscript, value: &Value) {
        let Some(name) = dotted(&subscript.value, self.text) else { return };
        self.replace_differentiated(subscript, value);
        let Some(binding) = self.frame.env.get(name).filter(|binding| binding.value.named.is_some()) else {
            return;
        };
        let mut binding = binding.clone();
        match &*subscript.slice {
            Expr::StringLiteral(key) => {
                let key = self.names.intern(key.value.to_str());
                binding.value.named = binding.value.named.and_then(|named| named.with(&key, value));
            }
            _ => binding.value.named = None,
        }
        self.frame.env.set(name, binding);
    }

    /// `history["losses"].append(loss)`, where `history` is a dictionary of which the items are known.
    pub(super) fn grow_named(&mut self, place: &'a Expr, grow: &dyn Fn(&mut Value)) {
        let Expr::Subscript(subscript) = place else { return };
        self.frame.env.remove(self.slice(span(place)));
        let Some(name) = dotted(&subscript.value, self.text) else { return };
        let Some(binding) = self.frame.env.get(name) else { return };
        let Some(named) = &binding.value.named else { return };
        let mut binding = binding.clone();
        binding.value.named = match &*subscript.slice {
            Expr::StringLiteral(key) => named.get(key.value.to_str()).cloned().and_then(|mut item| {
                grow(&mut item);
                named.with(&self.names.intern(key.value.to_str()), &item)
            }),
            _ => None,
        };
        self.frame.env.set(name, binding);
    }

    /// `probabilities[:, t] = softmax(x)`: a new tensor that gets results of one operation is one of them.
    pub(super) fn write_slice(
        &mut self,
        subscript: &'a ruff_python_ast::ExprSubscript,
        value: &Value,
        before: &Value,
    ) {
        let is_slice = match &*subscript.slice {
            Expr::Slice(_) => true,
            Expr::Tuple(tuple) => tuple.elts.iter().any(|part| matches!(part, Expr::Slice(_))),
            _ => false,
        };
        let Some(name) = dotted(&subscript.value, self.text).filter(|_| is_slice) else { return };
        let Some(binding) = self.frame.env.get(name) else { return };
        if !matches!((&before.kind, &value.kind), (Kind::Tensor, Kind::Tensor)) {
            return;
        }
        let mut last = value.flags.intersection(LAST_OPERATIONS);
        if !before.graph.is_none() {
            last = last.intersection(before.flags);
        }
        let mut binding = binding.clone();
        binding.value = binding.value.without(LAST_OPERATIONS).with_flags(last);
        self.frame.env.set(name, binding);
    }

    /// Records an assignment to `os.environ[…]` as a call.
    pub(super) fn environment(&mut self, subscript: &'a ruff_python_ast::ExprSubscript, whole: Span) {
        if !self.recording() || self.full_name(&subscript.value).as_deref() != Some("os.environ") {
            return;
        }
        let key = self.eval(&subscript.slice);
        let site = self.site();
        let key_span = span(&*subscript.slice);
        self.facts.calls.push(crate::facts::Call {
            span: whole,
            callee: span(&*subscript.value),
            path: Some("os.environ.__setitem__".into()),
            method: None,
            receiver: None,
            function: None,
            is_followed: false,
            target: Value::default(),
            arguments: vec![crate::facts::Argument {
                name: None,
                span: key_span,
                value_span: key_span,
                value: Value { graph: Graph::none(), ..key },
                starred: false,
            }],
            parentheses: Span::empty(whole.end),
            result: Value::from_kind(Kind::None),
            is_statement: true,
            logits: Vec::new(),
            site,
        });
    }

    pub(super) fn subscript(&mut self, node: &'a ruff_python_ast::ExprSubscript) -> Value {
        let owner = self.eval(&node.value);
        self.eval(&node.slice);
        if let Some(loss) = self.differentiated_item(node, &owner) {
            return loss;
        }
        // Before PyTorch 0.4, `loss.data[0]` was the number.
        if is_number_of_old(node) {
            return Value::from_kind(Kind::Number);
        }
        if is_first_size(node) {
            return Value::from_kind(Kind::Number).with_flags(Flags::SAMPLES);
        }
        if are_indices(node) {
            return Value::tensor(Graph::none()).with_device(owner.device);
        }
        if let Expr::StringLiteral(key) = &*node.slice
            && let Some(item) = owner.named.as_ref().and_then(|named| named.get(key.value.to_str()))
        {
            return item.clone();
        }
        match &owner.kind {
            Kind::Tuple(parts) => super::statement::literal(&node.slice)
                .and_then(|index| {
                    usize::try_from(if index < 0 { index + parts.len() as i64 } else { index }).ok()
                })
                .and_then(|index| parts.get(index).cloned())
                .unwrap_or_else(Value::unknown),
            Kind::Loader(_) => owner,
            Kind::ExceptionText(_) => owner,
            // An element of an array.
            Kind::Number if owner.graph.is_none() => Value::from_kind(Kind::Number),
            Kind::Tensor => {
                // A part selected by position shares the storage of the whole.
                let view = |slice: &Expr| {
                    matches!(slice, Expr::Slice(_)) || super::statement::literal(slice).is_some()
                };
                let shares = match &*node.slice {
                    Expr::Tuple(tuple) => {
                        tuple.elts.iter().all(|part| {
                            view(part) || matches!(part, Expr::EllipsisLiteral(_) | Expr::NoneLiteral(_))
                        }) && tuple.elts.iter().any(narrows)
                    }
                    Expr::StringLiteral(_) => false,
                    // `[0]` of an output may also be an element of a tuple.
                    slice => narrows(slice) && matches!(slice, Expr::Slice(_)),
                };
                let value = owner.without(
                    Flags::SCALAR.union(Flags::SOFTMAX).union(Flags::SIGMOID).union(Flags::LOG_SOFTMAX),
                );
                // `outputs["loss"]`, as `outputs.loss`
                let is_loss =
                    matches!(&*node.slice, Expr::StringLiteral(key) if key.value.to_str() == "loss");
                match (shares, is_loss) {
                    (true, _) => value.with_flags(Flags::VIEW),
                    (_, true) => value.with_flags(Flags::SCALAR),
                    _ if is_mask(&node.slice) => value.without(Flags::VIEW),
                    _ => value,
                }
            }
            _ => {
                if let Some(item) = owner.item() {
                    return item;
                }
                let mut value = Value::unknown();
                value.graph = owner.element_graph();
                if owner.items.as_ref().is_some_and(|items| matches!(items.kind, Kind::Tensor)) {
                    value.kind = Kind::Tensor;
                }
                if owner.graph.is_none() && owner.is(Flags::BATCH) {
                    value.graph = Graph::none();
                }
                value.loader = owner.loader;
                value.device = owner.device;
                value.flags = owner.flags.intersection(Flags::BATCH.union(Flags::OUTPUT));
                value
            }
        }
    }
}

impl Value {
    /// Graph of an element of a container.
    pub(super) fn element_graph(&self) -> Graph {
        let whole = self.graph.clone().with_unknown();
        match &self.items {
            Some(items) if !items.graph.is_none() => {
                let known = items.graph.uncut();
                Graph { unknown: true, there: items.graph.there, ..whole.union(&known) }
            }
            _ => whole,
        }
    }
}

/// Returns `true` for `loss.data[0]`.
fn is_number_of_old(node: &ruff_python_ast::ExprSubscript) -> bool {
    matches!(&*node.value, Expr::Attribute(owner) if owner.attr.id.as_str() == "data")
        && super::statement::literal(&node.slice) == Some(0)
}

/// Returns `true` for `x.shape[0]`.
fn is_first_size(node: &ruff_python_ast::ExprSubscript) -> bool {
    matches!(&*node.value, Expr::Attribute(owner) if owner.attr.id.as_str() == "shape")
        && super::statement::literal(&node.slice) == Some(0)
}

/// Returns `true` for `x.max(dim=1)[1]`, which has no graph.
fn are_indices(node: &ruff_python_ast::ExprSubscript) -> bool {
    let Expr::Call(call) = &*node.value else { return false };
    let name = match &*call.func {
        Expr::Attribute(attribute) => attribute.attr.id.as_str(),
        _ => return false,
    };
    ["max", "min", "topk", "sort", "median", "kthvalue", "mode"].contains(&name)
        && !call.arguments.is_empty()
        && super::statement::literal(&node.slice) == Some(1)
}

/// Returns `true` for an index that is a mask or a list of indices: what it selects is a copy.
fn is_mask(index: &Expr) -> bool {
    match index {
        Expr::Compare(_) | Expr::List(_) => true,
        Expr::UnaryOp(node) => matches!(node.op, UnaryOp::Invert),
        Expr::BinOp(node) => matches!(node.op, Operator::BitAnd | Operator::BitOr),
        _ => false,
    }
}

/// Returns `true` for an index or slice that selects a part.
fn narrows(slice: &Expr) -> bool {
    match slice {
        Expr::Slice(slice) => slice.lower.is_some() || slice.upper.is_some(),
        other => super::statement::literal(other).is_some(),
    }
}
