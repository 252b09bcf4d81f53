//! Resolution of callees: imported objects, functions of the file, and results of `functools.partial`.

use std::sync::Arc;

use ruff_python_ast::Expr;

use super::Walker;
use super::definitions::dotted;
use crate::facts::{Argument, FunctionId, Receiver};
use crate::facts::{Kind, Value};

/// Methods that each `torch.nn.Module` has: a model's own `forward` is followed by the call of the model.
pub(super) fn is_of_every_module(name: &str) -> bool {
    matches!(
        name,
        "forward"
            | "__call__"
            | "train"
            | "eval"
            | "to"
            | "cuda"
            | "cpu"
            | "half"
            | "float"
            | "double"
            | "bfloat16"
            | "apply"
            | "zero_grad"
            | "requires_grad_"
            | "parameters"
            | "named_parameters"
            | "modules"
            | "named_modules"
            | "children"
            | "named_children"
            | "buffers"
            | "named_buffers"
            | "state_dict"
            | "load_state_dict"
            | "register_buffer"
            | "share_memory"
    )
}

/// Methods of models of libraries that record no gradients, or run no pass.
pub(super) fn is_silent(name: &str) -> bool {
    is_of_every_module(name)
        || [
            "get_",
            "set_",
            "generate",
            "predict",
            "save",
            "load",
            "print",
            "log",
            "add_",
            "from_",
            "register_",
            "resize_",
        ]
        .iter()
        .any(|start| name.starts_with(start))
        || matches!(
            name,
            "sample"
                | "infer"
                | "inference"
                | "transcribe"
                | "translate"
                | "beam_search"
                | "configure_optimizers"
                | "size"
                | "items"
                | "keys"
                | "values"
                | "update"
                | "get"
                | "append"
                | "step"
                | "transform"
                | "tokenize"
                | "no_sync"
                | "compile"
                | "type"
        )
}

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
        // `crnn = crnn.CRNN()`: the module binds the name of what it imported to something else.
        if self.frame.function != FunctionId(0)
            && self.module.get(name).is_some_and(|binding| binding.value.is_object())
        {
            return None;
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
    pub(super) fn held_model(&mut self, callee: &'a Expr) -> Option<Value> {
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
        });
        let Some(held) = held else {
            // What a base class in another module sets is known by its name.
            let Some((attribute, class)) = own else { return self.named_model(name, false) };
            let is_method = self.bases[class.index()].iter().any(|(_, base)| base.has(attribute));
            let named = crate::names::value_by_name(attribute);
            let is_called = matches!(named.kind, Kind::Module | Kind::Criterion { .. });
            return (is_called && !is_method && !attribute.contains('.')).then_some(named);
        };
        if matches!(held.kind, Kind::Module | Kind::Criterion { .. }) {
            return Some(held.clone());
        }
        // What was moved to a device, loaded or evaluated, and is called, is a model.
        let (device, weights) = (held.device, held.weights.clone());
        let is_moved = matches!(held.kind, Kind::Tensor) && (held.graph.is_unseen() || held.graph.is_none());
        let is_model = is_moved || held.is_unknown() && self.is_used_as_model(name);
        is_model.then(|| Value { device, weights, ..Value::from_kind(Kind::Module) })
    }

    /// Model in an attribute of an object that is not of this project, by the attribute's name, as in
    /// `pipe.unet(x)`.
    fn named_model(&self, name: &str, is_own: bool) -> Option<Value> {
        let (owner, attribute) = name.rsplit_once('.').filter(|_| !is_own)?;
        let known = self.frame.env.get(owner).map(|binding| &binding.value)?;
        let is_outside = match &known.kind {
            Kind::Object(class) => {
                let own = self.facts.classes.len() > class.index()
                    && self.method_of(*class, attribute, 0).is_none();
                return self
                    .attributes
                    .get(&(*class, attribute))
                    .filter(|held| own && held.is_module())
                    .cloned();
            }
            Kind::Imported(class) => match self.imported_classes.get(&**class) {
                Some(Some(export)) => !export.has(attribute),
                _ => class.ends_with(".from_pretrained"),
            },
            Kind::Unknown => known.graph.is_none() || known.graph.ids.is_empty(),
            _ => false,
        };
        let named = crate::names::value_by_name(attribute);
        (is_outside && named.is_module()).then_some(named)
    }

    /// Instance of a class of this project that is not a module, by its name in a type annotation.
    pub(super) fn instance_of(&mut self, name: &str) -> Option<Value> {
        if let Some(id) = self.definitions.top_classes.get(name).copied() {
            let is_plain =
                !self.facts.class(id).is_module && self.definitions.classes[id.index()].methods.len() > 1;
            return is_plain.then(|| Value::from_kind(Kind::Object(id)));
        }
        let class = self.imported_class(name)?;
        (!class.is_module && class.methods.len() > 1).then(|| Value::from_kind(Kind::Imported(name.into())))
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
            Kind::Module if self.slice(receiver.span) != "self" && !is_of_every_module(name) => {
                receiver.value.class
            }
            _ if self.slice(receiver.span) == "self" => {
                self.definitions.functions[self.frame.function.index()].class
            }
            _ => None,
        }?;
        let own = self.method_of(class, name, 0);
        own.or_else(|| self.method_of_subclass(class, name).filter(|_| self.slice(receiver.span) == "self"))
    }

    /// Method that a base class leaves to its subclasses, if one of this file alone defines it.
    fn method_of_subclass(&self, class: crate::facts::ClassId, name: &str) -> Option<FunctionId> {
        let base = self.facts.class(class).name.as_str();
        let mut found = self.facts.classes.iter().zip(&self.definitions.classes).filter_map(|(sub, node)| {
            let id = node.methods.get(name)?;
            sub.bases.iter().any(|known| known == base).then_some(*id)
        });
        let one = found.next()?;
        found.next().is_none().then_some(one)
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
