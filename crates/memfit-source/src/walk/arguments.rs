//! Arguments of calls, which become the values of the called function's parameters in the second pass.

use super::Walker;
use crate::facts::{Call, FunctionId, Grad, Kind, Value};
use crate::position::Span;

impl Walker<'_> {
    /// Value that callers in other files give to a parameter.
    pub(super) fn given_by_others(&self, id: FunctionId, index: usize, parameter: &str) -> Option<Value> {
        let function = self.facts.function(id);
        let position = index.checked_sub(usize::from(function.class.is_some()))?;
        let name = function.name.strip_suffix(".__init__").unwrap_or(&function.name);
        self.imports.given(name, position, parameter).map(|given| given.0)
    }

    /// Records the arguments of a function for the second pass.
    pub(super) fn record_arguments(&mut self, call: &Call) {
        // Creating an object calls its `__init__`.
        let made = match call.target.kind {
            Kind::Class(class) if call.function.is_none() => self.method_of(class, "__init__", 0),
            Kind::Object(class) if call.function.is_none() => self.method_of(class, "__call__", 0),
            _ => None,
        };
        let Some(id) = call.function.or(made) else { return };
        if self.frame.silent > 0 {
            return;
        }
        self.facts.functions[id.index()].called = true;
        if self.pass != 1 {
            return;
        }
        let grad = self.frame.grad;
        let known = self.grads.get(&id).copied().unwrap_or(grad);
        self.grads.insert(id, if known == grad { grad } else { Grad::Unknown });
        let function = &self.facts.functions[id.index()];
        let skipped = usize::from(function.class.is_some() && (call.receiver.is_some() || made.is_some()));
        let mut position = skipped;
        for argument in call.arguments.iter().filter(|argument| !argument.starred) {
            let index = match &argument.name {
                None => {
                    position += 1;
                    Some(position - 1)
                }
                Some(name) => function.parameters.iter().position(|parameter| **parameter == **name),
            };
            let Some(index) = index else { continue };
            // The number in `mean = average(mean, loss)` is that of the first call.
            let is_first = self.frame.looped.is_some()
                && matches!(argument.value.kind, Kind::Int(_) | Kind::Number)
                && self.is_bound_to(call.span, argument.value_span);
            let value = if is_first { Value::unknown() } else { argument.value.clone() };
            let joined = match self.seeds.get(&(id, index)) {
                Some(old) => old.either(&value),
                None => value,
            };
            self.seeds.insert((id, index), joined);
        }
    }

    /// Returns `true` if a call's result is assigned to the name at a span.
    fn is_bound_to(&self, call: Span, name: Span) -> bool {
        let before = &self.text[..call.start as usize];
        let line = before.rsplit(['\n', ';']).next().unwrap_or_default();
        line.trim().strip_suffix('=').is_some_and(|target| target.trim() == self.slice(name))
    }
}
