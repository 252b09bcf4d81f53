//! Functions and classes of other modules of the project, looked up once for each name.

use std::sync::Arc;

use super::Walker;
use super::callee::is_of_every_module;
use crate::facts::Kind;
use crate::facts::Receiver;
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
