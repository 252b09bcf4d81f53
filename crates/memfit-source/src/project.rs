//! Imports from other modules of the project, resolved by the caller, who knows the files.
//!
//! A module's definitions ([`Index`]) are listed without walking its functions; a function is walked when it
//! is called.

mod elsewhere;
mod summary;

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::facts::{Flags, Kind, Value};

pub use elsewhere::Elsewhere;
pub(crate) use summary::{
    ArraySwitch, ClassExport, ModelOrigin, Returned, StoredParameters, Summary, SummaryOp, Switch,
};

/// Definitions of a module by name.
#[derive(Clone, Debug, Default)]
pub struct Index {
    pub(crate) functions: FxHashSet<String>,
    pub(crate) classes: FxHashMap<String, Arc<ClassExport>>,
    /// Re-exported names: the module that they come from, and the name there.
    pub(crate) reexported: FxHashMap<String, (String, String)>,
    /// Modules from which it imports all names.
    pub(crate) starred: Vec<String>,
}

/// Summary of a function or method of another module.
#[derive(Clone, Debug)]
pub struct ImportedFunction(pub(crate) Arc<Summary>);

/// Summary of a class of another module.
#[derive(Clone, Debug)]
pub struct ImportedClass(pub(crate) Arc<ClassExport>);

impl Index {
    /// Returns `true` if the module defines a function or method (`Trainer.step`) of this name.
    pub fn has_function(&self, name: &str) -> bool {
        match name.split_once('.') {
            Some((class, method)) => self.classes.get(class).is_some_and(|class| class.has(method)),
            None => self.functions.contains(name),
        }
    }

    /// Class of this name.
    pub fn class(&self, name: &str) -> Option<ImportedClass> {
        self.classes.get(name).cloned().map(ImportedClass)
    }

    /// Names that `from module import *` brings along.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let own = self.functions.iter().chain(self.classes.keys()).chain(self.reexported.keys());
        own.map(String::as_str).filter(|name| !name.starts_with('_'))
    }

    /// Returns `true` if the module defines a function or class of this name, or names its origin.
    pub fn knows(&self, name: &str) -> bool {
        self.functions.contains(name) || self.classes.contains_key(name) || self.reexported.contains_key(name)
    }

    /// Modules of the project from which it imports all names.
    pub fn starred(&self) -> &[String] {
        &self.starred
    }

    /// Origin of a re-exported name: the module, and the name there.
    pub fn reexported(&self, name: &str) -> Option<(&str, &str)> {
        self.reexported.get(name).map(|(module, name)| (module.as_str(), name.as_str()))
    }
}

/// What a caller in another file tells of an argument, as far as it holds for the called function: what kind
/// of model, optimizer, loss function, scaler, loader, container or object it is.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenValue(pub(crate) Value);

impl GivenValue {
    /// `None` for a value of another kind.
    pub fn of(value: &Value) -> Option<Self> {
        let kind = match &value.kind {
            Kind::Scaler(_) => Kind::Scaler(None),
            Kind::Loader(_) => Kind::Loader(None),
            kind @ (Kind::Module
            | Kind::Criterion { .. }
            | Kind::Optimizer
            | Kind::Scheduler
            | Kind::Container { .. }) => kind.clone(),
            // A relative name is one of the caller's folder.
            Kind::Imported(class) if !class.starts_with('.') => Kind::Imported(class.clone()),
            _ => return None,
        };
        // A name is not evidence.
        (!value.is(Flags::BY_NAME)).then(|| Self(Value::from_kind(kind)))
    }

    /// Returns `true` if the name of a parameter tells it already.
    pub fn is_told_by(&self, name: &str) -> bool {
        crate::names::value_by_name(name).kind == self.0.kind
    }
}

/// Finds modules of the project by the names in import statements; relative names begin with dots.
/// Third-party modules are not found.
pub trait Modules {
    /// Summary of a function or a method (`Trainer.step`).
    fn function(&self, module: &str, name: &str) -> Option<ImportedFunction>;

    /// Summary of a class.
    fn class(&self, module: &str, name: &str) -> Option<ImportedClass>;

    /// Names that `from module import *` brings along.
    fn names(&self, _module: &str) -> Vec<String> {
        Vec::new()
    }

    /// What all callers in other files give to a parameter of a function or method of this file. The position
    /// is that of an argument, without the object of a method.
    fn given(&self, _function: &str, _position: usize, _parameter: &str) -> Option<GivenValue> {
        None
    }
}

/// Implementation for a file without a project: finds nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoModules;

impl Modules for NoModules {
    fn function(&self, _: &str, _: &str) -> Option<ImportedFunction> {
        None
    }

    fn class(&self, _: &str, _: &str) -> Option<ImportedClass> {
        None
    }
}

/// Object-safe interface for the walk.
pub(crate) trait Imports {
    fn function(&self, path: &str) -> Option<Arc<Summary>>;
    fn method(&self, class: &str, name: &str) -> Option<Arc<Summary>>;
    fn class(&self, path: &str) -> Option<Arc<ClassExport>>;
    fn names(&self, module: &str) -> Vec<String>;
    fn given(&self, function: &str, position: usize, parameter: &str) -> Option<GivenValue>;
}

impl<M: Modules + ?Sized> Imports for &M {
    fn function(&self, path: &str) -> Option<Arc<Summary>> {
        let (module, name) = split(path)?;
        Some(Modules::function(*self, module, name)?.0)
    }

    fn method(&self, class: &str, name: &str) -> Option<Arc<Summary>> {
        let (module, class) = split(class)?;
        Some(Modules::function(*self, module, &format!("{class}.{name}"))?.0)
    }

    fn class(&self, path: &str) -> Option<Arc<ClassExport>> {
        let (module, name) = split(path)?;
        Some(Modules::class(*self, module, name)?.0)
    }

    fn names(&self, module: &str) -> Vec<String> {
        Modules::names(*self, module)
    }

    fn given(&self, function: &str, position: usize, parameter: &str) -> Option<GivenValue> {
        Modules::given(*self, function, position, parameter)
    }
}

/// Splits a path: `.a.b.c` is `c` of the module `.a.b`; `.c` is `c` of the package itself.
pub(crate) fn split(path: &str) -> Option<(&str, &str)> {
    let at = path.rfind('.')?;
    let (module, name) = (&path[..at], &path[at + 1..]);
    if name.is_empty() {
        return None;
    }
    // The dots of `.c` and `..c` belong to the module.
    if module.chars().all(|c| c == '.') { Some((&path[..=at], name)) } else { Some((module, name)) }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn a_path_is_a_module_and_a_name() {
        let table = [
            ("a.b", Some(("a", "b"))),
            (".a.b", Some((".a", "b"))),
            (".b", Some((".", "b"))),
            ("..b", Some(("..", "b"))),
            ("b", None),
            ("a.", None),
        ];
        for (path, parts) in table {
            assert_eq!(split(path), parts, "{path}");
        }
    }
}
