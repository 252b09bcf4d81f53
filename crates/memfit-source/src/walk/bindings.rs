//! Names: binding them, and the values that they have.

use ruff_python_ast::Expr;

use super::Walker;
use super::env::Binding;
use crate::facts::{CounterBinding, Flags, FunctionId, Graph, GraphState, Kind, Value, Weights};
use crate::names;

/// Maximum number of attributes that a method reads and whose graphs are followed.
const MAX_READS: usize = 64;

impl<'a> Walker<'a> {
    /// Binds a name.
    pub(super) fn bind(&mut self, name: &'a str, mut value: Value, how: CounterBinding) {
        // `make(config).to(device)` is a tensor or a model.
        let is_moved = matches!(value.kind, Kind::Tensor)
            && (value.graph.unknown || value.graph.is_none())
            && value.loader.is_none()
            && !value.is(Flags::BATCH);
        if (value.is_unknown() || is_moved) && !matches!(how, CounterBinding::Target(_)) {
            let suggested = self.definitions.suggested(name);
            if !suggested.is_unknown() && (!is_moved || suggested.is_module()) {
                let graph = value.graph;
                value = Value {
                    graph,
                    device: value.device,
                    flags: value.flags.union(suggested.flags),
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
        self.mark_differentiated(name, &mut value);
        self.frame.env.remove_below(name);
        self.attribute(name, &value);
        let looped = self.frame.looped;
        let binding = Binding { value, looped, outer: looped, how };
        self.frame.env.set(name, binding);
        let looped = self.frame.looped;
        if !matches!(how, CounterBinding::Target(_)) {
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

    /// Records the value of `self.x` for other methods.
    pub(super) fn attribute(&mut self, name: &'a str, value: &Value) {
        let Some(class) = self.definitions.functions[self.frame.function.index()].class else { return };
        let Some(attribute) = name.strip_prefix("self.").filter(|rest| !rest.contains('.')) else { return };
        self.attribute_names.insert(attribute, name);
        let mut value = value.clone();
        value.graph = Graph::unknown().clone_if(!value.graph.is_none());
        value.forget_item_graphs();
        let joined = match self.attributes.get(&(class, attribute)) {
            // What a method does with it shows what an unknown value is.
            Some(old) if value.is_module() && (old.is_unknown() || matches!(old.kind, Kind::Tensor)) => value,
            Some(old) if old.is_module() && value.is_unknown() => old.clone(),
            // An inferred value replaces one that was only guessed from its name.
            Some(old) if !(old.is(Flags::BY_NAME) && old.kind == value.kind) => old.either(&value),
            _ => value,
        };
        self.attributes.insert((class, attribute), joined);
    }

    /// Gives a model in an attribute the device and the type to which a statement has changed it in place.
    pub(super) fn move_attribute(&mut self, name: &'a str, value: &Value) {
        let Some(class) = self.definitions.functions[self.frame.function.index()].class else { return };
        let Some(attribute) = name.strip_prefix("self.") else { return };
        if let Some(known) = self.attributes.get_mut(&(class, attribute))
            && known.is_module()
        {
            known.device = value.device;
            known.flags = known.flags.without(Flags::HALF).union(value.flags.intersection(Flags::HALF));
        }
    }

    /// Gives the value of an attribute that a method reads the graph that the attribute has at its calls.
    fn read_attribute(&mut self, attribute: &'a str, mut value: Value) -> Value {
        let is_followed = self.pass == 2
            && self.frame.reads.len() < MAX_READS
            && matches!(value.kind, Kind::Unknown | Kind::Tensor)
            && value.graph.is_unseen()
            && !value.graph.has_passes();
        if is_followed {
            let known = self.frame.reads.iter().find(|(known, _)| *known == attribute).map(|(_, id)| *id);
            let id = known.unwrap_or_else(|| {
                let id = self.graphs.fresh(GraphState::Unknown, Weights::default());
                self.frame.reads.push((attribute, id));
                self.frame.parameters.push(id);
                id
            });
            value.graph = Graph::of_parameter(id);
        }
        value
    }

    /// Value of a name or a dotted name.
    pub(super) fn lookup(&mut self, name: &'a str) -> (Value, CounterBinding) {
        if let Some(binding) = self.frame.env.get(name) {
            return (binding.value.clone(), binding.how);
        }
        if let Some(binding) = self.frame.outer.as_ref().and_then(|outer| outer.get(name)) {
            let mut value = binding.value.clone();
            value.graph = Graph::unknown().clone_if(!value.graph.is_none());
            value.forget_item_graphs();
            return (value, CounterBinding::Elsewhere);
        }
        if let Some(attribute) = name.strip_prefix("self.")
            && let Some(class) = self.definitions.functions[self.frame.function.index()].class
            && let Some(value) = self.attributes.get(&(class, attribute))
        {
            let value = value.clone();
            return (self.read_attribute(attribute, value), CounterBinding::Elsewhere);
        }
        if name.contains('.') {
            return (Value::unknown(), CounterBinding::Elsewhere);
        }
        if let Some(id) = self.definitions.top_functions.get(name) {
            return (Value::from_kind(Kind::Function(*id)), CounterBinding::Elsewhere);
        }
        if let Some(id) = self.definitions.top_classes.get(name) {
            return (Value::from_kind(Kind::Class(*id)), CounterBinding::Elsewhere);
        }
        if let Some(binding) = self.module.get(name).filter(|_| self.frame.function != FunctionId(0)) {
            return (binding.value.clone(), CounterBinding::Elsewhere);
        }
        if let Some(path) = self.definitions.imports.get(name) {
            return (super::expression::imported_value(path.clone()), CounterBinding::Elsewhere);
        }
        if names::is_builtin(name) {
            return (Value::from_kind(Kind::Path(self.names.builtin(name))), CounterBinding::Elsewhere);
        }
        if self.definitions.starred || self.module.contains_key(name) || self.frame.globals.contains(name) {
            let value = self.definitions.suggested(name);
            // `from x import *` usually brings the conventional names along.
            let module = names::conventional_path(name).filter(|_| value.is_unknown());
            let value = module.map_or(value, |path| Value::from_kind(Kind::Path(self.names.intern(path))));
            return (value, CounterBinding::Elsewhere);
        }
        if let Some(path) = names::conventional_path(name) {
            return (Value::from_kind(Kind::Path(self.names.intern(path))), CounterBinding::Nowhere);
        }
        let mut value = self.definitions.suggested(name);
        if value.is_unknown() {
            value.kind = Kind::Undefined;
        }
        // An enclosing function that is not being walked may bind the name.
        let nested = self.definitions.functions[self.frame.function.index()].parent != FunctionId(0)
            && self.frame.function != FunctionId(0);
        (value, if nested || self.pass == 1 { CounterBinding::Elsewhere } else { CounterBinding::Nowhere })
    }
}

/// Returns `true` if a name occurs in a text as a whole word.
pub(super) fn mentions(text: &str, name: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == name)
}

/// Collects the names that an assignment target binds.
pub(super) fn collect_names<'a>(target: &'a Expr, into: &mut Vec<&'a str>) {
    match target {
        Expr::Name(name) => into.push(name.id.as_str()),
        Expr::Tuple(node) => node.elts.iter().for_each(|part| collect_names(part, into)),
        Expr::List(node) => node.elts.iter().for_each(|part| collect_names(part, into)),
        Expr::Starred(node) => collect_names(&node.value, into),
        _ => {}
    }
}
