//! Statements in order of execution.

use std::sync::Arc;

use ruff_python_ast::{Expr, Operator, Stmt, StmtAugAssign};
use rustc_hash::FxHashMap;

use super::definitions::dotted;
use super::env::{Binding, mark, merge, take};
use super::{MAX_DEPTH, Walker, span};
use crate::facts::{CounterBinding, ImportFrom, LoopId, StoreKind, Update};
use crate::facts::{Flags, Grad, GraphState, Kind, Value};
use crate::position::Span;

/// Returns `true` if a body always leaves the enclosing block.
pub(super) fn leaves(body: &[Stmt]) -> bool {
    match body.last() {
        Some(Stmt::Return(_) | Stmt::Raise(_) | Stmt::Continue(_) | Stmt::Break(_)) => true,
        Some(Stmt::Expr(statement)) => exits(&statement.value),
        Some(Stmt::If(inner)) => {
            leaves(&inner.body)
                && inner.elif_else_clauses.last().is_some_and(|last| last.test.is_none())
                && inner.elif_else_clauses.iter().all(|clause| leaves(&clause.body))
        }
        _ => false,
    }
}

/// Returns `true` for a call that ends the program.
fn exits(expression: &Expr) -> bool {
    let Expr::Call(call) = expression else { return false };
    match &*call.func {
        Expr::Name(name) => ["exit", "quit"].contains(&name.id.as_str()),
        Expr::Attribute(attribute) => ["exit", "_exit", "abort"].contains(&attribute.attr.id.as_str()),
        _ => false,
    }
}

impl<'a> Walker<'a> {
    pub(super) fn body(&mut self, body: &'a [Stmt]) {
        if self.depth > MAX_DEPTH {
            return;
        }
        self.depth += 1;
        let outside = self.frame.guard;
        for statement in body {
            self.statement(statement);
        }
        self.frame.guard = outside;
        self.depth -= 1;
    }

    fn statement(&mut self, statement: &'a Stmt) {
        match statement {
            Stmt::Expr(node) => self.expression_statement(&node.value),
            Stmt::Assign(node) => {
                let value = self.eval(&node.value);
                for target in &node.targets {
                    self.assign(target, value.clone(), Some(&node.value), span(node));
                }
            }
            Stmt::AnnAssign(node) => {
                let value = match &node.value {
                    Some(value) => self.eval(value),
                    None => return,
                };
                let value = if value.is_unknown() {
                    self.annotation_value(&node.annotation).unwrap_or(value)
                } else {
                    value
                };
                self.assign(&node.target, value, node.value.as_deref(), span(node));
            }
            Stmt::AugAssign(node) => self.walk_augmented(node),
            Stmt::For(node) => self.for_loop(node),
            Stmt::While(node) => self.while_loop(node),
            Stmt::If(node) => self.branches(node),
            Stmt::With(node) => self.walk_with(node),
            Stmt::Try(node) => self.attempt(node),
            Stmt::Match(node) => {
                self.eval(&node.subject);
                let mut deltas = Vec::new();
                for case in &node.cases {
                    let since = mark(&self.frame.env, &self.graphs);
                    let outside = self.frame.guard;
                    let guard = self.guard(span(&case.pattern), Arc::default(), false);
                    self.frame.guard = Some(guard);
                    self.body(&case.body);
                    self.frame.guard = outside;
                    let delta = take(&mut self.frame.env, &mut self.graphs, since);
                    if !leaves(&case.body) {
                        deltas.push(delta);
                    }
                }
                deltas.push(super::env::Delta::default());
                merge(&mut self.frame.env, &mut self.graphs, &deltas);
            }
            Stmt::Return(node) => {
                let value = match &node.value {
                    Some(value) => {
                        let found = self.eval(value);
                        self.escape(value);
                        found
                    }
                    None => Value::from_kind(Kind::None),
                };
                self.record_return(node.value.as_deref());
                let mut ids = Vec::new();
                value.graph_ids(&mut ids);
                let mut states: FxHashMap<u32, GraphState> =
                    ids.iter().map(|id| (*id, self.graphs.state(*id))).collect();
                let joined = match self.frame.returned.take() {
                    Some((old, old_states)) => {
                        for (id, state) in old_states {
                            let now = *states.entry(id).or_insert(state);
                            states.insert(id, now.either(state));
                        }
                        (old.either(&value), states)
                    }
                    None => (value, states),
                };
                self.frame.returned = Some(joined);
            }
            Stmt::Raise(node) => {
                for part in node.exc.iter().chain(&node.cause) {
                    self.eval(part);
                }
            }
            Stmt::Assert(node) => {
                self.eval(&node.test);
            }
            Stmt::Delete(node) => {
                for target in &node.targets {
                    if let Some(name) = dotted(target, self.text) {
                        self.frame.env.remove(name);
                        self.record_emptied(name);
                    }
                }
            }
            Stmt::Global(node) => {
                for name in &node.names {
                    self.frame.globals.insert(name.id.as_str());
                }
            }
            Stmt::Nonlocal(node) => {
                for name in &node.names {
                    self.frame.globals.insert(name.id.as_str());
                }
            }
            Stmt::ImportFrom(node) if self.recording() && node.level == 0 => {
                let Some(module) = &node.module else { return };
                let names = node
                    .names
                    .iter()
                    .map(|alias| {
                        let bound = alias.asname.as_ref().unwrap_or(&alias.name);
                        (alias.name.id.to_string(), bound.id.to_string())
                    })
                    .collect();
                let import = ImportFrom {
                    span: span(node),
                    module_span: span(module),
                    module: module.id.to_string(),
                    names,
                };
                self.facts.imports.push(import);
            }
            Stmt::FunctionDef(node) => self.walk_nested_function(node),
            Stmt::ClassDef(node) => {
                // Statements of a class body run once, in a scope outside of the rules.
                for decorator in &node.decorator_list {
                    self.eval(&decorator.expression);
                }
                for statement in &node.body {
                    if let Stmt::FunctionDef(node) = statement {
                        self.walk_function(node);
                    }
                }
            }
            _ => {}
        }
    }

