//! Writes to parameters' gradients, and what requires them.

use ruff_python_ast::{Expr, ExprCall};

use super::env::Binding;
use super::statement::literal;
use super::{Walker, span};
use crate::facts::{Call, CounterBinding, Flags, Graph, Kind, OpKind, Value, Weights};
use crate::position::Span;

impl<'a> Walker<'a> {
    /// `h.detach_()` cuts `h` off, and in `for h in hidden:` all of `hidden`.
    pub(super) fn detached_in_place(&mut self, name: &'a str, result: &Value) {
        let Some(binding) = self.frame.env.get(name).cloned() else { return };
        if let CounterBinding::Target(id) = binding.how {
            let mut whole = self.slice(self.facts.loops[id.index()].iterable);
            // `enumerate(hidden)`, `tqdm(hidden, desc="cut")`
            while let Some((_, inner)) = whole.split_once('(') {
                whole = inner.split([',', ')']).next().unwrap_or(inner).trim();
            }
            if let Some(of) = self.frame.env.get(whole).cloned() {
                let mut value = of.value;
                value.cut_graphs(Flags::CUT_OFF);
                self.frame.env.set(whole, Binding { value, ..of });
            }
        }
        self.frame.env.set(name, Binding { value: result.clone(), ..binding });
    }

    /// Handles `for p in model.parameters(): p.requires_grad = False`.
    pub(super) fn require_grad_of(&mut self, parameter: &'a Expr, value: &Value, whole: Span) {
        let on = value.truth();
        let Expr::Name(name) = parameter else { return };
        let Some(binding) = self.frame.env.get(name.id.as_str()) else { return };
        let CounterBinding::Target(id) = binding.how else { return };
        let weights = binding.value.weights.clone();
        let over = self.slice(self.facts.loops[id.index()].iterable);
        let model = [".parameters()", ".named_parameters()"].iter().find_map(|end| over.strip_suffix(end));
        let Some(model) = model else {
            if weights.is_known() {
                self.require_grad("", weights, value, whole);
            }
            return;
        };
        self.require_grad(model, weights, value, whole);
        if let Some((binding, on)) = self.frame.env.get(model).zip(on) {
            let mut binding = binding.clone();
            binding.value = if on {
                binding.value.without(Flags::FROZEN)
            } else {
                binding.value.with_flags(Flags::FROZEN)
            };
            let value = binding.value.clone();
            self.frame.env.set(model, binding);
            self.keep_frozen(model, &value);
        }
    }

    /// Tensor of `p.requires_grad_(on)`. One that has a graph keeps it.
    pub(super) fn required_gradients(&mut self, node: &'a ExprCall, call: &Call, value: &Value) -> Value {
        if let Expr::Attribute(attribute) = &*node.func {
            let on = call.argument(0, "requires_grad").map(|argument| argument.value.clone());
            let on = on.unwrap_or_else(|| Value::from_kind(Kind::Bool(true)));
            self.require_grad_of(&attribute.value, &on, call.span);
        }
        let graph = Graph { unknown: true, ..value.graph.clone() };
        Value { kind: Kind::Tensor, graph, ..value.clone() }.without(Flags::NO_GRAD_BUILT)
    }

    /// Records that parameters are set to require gradients or not. A parameter of the function may decide.
    fn require_grad(&mut self, model: &str, weights: Weights, value: &Value, whole: Span) {
        self.op(OpKind::RequireGrad { on: value.truth() }, whole, model, weights);
        if let Some(op) = self.frame.ops.last_mut().filter(|op| op.span == whole) {
            op.graph = value.graph.clone();
        }
    }

    /// Keeps for other methods that `__init__` freezes a model of its object.
    pub(super) fn keep_frozen(&mut self, name: &'a str, value: &Value) {
        let Some(class) = self.definitions.functions[self.frame.function.index()].class else { return };
        let is_init = self.facts.functions[self.frame.function.index()].name.ends_with(".__init__");
        let Some(attribute) = name.strip_prefix("self.").filter(|_| is_init && value.is(Flags::FROZEN))
        else {
            return;
        };
        if let Some(known) = self.attributes.get_mut(&(class, attribute))
            && known.is_module()
        {
            known.flags = known.flags.union(Flags::FROZEN);
        }
    }

    /// Records `parameter.grad = …`. It is scaled where it is computed from itself.
    pub(super) fn write_grad(&mut self, owner: &'a Expr, is_scaled: bool, clears: bool, whole: Span) {
        self.eval(owner);
        let single = match owner {
            Expr::Subscript(subscript) => {
                is_scaled
                    && literal(&subscript.slice).is_some()
                    && self.slice(span(owner)).contains("param")
                    && self.are_parameters(&subscript.value)
            }
            _ => false,
        };
        let receiver = self.slice(span(owner));
        self.op(OpKind::WriteGrad { single, clears }, whole, receiver, Weights::default());
    }

    /// Returns `true` for a list of all parameters of a model. Any other may have one tensor, into which all
    /// weights are flattened.
    fn are_parameters(&mut self, list: &'a Expr) -> bool {
        match list {
            Expr::Name(_) | Expr::Attribute(_) => self.evaluate_silently(list).weights.is_known(),
            Expr::Call(_) | Expr::Subscript(_) => true,
            _ => false,
        }
    }

    /// Records `for own, other in zip(target.parameters(), model.parameters()): own.data.copy_(other)`.
    pub(super) fn copies_weights(&mut self, written: &'a Expr, whole: Span) {
        let mut name = written;
        if let Expr::Attribute(attribute) = name
            && attribute.attr.id.as_str() == "data"
        {
            name = &attribute.value;
        }
        let Expr::Name(name) = name else { return };
        let Some(binding) = self.frame.env.get(name.id.as_str()) else { return };
        let CounterBinding::Target(id) = binding.how else { return };
        let found = &self.facts.loops[id.index()];
        let place = found.targets.iter().position(|target| target == name.id.as_str());
        let over = self.slice(found.iterable);
        let Some(pair) = over.strip_prefix("zip(").and_then(|over| over.strip_suffix(')')) else { return };
        let models: Vec<&'a str> =
            pair.split(',').filter_map(|part| part.trim().strip_suffix(".parameters()")).collect();
        if let ([first, second], Some(place @ 0..=1), true) =
            (models.as_slice(), place, found.targets.len() == 2)
        {
            let model = if place == 0 { *first } else { *second };
            let known = self.lookup(model).0;
            let weights = self.weights_of(model, &known);
            self.op(OpKind::CopyWeights, whole, model, weights);
        }
    }
}
