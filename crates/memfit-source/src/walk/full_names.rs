//! Interned full names of imported objects, since the walk looks up the same few again and again.

use std::sync::Arc;

use ruff_python_ast::Expr;
use rustc_hash::FxHashSet;

use super::Walker;
use crate::names;

/// Maximum number of components in a dotted name.
const MAX_COMPONENTS: usize = 12;

/// Interned texts.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: FxHashSet<Arc<str>>,
    /// Reused buffer for composed names.
    joined: String,
}

impl Names {
    /// Interns a text.
    pub(super) fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return known.clone();
        }
        let new: Arc<str> = text.into();
        self.known.insert(new.clone());
        new
    }

    /// Full name of a built-in object.
    pub(super) fn builtin(&mut self, name: &str) -> Arc<str> {
        self.member("builtins", name)
    }

    /// Full name of a module's member.
    pub(super) fn member(&mut self, module: &str, name: &str) -> Arc<str> {
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        joined.extend([module, ".", name]);
        let kept = self.intern(&joined);
        self.joined = joined;
        kept
    }
}

impl Walker<'_> {
    /// Full name of a dotted expression with an imported root, or a plain name.
    pub(super) fn full_name(&self, expression: &Expr) -> Option<String> {
        let mut name = String::new();
        self.write_name(expression, &mut name)?;
        Some(name)
    }

    /// Interned [`Self::full_name`].
    pub(super) fn interned_name(&mut self, expression: &Expr) -> Option<Arc<str>> {
        if let Expr::Name(alone) = expression
            && let Some(full) = self.definitions.imports.get(alone.id.as_str())
        {
            return Some(full.clone());
        }
        let mut name = std::mem::take(&mut self.names.joined);
        name.clear();
        let kept = self.write_name(expression, &mut name).map(|()| self.names.intern(&name));
        self.names.joined = name;
        kept
    }

    fn write_name(&self, expression: &Expr, into: &mut String) -> Option<()> {
        let mut parts = [""; MAX_COMPONENTS];
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
            None => names::conventional_path(root).unwrap_or(root),
        });
        for part in parts[..count].iter().rev() {
            into.push('.');
            into.push_str(part);
        }
        Some(())
    }
}
