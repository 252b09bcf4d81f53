//! What a text imports from its project: asked of whoever knows where files are.
//!
//! A module is first asked what it defines ([`Index`]), which takes no walk; only a function that is called
//! is walked.

mod summary;

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

pub(crate) use summary::{ClassExport, Kept, Returned, Summary, SummaryOp};

/// What a module defines, by name.
#[derive(Clone, Debug, Default)]
pub struct Index {
    pub(crate) functions: FxHashSet<String>,
    pub(crate) classes: FxHashMap<String, Arc<ClassExport>>,
    /// What it imports from its own project: the module, and the name there.
    pub(crate) passed_on: FxHashMap<String, (String, String)>,
}

/// What a function or method of another module does.
#[derive(Clone, Debug)]
pub struct ImportedFunction(pub(crate) Arc<Summary>);

/// What is known of a class of another module.
#[derive(Clone, Debug)]
pub struct ImportedClass(pub(crate) Arc<ClassExport>);

impl Index {
    /// Whether a function of this name is defined, or a method: `Trainer.step`.
    pub fn has_function(&self, name: &str) -> bool {
        match name.split_once('.') {
            Some((class, method)) => self.classes.get(class).is_some_and(|class| class.has(method)),
            None => self.functions.contains(name),
        }
    }

    /// A class of this name.
    pub fn class(&self, name: &str) -> Option<ImportedClass> {
        self.classes.get(name).cloned().map(ImportedClass)
    }

    /// Where a name comes from that the module imports from its own project: the module, and the name there.
    pub fn passed_on(&self, name: &str) -> Option<(&str, &str)> {
        self.passed_on.get(name).map(|(module, name)| (module.as_str(), name.as_str()))
    }
}

/// Finds modules of the project by the names that a text imports them by; relative names begin with dots.
/// Nothing is found of modules of others.
pub trait Modules {
    /// What a function does, or a method: `Trainer.step`.
    fn function(&self, module: &str, name: &str) -> Option<ImportedFunction>;

    /// What is known of a class.
    fn class(&self, module: &str, name: &str) -> Option<ImportedClass>;
}

/// A text that stands alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Modules for Alone {
    fn function(&self, _: &str, _: &str) -> Option<ImportedFunction> {
        None
    }

    fn class(&self, _: &str, _: &str) -> Option<ImportedClass> {
        None
    }
}

/// As the walk asks.
pub(crate) trait Imports {
    fn function(&self, path: &str) -> Option<Arc<Summary>>;
    fn method(&self, class: &str, name: &str) -> Option<Arc<Summary>>;
    fn class(&self, path: &str) -> Option<Arc<ClassExport>>;
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
}

/// `.a.b.c` is `c` of the module `.a.b`; `.c` is `c` of the package itself.
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
