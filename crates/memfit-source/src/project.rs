//! What a text imports from its project: asked of whoever knows where files are.

use std::sync::Arc;

use crate::walk::{ClassExport, Exports as Inner, Summary};

/// What a module offers to those who import it.
#[derive(Clone, Debug, Default)]
pub struct Exports(pub(crate) Inner);

/// Finds modules of the project by the names that a text imports them by.
pub trait Modules {
    /// What the module of this name offers; relative names begin with dots. Nothing for modules of others.
    fn exports(&self, module: &str) -> Option<Arc<Exports>>;
}

/// A text that stands alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Modules for Alone {
    fn exports(&self, _: &str) -> Option<Arc<Exports>> {
        None
    }
}

/// As the walk asks.
pub(crate) trait Imports {
    fn function(&self, path: &str) -> Option<Arc<Summary>>;
    fn class(&self, path: &str) -> Option<ClassExport>;
}

impl<M: Modules + ?Sized> Imports for &M {
    fn function(&self, path: &str) -> Option<Arc<Summary>> {
        let (module, name) = split(path)?;
        self.exports(module)?.0.functions.get(name).cloned()
    }

    fn class(&self, path: &str) -> Option<ClassExport> {
        let (module, name) = split(path)?;
        self.exports(module)?.0.classes.get(name).copied()
    }
}

/// `.a.b.c` is `c` of the module `.a.b`; `.c` is `c` of the package itself.
fn split(path: &str) -> Option<(&str, &str)> {
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
