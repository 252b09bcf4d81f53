//! Queries on facts.

use super::{
    Argument, Call, Class, ClassId, Facts, Function, FunctionId, Guard, GuardId, Handler, HandlerId,
    IterableKind, Kind, LoaderId, Loop, LoopId, Op, OpKind, ScalerId, Site, Store,
};
use crate::position::Span;

/// Maximum number of functions whose callers are looked at, to find loops and constructors around a site.
const MAX_CALLERS: usize = 16;

impl Op {
    /// Source text of the receiver in the function that performs the operation.
    pub fn own_receiver(&self) -> &str {
        self.receiver.rsplit(".<locals>.").next().unwrap_or(&self.receiver)
    }
}

impl Function {
    /// Returns `true` for the method that makes an object.
    pub fn is_constructor(&self) -> bool {
        self.class.is_some() && self.name.ends_with(".__init__")
    }
}

impl Facts {
    /// Text of a span.
    pub fn slice(&self, span: Span) -> &str {
        span.slice(&self.text)
    }

    /// Stores of values, and of the parts of what is stored as a whole.
    pub fn kept(&self) -> impl Iterator<Item = &Store> {
        self.stores.iter().chain(&self.stored_parts)
    }

    /// Function with an id.
    pub fn function(&self, id: FunctionId) -> &Function {
        &self.functions[id.index()]
    }

    /// Text of the line before a span.
    pub fn before_on_line(&self, span: Span) -> &str {
        self.slice(Span::new(self.line_start(span.start).0, span.start))
    }

    /// Text that an assignment binds the value at a span to, if that is all before it in its statement on its
    /// line.
    pub fn bound_to(&self, span: Span) -> Option<&str> {
        let mut before = self.before_on_line(span);
        // `a, b = \` on the line before.
        if before.trim().is_empty() {
            let earlier = self.text[..self.line_start(span.start).0 as usize].trim_end_matches(['\r', '\n']);
            let continued = earlier.strip_suffix('\\').unwrap_or_default();
            before = continued.rsplit('\n').next().unwrap_or_default();
        }
        before.rsplit(';').next()?.trim().strip_suffix('=').map(|target| without_annotation(target.trim()))
    }

    /// Returns `true` if an assignment binds the value at a span, or a part of it, to a name.
    pub fn is_bound_to(&self, span: Span, name: &str) -> bool {
        self.bound_to(span).is_some_and(|targets| targets.split(',').any(|target| target.trim() == name))
    }

    /// Ids of all functions.
    pub fn function_ids(&self) -> impl Iterator<Item = FunctionId> + use<> {
        (0..self.functions.len() as u32).map(FunctionId)
    }

    /// Ids of all classes.
    pub fn class_ids(&self) -> impl Iterator<Item = ClassId> + use<> {
        (0..self.classes.len() as u32).map(ClassId)
    }

    /// Class with an id.
    pub fn class(&self, id: ClassId) -> &Class {
        &self.classes[id.index()]
    }

    /// Loop with an id.
    pub fn looped(&self, id: LoopId) -> &Loop {
        &self.loops[id.index()]
    }

    /// Branch with an id.
    pub fn guard(&self, id: GuardId) -> &Guard {
        &self.guards[id.index()]
    }

    /// Exception handler with an id.
    pub fn handler(&self, id: HandlerId) -> &Handler {
        &self.handlers[id.index()]
    }

    /// Call that created a loader.
    pub fn loader(&self, id: LoaderId) -> Option<&Call> {
        self.loaders.get(id.index()).and_then(|call| self.calls.get(*call))
    }

    /// Call that created a gradient scaler.
    pub fn scaler(&self, id: ScalerId) -> Option<&Call> {
        self.scalers.get(id.index()).and_then(|call| self.calls.get(*call))
    }

