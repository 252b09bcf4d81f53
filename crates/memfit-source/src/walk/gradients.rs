//! Writes to parameters' gradients, and what requires them.

use ruff_python_ast::Expr;

use super::statement::literal;
use super::{Walker, span};
use crate::facts::{CounterBinding, Flags, OpKind, Weights};
use crate::position::Span;

impl<'a> Walker<'a> {
    /// Handles `for p in model.parameters(): p.requires_grad = False`.
    pub(super) fn require_grad_of(&mut self, parameter: &'a Expr, on: Option<bool>, whole: Span) {
        let Expr::Name(name) = parameter else { return };
        let Some(binding) = self.frame.env.get(name.id.as_str()) else { return };
        let CounterBinding::Target(id) = binding.how else { return };
        let weights = binding.value.weights.clone();
        let over = self.slice(self.facts.loops[id.index()].iterable);
        let model = [".parameters()", ".named_parameters()"].iter().find_map(|end| over.strip_suffix(end));
        let Some(model) = model else {
            if weights.is_known() {
                self.op(OpKind::RequireGrad { on }, whole, "", weights);
            }
            return;
        };
        self.op(OpKind::RequireGrad { on }, whole, model, weights);
        if let Some((binding, on)) = self.frame.env.get(model).zip(on) {
            let mut binding = binding.clone();
            binding.value = if on {
                binding.value.without(Flags::FROZEN)
            } else {
                binding.value.with_flags(Flags::FROZEN)
            };
            self.frame.env.set(model, binding);
        }
    }

    /// Records `parameter.grad = …`.
    pub(super) fn write_grad(&mut self, owner: &'a Expr, target: &'a Expr, clears: bool, whole: Span) {
        self.eval(owner);
        let single = match owner {
            Expr::Subscript(subscript) => {
                literal(&subscript.slice).is_some()
                    && matches!(&*subscript.value, Expr::Subscript(_) | Expr::Call(_) | Expr::Name(_))
                    && self.slice(span(owner)).contains("param")
            }
            _ => false,
        };
        let _ = target;
        let receiver = self.slice(span(owner));
        self.op(OpKind::WriteGrad { single, clears }, whole, receiver, Weights::default());
    }
}