    fn walk_function(&mut self, node: &'a ruff_python_ast::StmtFunctionDef) {
        for decorator in &node.decorator_list {
            self.eval(&decorator.expression);
        }
    }

    /// A nested function sees the names around it.
    fn walk_nested_function(&mut self, node: &'a ruff_python_ast::StmtFunctionDef) {
        self.walk_function(node);
        let Some(id) = self.definitions.function_at.get(&span(node).start).copied() else { return };
        if self.definitions.functions[id.index()].parent == super::FunctionId(0)
            && self.frame.function == super::FunctionId(0)
        {
            return;
        }
        let name = node.name.id.as_str();
        self.bind(name, Value::from_kind(Kind::Function(id)), CounterBinding::Assigned(self.frame.looped));
        if self.frame.silent == 0 {
            let seen = self.frame.env.snapshot();
            self.closures.insert(id, Arc::new(seen));
        }
    }

    fn expression_statement(&mut self, expression: &'a Expr) {
        if let Expr::Call(call) = expression {
            let value = self.call(call, true);
            // `model.cuda()` and similar methods modify the model, as `model.eval().requires_grad_(False)`
            // does.
            if let Expr::Attribute(attribute) = &*call.func
                && value.is_module()
                && super::weights::RETURNS_ITSELF.contains(&attribute.attr.id.as_str())
                && (!["eval", "train"].contains(&attribute.attr.id.as_str())
                    || matches!(&*attribute.value, Expr::Call(_)))
                && let Some(name) = self.moved_name(call)
            {
                let looped = self.frame.looped;
                let elsewhere = || Binding {
                    value: Value::default(),
                    looped,
                    outer: looped,
                    how: CounterBinding::Elsewhere,
                };
                let known = self.frame.env.get(name).cloned().unwrap_or_else(elsewhere);
                self.attribute(name, &value);
                if self.frame.guard.is_none() && self.frame.looped.is_none() {
                    self.move_attribute(name, &value);
                }
                self.keep_frozen(name, &value);
                self.frame.env.set(name, Binding { value, ..known });
            }
            return;
        }
        self.eval(expression);
    }

