//! The training loop of a script: the statements of an iteration and their roles.

use std::collections::BTreeSet;

use memfit_source::{Facts, Loop, Op, OpKind, Span, Statement, StatementKind};

use crate::Why;

/// Iteration of a training loop.
#[derive(Debug)]
pub(crate) struct Training<'a> {
    /// Statements of the iteration, from computation to update.
    pub(crate) suite: &'a [Statement],
    /// Facts about the loop.
    pub(crate) looped: &'a Loop,
    /// Index of the first statement that calls a model.
    pub(crate) forward: usize,
    /// Index of the statement with the backward pass.
    pub(crate) backward: usize,
    /// Indices of statements that only clear gradients.
    pub(crate) clears: Vec<usize>,
    /// Span of the loss, on which the backward pass is called.
    pub(crate) loss: Span,
    /// Name of the model in the loop; `None` if it is called elsewhere.
    pub(crate) model: Option<String>,
    /// Optimizer steps within the iteration.
    pub(crate) steps: Vec<&'a Op>,
    /// Gradient clipping within the iteration.
    pub(crate) clips: Vec<&'a Op>,
    /// Enclosing loops in the function, the outermost first.
    pub(crate) around: Vec<&'a Statement>,
    /// Statements of the function, or of the module.
    pub(crate) scope: &'a [Statement],
}

impl<'a> Training<'a> {
    /// Finds the first loop of a text with a visible loss and backward pass.
    pub(crate) fn find(facts: &'a Facts, statements: &'a [Statement]) -> Option<Self> {
        let backward = facts.ops.iter().filter(|op| op.via.is_none() && op.site.looped.is_some());
        backward
            .filter_map(|op| match &op.kind {
                OpKind::Backward(backward) if !backward.managed => Some((op, backward.loss_span)),
                _ => None,
            })
            .find_map(|(op, loss)| Self::around(facts, statements, op, loss))
    }

    fn around(facts: &'a Facts, statements: &'a [Statement], op: &'a Op, loss: Span) -> Option<Self> {
        let forwards = forwards(facts, op);
        let last = forwards.iter().map(|(span, _)| *span).filter(|span| span.start <= op.span.end).max()?;
        let mut path = Vec::new();
        let suite = deepest(statements, &[last, op.span], &mut path)?;
        let inner = path.iter().rposition(|statement| statement.kind == StatementKind::Loop)?;
        let function = path
            .iter()
            .rposition(|statement| matches!(statement.kind, StatementKind::Function | StatementKind::Class));
        if function.is_some_and(|function| function > inner) {
            return None;
        }
        let around: Vec<&Statement> = path[function.map_or(0, |function| function + 1)..=inner]
            .iter()
            .copied()
            .filter(|statement| statement.kind == StatementKind::Loop)
            .collect();
        let looped = facts.loops.iter().find(|looped| looped.span == path[inner].span)?;
        let place = |span: Span| suite.iter().position(|statement| statement.span.contains(span));
        let backward = place(op.span)?;
        let forward = forwards.iter().filter_map(|(span, _)| place(*span)).min()?.min(backward);
        let within = |op: &&Op| op.via.is_none() && place(op.span).is_some();
        let of = |wanted: fn(&OpKind) -> bool| -> Vec<&Op> {
            let mut found: Vec<&Op> = facts.ops.iter().filter(|op| wanted(&op.kind)).filter(within).collect();
            // A function is walked once for each caller, with the same position each time.
            found.sort_by_key(|op| op.span);
            found.dedup_by_key(|op| op.span);
            found
        };
        let clears = of(|kind| matches!(kind, OpKind::ZeroGrad { .. }))
            .into_iter()
            .filter_map(|op| place(op.span).filter(|index| suite[*index].span == op.span))
            .collect();
        let named = forwards.iter().filter(|(span, _)| place(*span).is_some()).find_map(|(_, name)| *name);
        let model = named.map(str::to_owned).filter(|name| is_path(name));
        Some(Self {
            suite,
            looped,
            forward,
            backward,
            clears,
            loss,
            model,
            steps: of(|kind| matches!(kind, OpKind::Step { .. })),
            clips: of(|kind| matches!(kind, OpKind::Clip)),
            around,
            scope: function.map_or(statements, |function| path[function].body.as_slice()),
        })
    }

    /// Checks that the script has no other backward pass: a change of one of several would be incomplete.
    pub(crate) fn check_only_backward(facts: &Facts) -> Result<(), Why> {
        let backwards =
            facts.ops.iter().filter(|op| matches!(op.kind, OpKind::Backward(_)) && op.via.is_none());
        let places: BTreeSet<Span> = backwards.map(|op| op.span).collect();
        match places.len() {
            0 | 1 => Ok(()),
            count => Err(format!(
                "the script calls `backward()` in {count} places, and a change of one of them would be incomplete"
            )),
        }
    }
}

/// Model calls in the function of an operation, with the models' names if they are called by them. An object
/// counts as a model if its parameters are requested.
fn forwards<'a>(facts: &'a Facts, op: &Op) -> Vec<(Span, Option<&'a str>)> {
    let here = |function| function == op.site.function;
    let candidates = facts
        .ops
        .iter()
        .filter(|forward| matches!(forward.kind, OpKind::Forward) && here(forward.site.function))
        .map(|forward| (forward.span, forward.via.is_none().then_some(forward.receiver.as_str())));
    let models: Vec<&str> = facts
        .calls
        .iter()
        .filter(|call| ["parameters", "named_parameters"].iter().any(|name| call.is_method(name)))
        .filter_map(|call| call.receiver.as_ref().map(|receiver| receiver.span.slice(&facts.text)))
        .collect();
    let called = facts.calls.iter().filter(|call| here(call.site.function)).filter_map(|call| {
        let name = call.callee.slice(&facts.text);
        models.contains(&name).then_some((call.span, Some(name)))
    });
    candidates.chain(called).collect()
}

/// Innermost list of statements that contains all of these spans, and the statements on the way to it.
fn deepest<'a>(
    statements: &'a [Statement],
    spans: &[Span],
    path: &mut Vec<&'a Statement>,
) -> Option<&'a [Statement]> {
    let inside = |statement: &Statement| spans.iter().all(|span| statement.span.contains(*span));
    if let Some(around) = statements.iter().find(|statement| inside(statement)) {
        let before = path.len();
        path.push(around);
        for suite in around.suites() {
            if let Some(found) = deepest(suite, spans, path) {
                return Some(found);
            }
        }
        path.truncate(before);
        return Some(statements);
    }
    let one_each = |span: &Span| statements.iter().any(|statement| statement.span.contains(*span));
    spans.iter().all(one_each).then_some(statements)
}

/// Returns `true` if a text is a name, or names joined by dots.
pub(crate) fn is_path(text: &str) -> bool {
    text.split('.').all(is_name)
}

/// Returns `true` if a text is a name.
pub(crate) fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(|letter| letter.is_alphabetic() || letter == '_')
        && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
}
