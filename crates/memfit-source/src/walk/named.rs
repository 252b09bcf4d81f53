//! Full names: of what is imported, and of what a module gave. Each is kept once, since the same few are
//! asked for at every turn of the walk.

use std::sync::Arc;

use ruff_python_ast::Expr;
use rustc_hash::FxHashSet;

use super::Walker;
use crate::names;

/// The most parts of a dotted name.
const MOST_PARTS: usize = 12;

/// Texts, each kept once.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: FxHashSet<Arc<str>>,
    /// Used again and again for names that are put together.
    joined: String,
}

impl Names {
    /// The text, as it is kept.
    pub(super) fn keep(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return known.clone();
        }
        let new: Arc<str> = text.into();
        self.known.insert(new.clone());
        new
    }

    /// The full name of what the language brings.
    pub(super) fn builtin(&mut self, name: &str) -> Arc<str> {
        self.member("builtins", name)
    }

    /// The full name of what a module holds.
    pub(super) fn member(&mut self, module: &str, name: &str) -> Arc<str> {
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        joined.extend([module, ".", name]);
        let kept = self.keep(&joined);
        self.joined = joined;
        kept
    }
}

impl Walker<'_> {
    /// The full name of a dotted expression whose root is imported, or a name as it is.
    pub(super) fn full_name(&self, expression: &Expr) -> Option<String> {
        let mut name = String::new();
        self.write_name(expression, &mut name)?;
        Some(name)
    }

    /// The same, kept.
    pub(super) fn kept_name(&mut self, expression: &Expr) -> Option<Arc<str>> {
        if let Expr::Name(alone) = expression
            && let Some(full) = self.definitions.imports.get(alone.id.as_str())
        {
            return Some(full.clone());
        }
        let mut name = std::mem::take(&mut self.names.joined);
        name.clear();
        let kept = self.write_name(expression, &mut name).map(|()| self.names.keep(&name));
        self.names.joined = name;
        kept
    }

    fn write_name(&self, expression: &Expr, into: &mut String) -> Option<()> {
        let mut parts = [""; MOST_PARTS];
        let mut count = 0;
        let mut inner = expression;
        while let Expr::Attribute(attribute) = inner {
            *parts.get_mut(count)? = attribute.attr.id.as_str();
            count += 1;
            inner = &attribute.value;
        }
        let Expr::Name(root) = inner else { return None };
        let root = root.id.as_str();
        into.push_str(match self.definitions.imports.get(root) {
            Some(full) => full,
            None if self.defines(root) => root,
            None => names::customary(root).unwrap_or(root),
        });
        for part in parts[..count].iter().rev() {
            into.push('.');
            into.push_str(part);
        }
        Some(())
    }
}