    /// A loop and its enclosing loops, innermost first.
    pub fn enclosing(&self, from: Option<LoopId>) -> impl Iterator<Item = LoopId> + '_ {
        std::iter::successors(from, |id| self.looped(*id).parent)
    }

    /// Returns `true` if a site is in a loop, at any depth.
    pub fn within(&self, site: &Site, looped: LoopId) -> bool {
        self.enclosing(site.looped).any(|id| id == looped)
    }

    /// A branch and its enclosing branches, innermost first.
    pub fn guards_of(&self, from: Option<GuardId>) -> impl Iterator<Item = GuardId> + '_ {
        std::iter::successors(from, |id| self.guard(*id).parent)
    }

    /// Calls of a function in the text. Creating an object calls its `__init__`, calling it its `__call__`.
    pub fn calls_of(&self, id: FunctionId) -> impl Iterator<Item = &Call> + '_ {
        let function = self.function(id);
        let method = function.name.rsplit('.').next().unwrap_or_default();
        let by_object = move |call: &Call| match call.target.kind {
            Kind::Class(class) => method == "__init__" && function.class == Some(class),
            Kind::Object(class) => method == "__call__" && function.class == Some(class),
            _ => false,
        };
        self.calls.iter().filter(move |call| {
            id != FunctionId::MODULE
                && (call.function == Some(id) || call.function.is_none() && by_object(call))
        })
    }

    /// A function and those that call it in the text, directly or not.
    pub fn callers(&self, id: FunctionId) -> Vec<FunctionId> {
        let mut found = vec![id];
        let mut at = 0;
        while let Some(callee) = found.get(at).copied() {
            for call in self.calls_of(callee) {
                if found.len() < MAX_CALLERS && !found.contains(&call.site.function) {
                    found.push(call.site.function);
                }
            }
            at += 1;
        }
        found
    }

    /// Argument that a call gives to a parameter of a function. A method's first one is its object.
    pub fn given<'c>(&self, call: &'c Call, id: FunctionId, parameter: usize) -> Option<&'c Argument> {
        let function = self.function(id);
        let name = function.parameters.get(parameter)?;
        let skipped = usize::from(function.class.is_some() && call.receiver.is_some());
        call.argument(parameter.checked_sub(skipped)?, name)
    }

    /// Loops that run a site, each with the site in its function that it runs: the innermost one around the
    /// site itself; without one, those around the calls of its function.
    pub fn loops_around<'f>(&'f self, site: &'f Site) -> Vec<(&'f Site, LoopId)> {
        let mut found = Vec::new();
        let mut seen = Vec::new();
        let mut sites = vec![site];
        while let Some(site) = sites.pop() {
            if let Some(looped) = site.looped {
                found.push((site, looped));
            } else if !seen.contains(&site.function) && seen.len() < MAX_CALLERS {
                seen.push(site.function);
                sites.extend(self.calls_of(site.function).map(|call| &call.site));
            }
        }
        found
    }

    /// Returns `true` for a constructor, and for a method that only constructors of the text call.
    pub fn is_construction(&self, id: FunctionId) -> bool {
        let mut seen = Vec::new();
        let mut callers = vec![id];
        while let Some(id) = callers.pop() {
            if self.function(id).is_constructor() || seen.contains(&id) {
                continue;
            }
            let before = callers.len();
            let mut calls = self.calls_of(id).filter(|_| self.function(id).class.is_some());
            let are_once = calls.by_ref().all(|call| {
                callers.push(call.site.function);
                call.site.looped.is_none()
            });
            if !are_once || callers.len() == before || seen.len() >= MAX_CALLERS {
                return false;
            }
            seen.push(id);
        }
        true
    }

    /// Returns `true` if a function makes the object that a method belongs to, or a part of it.
    pub fn constructs(&self, constructor: FunctionId, method: FunctionId) -> bool {
        let (made, used) = (self.function(constructor), self.function(method));
        constructor != method
            && made.class.is_some()
            && made.class == used.class
            && self.is_construction(constructor)
    }

    /// Returns `true` if one site has run when the other runs: it is earlier in the same function, or in the
    /// constructor of the object.
    pub fn precedes(&self, earlier: &Site, later: &Site) -> bool {
        if earlier.function == later.function {
            earlier.order < later.order
        } else {
            self.constructs(earlier.function, later.function)
        }
    }

    /// Returns `true` if two sites are in different branches of one `if`.
    pub fn are_exclusive(&self, one: &Site, other: &Site) -> bool {
        self.branch_between(one, other, &|_| true)
    }

    /// Returns `true` if two sites are in different branches of one `if` that counts nothing: no iteration
    /// runs both, and no later one of the same configuration the other.
    pub fn are_alternatives(&self, one: &Site, other: &Site) -> bool {
        self.branch_between(one, other, &|guard| guard.what.counted.is_none())
    }

    fn branch_between(&self, one: &Site, other: &Site, is_it: &dyn Fn(&Guard) -> bool) -> bool {
        self.guards_of(one.guard).map(|id| self.guard(id)).filter(|a| is_it(a)).any(|a| {
            let mut others = self.guards_of(other.guard).map(|id| self.guard(id));
            others.any(|b| a.test == b.test && a.negated != b.negated)
        })
    }

    /// Operations in a loop, at any depth.
    pub fn ops_in(&self, looped: LoopId) -> impl Iterator<Item = &Op> + '_ {
        self.ops.iter().filter(move |op| self.within(&op.site, looped))
    }

    /// Returns `true` if a loop contains a backward pass.
    pub fn trains(&self, looped: LoopId) -> bool {
        self.ops_in(looped).any(|op| matches!(op.kind, OpKind::Backward(_)))
    }

    /// Span at which running the file trains: its `if __name__ == "__main__":`, or the outermost loop or call
    /// of the module's body that contains a backward pass. `None` for a file that only defines things.
    pub fn training_entry(&self) -> Option<Span> {
        if let Some(guard) = self.main_guard {
            return Some(guard);
        }
        let trains =
            |op: &&Op| op.site.function == FunctionId::MODULE && matches!(op.kind, OpKind::Backward(_));
        let op = self.ops.iter().find(trains)?;
        if let Some(outermost) = self.enclosing(op.site.looped).last() {
            return Some(self.looped(outermost).header);
        }
        let calls = |call: &&Call| call.site.function == FunctionId::MODULE && call.function == op.via;
        let call = op.via.and_then(|_| self.calls.iter().find(calls));
        Some(call.map_or(op.span, |call| call.span))
    }

    /// Returns `true` if the loop or one around it iterates over the batches of a loader.
    pub fn over_batches(&self, looped: LoopId) -> bool {
        matches!(self.looped(looped).iterable_kind, IterableKind::Loader(_))
    }
}

