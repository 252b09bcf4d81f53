//! Questions that several rules ask of the facts.

use memfit_source::{
    Backward, Call, Facts, Flags, FunctionId, Handler, Kind, LoopId, Op, OpKind, Span, Store, Window,
};

use crate::rule::{Context, Edit};

impl Context<'_> {
    /// The text of a span.
    pub(crate) fn slice(&self, span: Span) -> &str {
        self.facts.slice(span)
    }

    /// Whether a function may be called while gradients are off.
    pub(crate) fn may_be_without_grad(&self, id: FunctionId) -> bool {
        let function = self.facts.function(id);
        let name = function.name.rsplit('.').next().unwrap_or_default();
        !name.is_empty()
            && (self.project.called_without_grad.contains(name)
                || self.facts.called_without_grad.iter().any(|known| known == name))
    }
}

/// The backward pass that an operation is.
pub(crate) fn backward(op: &Op) -> Option<&Backward> {
    match &op.kind {
        OpKind::Backward(backward) => Some(backward),
        _ => None,
    }
}

/// All backward passes.
pub(crate) fn backwards(facts: &Facts) -> impl Iterator<Item = (&Op, &Backward)> {
    facts.ops.iter().filter_map(|op| Some((op, backward(op)?)))
}

/// Whether a window's body of work is done by each round of its loop alone: what rules about windows look at.
pub(crate) fn is_plain(facts: &Facts, window: &Window) -> bool {
    window
        .backwards
        .iter()
        .all(|index| backward(&facts.ops[*index]).is_some_and(|backward| !backward.managed))
}

/// The step of a window.
pub(crate) fn step_of<'a>(facts: &'a Facts, window: &Window) -> &'a Op {
    &facts.ops[window.step]
}

/// A store in a loop whose rounds add up in a container.
pub(crate) fn grows<'a>(facts: &'a Facts, store: &'a Store) -> Option<LoopId> {
    let looped = store.grows?;
    if let Kind::Container { bounded: true } = store.target_value.kind {
        return None;
    }
    let bounded = facts
        .enclosing(store.place.looped)
        .take_while(|id| Some(*id) != facts.looped(looped).parent)
        .any(|id| {
            let found = facts.looped(id);
            found.emptied.contains(&store.target) || found.assigned.contains(&store.target)
        });
    (!bounded).then_some(looped)
}

/// An `except` that catches an out-of-memory error by its class.
pub(crate) fn catches_memory(handler: &Handler) -> bool {
    handler.types.iter().any(|name| name.ends_with("OutOfMemoryError"))
}

/// An `except` that catches it along with others.
pub(crate) fn catches_all(handler: &Handler) -> bool {
    handler.types.is_empty()
        || handler
            .types
            .iter()
            .any(|name| ["RuntimeError", "Exception", "BaseException"].contains(&name.as_str()))
}

/// Whether a loop goes over batches, or trains itself: not over epochs.
pub(crate) fn is_batch_loop(facts: &Facts, looped: LoopId) -> bool {
    facts.over_batches(looped)
        || facts.ops.iter().any(|op| {
            op.place.looped == Some(looped)
                && !op.deep
                && matches!(op.kind, OpKind::Backward(_) | OpKind::Forward)
        })
}

/// Whether a value is on a GPU and more than a number.
pub(crate) fn is_large_on_gpu(value: &memfit_source::Value) -> bool {
    value.device.is_gpu() && !value.is(Flags::SCALAR)
}

/// Adds an argument at the end of a call.
pub(crate) fn add_argument(facts: &Facts, call: &Call, text: &str) -> Edit {
    let end = call.parentheses.end.saturating_sub(1);
    // What `functools.partial` was given stands elsewhere.
    match call.arguments.last().filter(|last| call.parentheses.contains(last.span)) {
        None => Edit::insert(end, text),
        Some(last) => {
            // A comma that is there already is kept.
            let between = facts.slice(Span::new(last.span.end, end));
            let comma = between.find(',').filter(|at| !between[..*at].contains('#'));
            match comma {
                Some(at) => Edit::insert(last.span.end + at as u32 + 1, format!(" {text},")),
                None => Edit::insert(last.span.end, format!(", {text}")),
            }
        }
    }
}

/// Takes an argument out of a call, with its comma.
pub(crate) fn remove_argument(facts: &Facts, call: &Call, span: Span) -> Edit {
    if !call.parentheses.contains(span) {
        // What `functools.partial` was given stands elsewhere.
        return Edit::delete(Span::at(span.start));
    }
    let index = call.arguments.iter().position(|argument| argument.span == span);
    let previous = index.and_then(|index| index.checked_sub(1)).and_then(|index| call.arguments.get(index));
    let previous = previous.filter(|previous| call.parentheses.contains(previous.span));
    if let Some(previous) = previous {
        return Edit::delete(Span::new(previous.span.end, span.end));
    }
    if let Some(next) = index.and_then(|index| call.arguments.get(index + 1)) {
        Edit::delete(Span::new(span.start, next.span.start))
    } else {
        let rest = facts.slice(Span::new(span.end, call.parentheses.end));
        let comma =
            if rest.trim_start().starts_with(',') { rest.find(',').map_or(0, |at| at as u32 + 1) } else { 0 };
        Edit::delete(Span::new(span.start, span.end + comma))
    }
}

/// The blank that a line begins with, and where the line begins.
pub(crate) fn line_start(facts: &Facts, offset: u32) -> (u32, String) {
    let before = &facts.text[..offset as usize];
    let start = before.rfind(['\n', '\r']).map_or(0, |at| at + 1);
    let blank: String = facts.text[start..].chars().take_while(|c| *c == ' ' || *c == '\t').collect();
    (start as u32, blank)
}

/// The whole lines that a statement stands on, if nothing else does.
pub(crate) fn whole_lines(facts: &Facts, span: Span) -> Option<Span> {
    let (start, blank) = line_start(facts, span.start);
    if start as usize + blank.len() != span.start as usize {
        return None;
    }
    let rest = &facts.text[span.end as usize..];
    let end = rest.find('\n').map_or(rest.len(), |at| at + 1);
    rest[..end].trim().is_empty().then(|| Span::new(start, span.end + end as u32))
}
