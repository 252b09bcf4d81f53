//! Resolution of callees: imported objects, functions of the file, and results of `functools.partial`.

use std::sync::Arc;

use ruff_python_ast::Expr;

use super::Walker;
use super::definitions::dotted;
use crate::facts::{Argument, FunctionId, Receiver};
use crate::facts::{Kind, Value};

impl<'a> Walker<'a> {
    /// Full name of a callee. Its root must be a module or an imported object.
    pub(super) fn imported_name(&mut self, callee: &'a Expr) -> Option<Arc<str>> {
        let mut root = callee;
        while let Expr::Attribute(attribute) = root {
            root = &attribute.value;
        }
        let Expr::Name(root) = root else { return None };
        let name = root.id.as_str();
        if let Some(binding) = self.frame.env.get(name) {
            binding.value.path()?;
            return self.interned_name(callee).filter(|path| path.starts_with(name));
        }
        if !self.definitions.imports.contains_key(name) {
            let own = self.definitions.top_functions.contains_key(name)
                || self.definitions.top_classes.contains_key(name)
                || self.frame.function != FunctionId(0) && self.module.contains_key(name);
            if own || crate::names::conventional_path(name).is_none() && !crate::names::is_builtin(name) {
                return None;
            }
        }
        let path = self.interned_name(callee)?;
        Some(if crate::names::is_builtin(&path) { self.names.builtin(&path) } else { path })
    }

    /// Model or loss function in an attribute that is called: `self.net(x)` is not a method call.
    pub(super) fn held_model(&self, callee: &'a Expr) -> Option<Value> {
        let Expr::Attribute(attribute) = callee else { return None };
        let name = dotted(callee, self.text)?;
        let class = self.definitions.functions[self.frame.function.index()].class;
        let own = name.strip_prefix("self.").zip(class);
        if own.is_some_and(|(_, class)| self.method_of(class, attribute.attr.id.as_str(), 0).is_some()) {
            return None;
        }
        let held = self.frame.env.get(name).map(|binding| &binding.value).or_else(|| {
            let (attribute, class) = own?;
            self.attributes.get(&(class, attribute))
        })?;
        let is_called = matches!(held.kind, Kind::Module | Kind::Criterion { .. });
        is_called.then(|| held.clone())
    }

    /// Resolves a call of a `functools.partial` object to the function and the bound arguments.
    pub(super) fn resolve_partial(
        &self,
        callee: &'a Expr,
        target: &Value,
        is_method: bool,
    ) -> Option<(Value, Vec<Argument>)> {
        if let Kind::Partial(partial) = &target.kind {
            return Some((partial.of.clone(), partial.arguments.clone()));
        }
        // `self.make(…)`
        let name = dotted(callee, self.text).filter(|_| is_method)?;
        let held = self.frame.env.get(name).map(|binding| &binding.value).or_else(|| {
            let class = self.definitions.functions[self.frame.function.index()].class?;
            self.attributes.get(&(class, name.strip_prefix("self.")?))
        })?;
        match &held.kind {
            Kind::Partial(partial) => Some((partial.of.clone(), partial.arguments.clone())),
            _ => None,
        }
    }

    /// Called function of this file.
    pub(super) fn resolve(
        &self,
        callee: &Expr,
        target: &Value,
        receiver: Option<&Receiver>,
        name: Option<&str>,
    ) -> Option<FunctionId> {
        if let Kind::Function(id) = target.kind {
            return Some(id);
        }
        if let (Expr::Name(name), None) = (callee, receiver)
            && target.is_unknown()
        {
            return self.definitions.top_functions.get(name.id.as_str()).copied();
        }
        let (receiver, name) = (receiver?, name?);
        let class = match receiver.value.kind {
            Kind::Object(class) => Some(class),
            _ if self.slice(receiver.span) == "self" => {
                self.definitions.functions[self.frame.function.index()].class
            }
            _ => None,
        }?;
        self.method_of(class, name, 0)
    }

    pub(super) fn method_of(
        &self,
        class: crate::facts::ClassId,
        name: &str,
        depth: u8,
    ) -> Option<FunctionId> {
        if let Some(id) = self.definitions.classes[class.index()].methods.get(name) {
            return Some(*id);
        }
        if depth > 4 {
            return None;
        }
        self.facts.class(class).bases.iter().find_map(|base| {
            let base = *self.definitions.top_classes.get(base.as_str())?;
            self.method_of(base, name, depth + 1)
        })
    }
}
