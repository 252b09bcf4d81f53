//! Loops, branches, contexts and exceptions.

use ruff_python_ast::{ExceptHandler, Expr, Stmt, StmtFor, StmtIf, StmtTry, StmtWhile, StmtWith};

use super::bindings::collect_names;
use super::definitions::dotted;
use super::env::{mark, merge, take};
use super::statement::{assignment, leaves};
use super::{Walker, span, turns_off};
use crate::facts::{CounterBinding, Handler, HandlerId, IterableKind, Loop, LoopId, TryId, With};
use crate::facts::{Grad, Kind, Value};
use crate::position::Span;

impl<'a> Walker<'a> {
    pub(super) fn for_loop(&mut self, node: &'a StmtFor) {
        let iterated = self.eval(&node.iter);
        let (over, mut element, index) = self.iteration(&node.iter, &iterated);
        element.weights = element.weights.uncertain();
        if let Some(loss) = self.differentiated_element(&node.iter) {
            element = loss;
        }
        let mut targets = Vec::new();
        collect_names(&node.target, &mut targets);
        let at = span(node).start;
        let index = index.and_then(|start| {
            let Expr::Tuple(tuple) = &*node.target else { return None };
            match tuple.elts.first() {
                Some(Expr::Name(name)) => Some((name.id.to_string(), start)),
                _ => None,
            }
        });
        let iterable = span(self.wrapped_iterable(&node.iter));
        let made = Loop {
            targets: targets.iter().map(|name| (*name).to_owned()).collect(),
            index,
            ..self.new_loop(span(node), &node.iter, over, iterable)
        };
        let id = self.enter_loop(at, made);
        self.walk_iterations(id, |walker| {
            walker.assign_target(&node.target, &element, id);
            walker.body(&node.body);
        });
        self.body(&node.orelse);
    }

    /// A loop of this frame, with a header that ends with an expression.
    fn new_loop(&mut self, at: Span, last: &Expr, iterable_kind: IterableKind, iterable: Span) -> Loop {
        Loop {
            span: at,
            header: Span::new(at.start, span(last).end),
            parent: self.frame.looped,
            function: self.frame.function,
            is_while: false,
            iterable_kind,
            iterable,
            targets: Vec::new(),
            index: None,
            assigned: Vec::new(),
            emptied: Vec::new(),
            site: self.site(),
            end: 0,
        }
    }

    pub(super) fn while_loop(&mut self, node: &'a StmtWhile) {
        let endless = match &*node.test {
            Expr::BooleanLiteral(literal) => literal.value,
            Expr::NumberLiteral(_) => true,
            _ => false,
        };
        if endless && let Some((target, iterator)) = taken_with_next(&node.body) {
            self.loop_with_next(node, target, iterator);
            return;
        }
        let kind = if endless { IterableKind::Endless } else { IterableKind::Other };
        let made = Loop { is_while: true, ..self.new_loop(span(node), &node.test, kind, span(&*node.test)) };
        let id = self.enter_loop(span(node).start, made);
        self.walk_iterations(id, |walker| {
            walker.eval(&node.test);
            walker.body(&node.body);
        });
        self.body(&node.orelse);
    }

    /// `while True:` with `batch = next(batches)` until there are none: a loop over what `batches` iterates.
    fn loop_with_next(&mut self, node: &'a StmtWhile, target: &'a Expr, iterator: &'a Expr) {
        let iterated = self.eval(iterator);
        let (over, element, _) = self.iteration(iterator, &iterated);
        let mut targets = Vec::new();
        collect_names(target, &mut targets);
        let iterable = span(self.wrapped_iterable(iterator));
        let made = Loop {
            targets: targets.iter().map(|name| (*name).to_owned()).collect(),
            ..self.new_loop(span(node), &node.test, over, iterable)
        };
        let id = self.enter_loop(span(node).start, made);
        self.walk_iterations(id, |walker| {
            walker.assign_target(target, &element, id);
            walker.body(&node.body[1..]);
        });
        self.body(&node.orelse);
    }