/// Value that a line assigns to a name, with or without an annotation, as it stands there.
pub fn assigned_text<'t>(line: &'t str, name: &str) -> Option<&'t str> {
    let rest = line.trim_start().strip_prefix(name)?.trim_start();
    let value = match rest.strip_prefix(':') {
        Some(annotated) => annotated.split_once('=')?.1,
        None => rest.strip_prefix('=')?,
    };
    (!value.starts_with('=')).then(|| value.trim())
}

/// Target of an assignment without its annotation: `losses` of `losses: list[Tensor]`.
fn without_annotation(target: &str) -> &str {
    let mut depth = 0_usize;
    for (at, character) in target.char_indices() {
        match character {
            '[' | '(' => depth += 1,
            ']' | ')' => depth = depth.saturating_sub(1),
            ':' if depth == 0 => return target[..at].trim_end(),
            _ => {}
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::{assigned_text, without_annotation};

    #[test]
    fn value_of_an_assignment_is_found_with_and_without_annotation() {
        for (line, value) in [
            ("    losses = []", Some("[]")),
            ("losses: list[float] = []", Some("[]")),
            ("losses == []", None),
            ("losses_of = []", None),
            ("losses.append(x)", None),
        ] {
            assert_eq!(assigned_text(line, "losses"), value);
        }
    }

    #[test]
    fn annotations_are_no_part_of_a_target() {
        for (target, name) in [
            ("loss", "loss"),
            ("loss: torch.Tensor", "loss"),
            ("self.sums: dict[str, float]", "self.sums"),
            ("x[a:b]", "x[a:b]"),
        ] {
            assert_eq!(without_annotation(target), name);
        }
    }
}
