//! Functions and classes of other modules of the project, looked up once for each name.

use std::sync::Arc;

use super::Walker;
use super::callee::is_of_every_module;
use crate::facts::{Call, Criterion, Flags, Kind, Receiver, Value, Weights};
use crate::project::{ClassExport, Summary};

impl Walker<'_> {
    /// Summary of a method whose class is in another module.
    pub(super) fn imported_method(&mut self, receiver: &Receiver, name: &str) -> Option<Arc<Summary>> {
        if let Kind::Imported(class) = &receiver.value.kind {
            return self.method_there(&class.clone(), name);
        }
        if receiver.value.is_module() && !is_of_every_module(name) && self.slice(receiver.span) != "self" {
            let mut models = receiver.value.weights.owners().iter().rev();
            let class = models.find_map(|id| self.facts.models[id.index()].class_path.clone())?;
            return self.method_there(&class, name);
        }
        let class = match receiver.value.kind {
            Kind::Object(class) => class,
            _ if self.slice(receiver.span) == "self" => {
                self.definitions.functions[self.frame.function.index()].class?
            }
            _ => return None,
        };
        let base = self.bases[class.index()].iter().find(|(_, class)| class.has(name));
        let base = base.map(|(base, _)| base.clone())?;
        self.method_there(&base, name)
    }

    pub(super) fn method_there(&mut self, class: &str, name: &str) -> Option<Arc<Summary>> {
        let key = format!("{class}:{name}");
        if let Some(known) = self.imported.get(&key) {
            return known.clone();
        }
        let found = self.imports.method(class, name);
        self.imported.insert(key, found.clone());
        found
    }

    /// Summary of a class of another module.
    pub(super) fn imported_class(&mut self, path: &str) -> Option<Arc<ClassExport>> {
        if let Some(known) = self.imported_classes.get(path) {
            return known.clone();
        }
        let found = self.imports.class(path);
        self.imported_classes.insert(path.to_owned(), found.clone());
        found
    }

    /// Object that a class of another module makes.
    pub(super) fn object_there(&mut self, call: &Call, path: &str, class: &ClassExport) -> Value {
        if class.is_module && path.ends_with("Loss") {
            let kind = Kind::Criterion { which: Criterion::Other, sums: false };
            let weights = if class.only_parameters { self.made_weights(call) } else { Weights::default() };
            return Value { weights, ..Value::from_kind(kind).with_flags(Flags::OPAQUE) };
        }
        if class.is_module {
            let norm = if class.has_batch_norm { Flags::BATCH_NORM } else { Flags::NONE };
            let frozen = super::model_call::fixed_flags(class.is_frozen, class.is_parameterless);
            let last = self.method_there(path, "forward").map_or(Flags::NONE, |own| own.last_operation());
            let weights = self.made_weights(call);
            let forward = self.method_there(path, "forward");
            self.set_outputs(&weights, forward.and_then(|own| own.last_operations()));
            return Value {
                weights,
                ..Value::from_kind(Kind::Module).with_flags(norm.union(frozen).union(last))
            };
        }
        if class.is_optimizer {
            let held = call.arguments.first();
            let weights = held.map_or_else(Weights::default, |held| held.value.weights.clone());
            return Value { weights, ..Value::from_kind(Kind::Optimizer) };
        }
        Value::from_kind(Kind::Imported(path.into()))
    }

    /// Summary of a function of another module.
    pub(super) fn imported_function(&mut self, path: &str) -> Option<Arc<Summary>> {
        if let Some(known) = self.imported.get(path) {
            return known.clone();
        }
        let found = self.imports.function(path);
        self.imported.insert(path.to_owned(), found.clone());
        found
    }
}