    /// Marks the names in an expression as used by unknown code.
    pub(super) fn escape(&mut self, expression: &'a Expr) {
        match expression {
            Expr::Name(name) => {
                self.frame.escaped.insert(name.id.as_str());
            }
            Expr::Attribute(_) => {
                if let Some(name) = dotted(expression, self.text) {
                    self.frame.escaped.insert(name);
                }
            }
            Expr::Tuple(node) => node.elts.iter().for_each(|part| self.escape(part)),
            Expr::List(node) => node.elts.iter().for_each(|part| self.escape(part)),
            Expr::Dict(node) => node.items.iter().for_each(|item| self.escape(&item.value)),
            Expr::Starred(node) => self.escape(&node.value),
            Expr::Subscript(node) => self.escape(&node.value),
            Expr::BinOp(node) => {
                self.escape(&node.left);
                self.escape(&node.right);
            }
            Expr::Call(node) => node.arguments.args.iter().for_each(|part| self.escape(part)),
            Expr::If(node) => {
                self.escape(&node.body);
                self.escape(&node.orelse);
            }
            _ => {}
        }
    }

    pub(super) fn assign(&mut self, target: &'a Expr, value: Value, source: Option<&'a Expr>, whole: Span) {
        match target {
            Expr::Name(name) => {
                let name = name.id.as_str();
                let mut value = self.marked_cut_off(name, value, source);
                if let Some(source) = source {
                    self.store_sum(name, source, whole);
                    self.record_update(name, source, &value);
                    if value.is_module() && !value.weights.is_known() {
                        value.weights = self.alias_weights(source);
                    }
                }
                if matches!(value.kind, Kind::StateDict | Kind::Exception(_)) {
                    self.store(StoreKind::Assign, name, &value, source.map_or(whole, span), whole);
                }
                if let Some(source @ (Expr::Name(_) | Expr::Attribute(_))) = source
                    && matches!(value.kind, Kind::Container { .. })
                {
                    self.escape(source);
                }
                let how = CounterBinding::Assigned(self.frame.looped);
                let joins = source.is_some_and(|source| self.store_joined(name, source, &value, whole));
                let sums = joins
                    || source.is_some_and(|source| {
                        self.added(name, source).is_some()
                            || self.store_helper_sum(name, source, &value, whole)
                    });
                let began = self.origin_of(name).filter(|_| sums);
                self.keep_iterable(name, source);
                self.bind(name, value, how);
                self.keep_origin(name, began);
                if let Some(source) = source {
                    self.share_differentiated(name, source);
                }
            }
            Expr::Attribute(attribute) => {
                if attribute.attr.id.as_str() == "grad" {
                    let own = self.slice(span(target));
                    let is_scaled = source.is_some_and(|source| self.slice(span(source)).contains(own));
                    self.write_grad(&attribute.value, is_scaled, value.kind == Kind::None, whole);
                    return;
                }
                self.eval(&attribute.value);
                if attribute.attr.id.as_str() == "data" {
                    self.copies_weights(&attribute.value, whole);
                }
                if attribute.attr.id.as_str() == "requires_grad" {
                    self.require_grad_of(&attribute.value, &value, whole);
                }
                if let Some(source) = source {
                    self.escape(source);
                }
                self.replace_head(target, &value);
                if let Some(name) = dotted(target, self.text) {
                    let value = self.marked_cut_off(name, value, source);
                    if let Some(source) = source {
                        self.store_sum(name, source, whole);
                        self.record_update(name, source, &value);
                    }
                    if let Some(source) = source {
                        let _ = self.store_joined(name, source, &value, whole)
                            || self.store_helper_sum(name, source, &value, whole);
                    }
                    self.store(StoreKind::Assign, name, &value, source.map_or(whole, span), whole);
                    let how = CounterBinding::Assigned(self.frame.looped);
                    self.bind(name, value, how);
                }
            }
            Expr::Subscript(subscript) => {
                self.eval(&subscript.slice);
                self.eval(&subscript.value);
                if let Some(source) = source {
                    self.escape(source);
                }
                self.replace_head(target, &value);
                let own = self.slice(span(target));
                let before = self.evaluate_silently(&subscript.value);
                let joins = source.is_some_and(|source| self.store_joined(own, source, &value, whole));
                if let Some(name) = dotted(without_keys(&subscript.value), self.text)
                    .filter(|name| !joins && !self.is_moved_within(name, source))
                {
                    // `sums[key] = sums[key] + v`
                    if let Some(added) = source.and_then(|source| self.added(own, source)) {
                        let value = self.evaluate_silently(added);
                        self.store(StoreKind::Add, name, &value, span(added), whole);
                    } else {
                        self.store(StoreKind::Item, name, &value, source.map_or(whole, span), whole);
                    }
                }
                self.set_item(subscript, &value);
                self.write_slice(subscript, &value, &before);
                if self.frame.differentiated.contains(own) {
                    self.bind(own, value, CounterBinding::Assigned(self.frame.looped));
                }
                self.environment(subscript, whole);
            }
            Expr::Tuple(node) => self.unpack(&node.elts, &value, source, whole),
            Expr::List(node) => self.unpack(&node.elts, &value, source, whole),
            Expr::Starred(node) => self.assign(&node.value, Value::unknown(), None, whole),
            _ => {}
        }
    }