    /// Expression that was bound to the name of an iterable, or the expression itself.
    fn wrapped_iterable(&self, iterable: &'a Expr) -> &'a Expr {
        match iterable {
            Expr::Name(name) => self.frame.iterables.get(name.id.as_str()).copied().unwrap_or(iterable),
            _ => iterable,
        }
    }

    /// Remembers what a name iterates: `bar = tqdm(enumerate(loader))`.
    pub(super) fn keep_iterable(&mut self, name: &'a str, source: Option<&'a Expr>) {
        let wraps = |call: &ruff_python_ast::ExprCall| {
            let last = match &*call.func {
                Expr::Name(name) => name.id.as_str(),
                Expr::Attribute(attribute) => attribute.attr.id.as_str(),
                _ => return false,
            };
            ["enumerate", "iter", "tqdm", "track", "trange", "zip"].contains(&last)
        };
        match source {
            Some(source @ Expr::Call(call)) if wraps(call) => self.frame.iterables.insert(name, source),
            _ => self.frame.iterables.remove(name),
        };
    }

    fn enter_loop(&mut self, at: u32, made: Loop) -> LoopId {
        let (site, over) = (made.site, made.iterable_kind.clone());
        let id = self.looped(at, || made);
        if self.pass == 2 {
            let found = &mut self.facts.loops[id.index()];
            found.site = site;
            found.iterable_kind = over;
        }
        id
    }

    /// Walks a loop's body. When recording, walks it twice, so that the second iteration sees the values of
    /// the first.
    fn walk_iterations(&mut self, id: LoopId, mut body: impl FnMut(&mut Self)) {
        let outside = self.frame.looped.replace(id);
        let (iteration_outside, loop_outside) =
            (self.frame.iteration_first_graph, self.frame.loop_first_graph);
        self.frame.loop_first_graph = self.graphs.count();
        self.loop_graphs.insert(id, self.graphs.count());
        if self.recording() {
            self.frame.silent += 1;
            body(self);
            self.frame.silent -= 1;
            self.begin_iteration(id, outside);
        }
        self.frame.iteration_first_graph = self.graphs.count();
        body(self);
        (self.frame.iteration_first_graph, self.frame.loop_first_graph) = (iteration_outside, loop_outside);
        self.frame.looped = outside;
        let order = self.order + 1;
        self.order = order;
        self.facts.loops[id.index()].end = order;
    }

    /// Names that the iteration before has bound began outside of this one: `x = v if first else cat((x,
    /// v))`.
    fn begin_iteration(&mut self, id: LoopId, outside: Option<LoopId>) {
        let loops = &self.facts.loops;
        let within = |bound: LoopId| {
            std::iter::successors(Some(bound), |inner| loops[inner.index()].parent).any(|inner| inner == id)
        };
        self.frame.env.outlive(|bound| within(bound).then_some(outside));
    }

    fn assign_target(&mut self, target: &'a Expr, element: &Value, id: LoopId) {
        match target {
            Expr::Name(name) => self.bind(name.id.as_str(), element.clone(), CounterBinding::Target(id)),
            Expr::Tuple(node) => {
                for (index, part) in node.elts.iter().enumerate() {
                    let value = match &element.kind {
                        Kind::Tuple(parts) if parts.len() == node.elts.len() => parts[index].clone(),
                        Kind::Tuple(_) => Value::unknown(),
                        _ => element.clone(),
                    };
                    self.assign_target(part, &value, id);
                }
            }
            Expr::List(node) => node.elts.iter().for_each(|part| self.assign_target(part, element, id)),
            Expr::Starred(node) => self.assign_target(&node.value, element, id),
            other => self.assign(other, element.clone(), None, span(other)),
        }
    }

    pub(super) fn branches(&mut self, node: &'a StmtIf) {
        let what = self.condition(&node.test);
        if is_main(&node.test) {
            self.facts.main_guard = self.facts.main_guard.or(Some(span(&*node.test)));
            self.body(&node.body);
            return;
        }
        let test = span(&*node.test);
        let outside = self.frame.guard;
        let mut deltas = Vec::new();
        let since = mark(&self.frame.env, &self.graphs);
        let guard = self.guard(test, what.clone(), false);
        self.frame.guard = Some(guard);
        let first_leaves = leaves(&node.body);
        self.branch(&node.body, first_leaves);
        self.frame.guard = outside;
        let delta = take(&mut self.frame.env, &mut self.graphs, since);
        if !first_leaves {
            deltas.push(delta);
        }
        let mut complete = false;
        for clause in &node.elif_else_clauses {
            let since = mark(&self.frame.env, &self.graphs);
            let opposite = self.guard(test, what.clone(), true);
            self.frame.guard = Some(opposite);
            if let Some(test) = &clause.test {
                let what = self.condition(test);
                let guard = self.guard(span(test), what, false);
                self.frame.guard = Some(guard);
            } else {
                complete = true;
            }
            self.branch(&clause.body, leaves(&clause.body));
            self.frame.guard = outside;
            let delta = take(&mut self.frame.env, &mut self.graphs, since);
            if !leaves(&clause.body) {
                deltas.push(delta);
            }
        }
        if !complete {
            let mut none = super::env::Delta::of_no_branch(&deltas);
            // After `if isinstance(x, torch.Tensor): x = x.item()`, no graph is left in `x`.
            if let ([taken], Some(name)) = (&deltas[..], tested_for_tensor(&node.test, self.text)) {
                none.bind_as_in(taken, name);
            }
            deltas.push(none);
        }
        merge(&mut self.frame.env, &mut self.graphs, &deltas);
        // Code after `if …: continue` is the other branch.
        if first_leaves && node.elif_else_clauses.is_empty() {
            let rest = self.guard(test, what, true);
            self.facts.guards[rest.index()].is_rest = true;
            self.frame.guard = Some(rest);
        }
    }

    /// Walks a branch. Where it leaves, such as by a `return`, what it has stored is as it is then: nothing
    /// that follows comes from it.
    fn branch(&mut self, body: &'a [Stmt], leaves: bool) {
        let from = self.frame.stores.len();
        self.body(body);
        if leaves {
            for (index, (_, graph)) in self.frame.stores.iter().enumerate().skip(from) {
                let value = Value { graph: graph.clone(), ..Value::default() };
                let state = self.graphs.state_of(&value);
                self.frame.left.entry(index).or_insert(state);
            }
        }
    }

    pub(super) fn walk_with(&mut self, node: &'a StmtWith) {
        let saved = (self.frame.grad, self.frame.autocast, self.frame.managed);
        for item in &node.items {
            let expression = &item.context_expr;
            let (path, called) = match expression {
                Expr::Call(call) => (self.full_name(&call.func), true),
                other => (self.full_name(other), false),
            };
            let value = self.eval(expression);
            if self.recording() {
                let site = self.site();
                self.facts.withs.push(With { item: span(expression), path: path.clone(), called, site });
            }
            match &value.kind {
                Kind::GradContext(grad) if called || !matches!(expression, Expr::Attribute(_)) => {
                    self.frame.grad = *grad;
                }
                Kind::Autocast(to) => self.frame.autocast = Some(*to),
                Kind::Managed => self.frame.managed = true,
                _ if path.as_deref().is_some_and(|path| called && turns_off(path)) => {
                    self.frame.grad = Grad::Off;
                }
                _ => {}
            }
            if let Some(target) = &item.optional_vars {
                let entered = if value.is_unknown() || !value.graph.is_none() {
                    Value { kind: Kind::Unknown, ..value }
                } else {
                    Value::unknown()
                };
                self.assign(target, entered, None, span(&**target));
                if let Expr::Name(name) = &**target {
                    self.keep_iterable(name.id.as_str(), Some(expression));
                }
            }
        }
        self.body(&node.body);
        (self.frame.grad, self.frame.autocast, self.frame.managed) = saved;
    }

    pub(super) fn attempt(&mut self, node: &'a StmtTry) {
        let at = span(node).start;
        let next = TryId(self.tries_at.len() as u32);
        let tried = *self.tries_at.entry(at).or_insert(next);
        let outside = self.frame.tried.replace(tried);
        let since = mark(&self.frame.env, &self.graphs);
        self.body(&node.body);
        self.body(&node.orelse);
        self.frame.tried = outside;
        let whole = take(&mut self.frame.env, &mut self.graphs, since);
        let mut deltas = vec![whole];
        for handler in &node.handlers {
            let ExceptHandler::ExceptHandler(handler) = handler;
            let since = mark(&self.frame.env, &self.graphs);
            self.handler(handler, tried);
            let delta = take(&mut self.frame.env, &mut self.graphs, since);
            if !leaves(&handler.body) {
                deltas.push(delta);
            }
        }
        merge(&mut self.frame.env, &mut self.graphs, &deltas);
        self.body(&node.finalbody);
    }

    fn handler(&mut self, node: &'a ruff_python_ast::ExceptHandlerExceptHandler, tried: TryId) {
        let at = span(node).start;
        let types = match node.type_.as_deref() {
            None => Vec::new(),
            Some(Expr::Tuple(tuple)) => tuple.elts.iter().filter_map(|part| self.full_name(part)).collect(),
            Some(one) => self.full_name(one).into_iter().collect(),
        };
        let mut shape = super::test::HandlerEffects::default();
        shape.read(&node.body, 0);
        let header_end = node.body.first().map_or(span(node).end, |first| span(first).start);
        let text = self.slice(Span::new(at, header_end));
        let header = Span::new(at, at + text.rfind(':').unwrap_or(0) as u32);
        let site = self.site();
        let made = Handler {
            span: span(node),
            header,
            types,
            name: node.name.as_ref().map(|name| name.id.to_string()),
            tried,
            leaves: shape.leaves,
            raises: shape.raises,
            only_tells: shape.only_reports(),
            reads_message: false,
            site,
        };
        let id = if let Some(id) = self.handlers_at.get(&at) {
            *id
        } else {
            let id = HandlerId(self.facts.handlers.len() as u32);
            self.facts.handlers.push(made.clone());
            self.handlers_at.insert(at, id);
            id
        };
        if self.recording() {
            let reads_message = self.facts.handlers[id.index()].reads_message;
            self.facts.handlers[id.index()] = Handler { reads_message, ..made };
        }
        let outside = self.frame.handler.replace(id);
        if let Some(name) = &node.name {
            let value = Value::from_kind(Kind::Exception(id));
            self.bind(name.id.as_str(), value, CounterBinding::Assigned(self.frame.looped));
        }
        self.body(&node.body);
        self.frame.handler = outside;
    }
}

/// Target and iterator of `batch = next(batches)`, if a body begins with it, and leaves the loop at the end
/// of the batches.
fn taken_with_next(body: &[Stmt]) -> Option<(&Expr, &Expr)> {
    let [Stmt::Try(first), ..] = body else { return None };
    let [only] = first.body.as_slice() else { return None };
    let ([target], Expr::Call(call)) = assignment(only)? else { return None };
    let [ExceptHandler::ExceptHandler(handler)] = first.handlers.as_slice() else { return None };
    let ends = matches!(handler.type_.as_deref(), Some(Expr::Name(name)) if name.id.as_str() == "StopIteration")
        && matches!(handler.body.last(), Some(Stmt::Break(_)));
    let is_next = matches!(&*call.func, Expr::Name(name) if name.id.as_str() == "next");
    match &*call.arguments.args {
        [iterator] if ends && is_next && first.orelse.is_empty() && first.finalbody.is_empty() => {
            Some((target, iterator))
        }
        _ => None,
    }
}

/// Name of which a condition tests that it is a tensor.
fn tested_for_tensor<'a>(test: &'a Expr, text: &'a str) -> Option<&'a str> {
    let Expr::Call(call) = test else { return None };
    let last_name = |expression| dotted(expression, text)?.rsplit('.').next();
    let tests = match (last_name(&call.func)?, &*call.arguments.args) {
        ("is_tensor", [_]) => true,
        ("isinstance", [_, kind]) => last_name(kind) == Some("Tensor"),
        _ => false,
    };
    match call.arguments.args.first() {
        Some(Expr::Name(name)) if tests => Some(name.id.as_str()),
        _ => None,
    }
}

/// Returns `true` for `if __name__ == "__main__":`.
fn is_main(test: &Expr) -> bool {
    match test {
        Expr::Compare(node) => matches!(&*node.left, Expr::Name(name) if name.id.as_str() == "__name__"),
        _ => false,
    }
}