    /// Returns `true` for the value of `x[i][j] = x[j][i]`, which the container has already.
    fn is_moved_within(&self, name: &str, source: Option<&Expr>) -> bool {
        source.is_some_and(|source| {
            matches!(source, Expr::Subscript(_)) && dotted(without_keys(source), self.text) == Some(name)
        })
    }

    fn unpack(&mut self, targets: &'a [Expr], value: &Value, source: Option<&'a Expr>, whole: Span) {
        let sources: Option<&'a [Expr]> = match source {
            Some(Expr::Tuple(node)) if node.elts.len() == targets.len() => Some(&node.elts),
            _ => None,
        };
        for (index, target) in targets.iter().enumerate() {
            let part = match &value.kind {
                Kind::Tuple(parts) if parts.len() == targets.len() => parts[index].clone(),
                Kind::Tuple(_) => Value::unknown(),
                // `generator, discriminator = models`, of a list of models
                Kind::Container { .. } if let Some(item) = value.item() => item,
                _ => {
                    let mut part = value.clone().without(Flags::SCALAR);
                    if !matches!(part.kind, Kind::Tensor) {
                        part.kind = Kind::Unknown;
                    }
                    part
                }
            };
            self.assign(target, part, sources.map(|sources| &sources[index]), whole);
        }
    }

    fn record_update(&mut self, name: &'a str, source: &'a Expr, value: &Value) {
        let adds = match source {
            Expr::BinOp(node)
                if matches!(node.op, Operator::Add) && dotted(&node.left, self.text) == Some(name) =>
            {
                literal(&node.right)
            }
            _ => None,
        };
        self.update(name, adds, value.int().filter(|_| adds.is_none()));
    }

    fn update(&mut self, name: &str, adds: Option<i64>, sets: Option<i64>) {
        if self.recording() && (adds.is_some() || sets.is_some()) {
            let site = self.site();
            self.facts.updates.push(Update { name: name.to_owned(), adds, sets, site });
        }
    }

    /// Records the store of a value.
    pub(super) fn store(
        &mut self,
        how: StoreKind,
        target: &'a str,
        value: &Value,
        value_span: Span,
        whole: Span,
    ) {
        let (held, _) = self.lookup(target);
        let origin = self.origin_of_target(how, target);
        if matches!(how, StoreKind::Append | StoreKind::Item) {
            self.add_item(target, value);
        }
        // The target's graph includes the value's.
        if !matches!(how, StoreKind::Assign)
            && let Some(binding) = self.frame.env.get(target)
            && (!value.graph.is_none() || value.weights.is_known())
        {
            let mut binding = binding.clone();
            binding.value.graph = binding.value.graph.union(&value.graph);
            binding.value.weights = binding.value.weights.union(&value.weights);
            self.frame.env.set(target, binding);
        }
        if !self.recording() {
            return;
        }
        let store = self.new_store(how, target, value, (value_span, whole), held, origin);
        self.record_stored_parameters(&store);
        self.frame.stores.push((store, value.graph.clone()));
    }

    /// Adds an element to the container that a name is bound to.
    fn add_item(&mut self, target: &'a str, item: &Value) {
        let known = self.lookup(target).0;
        if !matches!(known.kind, Kind::Container { .. }) {
            return;
        }
        let mut joined = known;
        joined.add_item(item);
        if let Some(binding) = self.frame.env.get(target) {
            let mut binding = binding.clone();
            binding.value.items.clone_from(&joined.items);
            self.frame.env.set(target, binding);
        }
        self.attribute(target, &joined);
    }

    /// Outermost loop between here and the loop of the binding.
    pub(super) fn outermost_until(&self, bound: Option<LoopId>) -> Option<LoopId> {
        let mut found = None;
        let mut next = self.frame.looped;
        while let Some(id) = next {
            if Some(id) == bound {
                break;
            }
            found = Some(id);
            next = self.facts.loops[id.index()].parent;
        }
        found
    }

    /// Records that a container is emptied.
    pub(super) fn record_emptied(&mut self, name: &str) {
        let mut next = self.frame.looped;
        while let Some(id) = next {
            let found = &mut self.facts.loops[id.index()];
            if !found.emptied.iter().any(|known| known == name) {
                found.emptied.push(name.to_owned());
            }
            next = found.parent;
        }
    }

    fn walk_augmented(&mut self, node: &'a StmtAugAssign) {
        let value = self.eval(&node.value);
        let value = self.with_option_flags(node.op, &node.value, value);
        if let Expr::Attribute(attribute) = &*node.target
            && attribute.attr.id.as_str() == "grad"
        {
            self.write_grad(&attribute.value, true, false, span(node));
            return;
        }
        let Some(name) = dotted(&node.target, self.text) else {
            self.eval(&node.target);
            if let Expr::Subscript(subscript) = &*node.target
                && let Some(name) = dotted(without_keys(&subscript.value), self.text)
                && matches!(node.op, Operator::Add)
            {
                let (added, value) = self.added_element(&node.value, value);
                let is_list = matches!(&*node.value, Expr::List(_));
                let how = if is_list { StoreKind::Append } else { StoreKind::Add };
                self.store(how, name, &value, span(added), span(node));
                let before = self.evaluate_silently(&node.target);
                let sum = self.arithmetic(node.op, &before, &value).divided_in(span(node));
                self.grow_named(&node.target, &|item| {
                    if is_list {
                        item.add_item(&value);
                        item.graph = item.graph.union(&value.graph);
                    } else {
                        item.clone_from(&sum);
                    }
                });
                if is_list {
                    self.store_parts(name, added, span(node));
                }
            }
            return;
        };
        let (held, how) = self.lookup(name);
        if matches!(node.op, Operator::Add) {
            if matches!(held.kind, Kind::Container { .. }) {
                let (added, value) = self.added_element(&node.value, value);
                self.store(StoreKind::Append, name, &value, span(added), span(node));
                self.store_parts(name, added, span(node));
                return;
            }
            self.store(StoreKind::Add, name, &value, span(&*node.value), span(node));
        }
        let adds = match (node.op, literal(&node.value)) {
            (Operator::Add, Some(number)) => Some(number),
            _ => None,
        };
        self.update(name, adds, None);
        let in_place = self.frame.grad == Grad::Off && matches!(held.kind, Kind::Tensor);
        // Without gradients, the tensor is modified in place and stays a leaf.
        let result =
            if in_place { held } else { self.arithmetic(node.op, &held, &value).divided_in(span(node)) };
        let began = self.origin_of(name).unwrap_or((self.frame.looped, self.frame.looped));
        self.bind(
            name,
            result,
            if adds.is_some() { how } else { CounterBinding::Assigned(self.frame.looped) },
        );
        self.keep_origin(name, Some(began));
    }
}

/// Targets and value of an assignment, with or without an annotation.
pub(super) fn assignment(statement: &Stmt) -> Option<(&[Expr], &Expr)> {
    match statement {
        Stmt::Assign(node) => Some((&node.targets, &node.value)),
        Stmt::AnnAssign(node) => Some((std::slice::from_ref(&*node.target), node.value.as_deref()?)),
        _ => None,
    }
}

/// The dictionary of `losses["train"][step]`.
fn without_keys(mut expression: &Expr) -> &Expr {
    while let Expr::Subscript(subscript) = expression {
        expression = &subscript.value;
    }
    expression
}

/// Integer literal.
pub(super) fn literal(expression: &Expr) -> Option<i64> {
    match expression {
        Expr::NumberLiteral(node) => match &node.value {
            ruff_python_ast::Number::Int(number) => number.as_i64(),
            _ => None,
        },
        Expr::UnaryOp(node) if matches!(node.op, ruff_python_ast::UnaryOp::USub) => {
            literal(&node.operand).map(|number| -number)
        }
        _ => None,
    }
}
