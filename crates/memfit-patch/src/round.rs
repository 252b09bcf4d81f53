//! Role of each statement of a training iteration: computed for each micro-batch, or once.

use std::collections::BTreeSet;

use memfit_source::{Expression, ExpressionKind, Statement, StatementKind};

use crate::Why;
use crate::training::Training;

/// Placement of a statement relative to the micro-batch loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Once, before the loop.
    Before,
    /// For each micro-batch.
    Each,
    /// Once, after the loop.
    After,
}

/// Statements of an iteration from the first that belongs to the micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// Index of the first statement.
    pub(crate) from: usize,
    /// Placement of that statement and of each later one up to the backward pass.
    pub(crate) places: Vec<Placement>,
    /// Names that the micro-batches bind.
    pub(crate) bound: BTreeSet<String>,
}

impl Round {
    /// Classifies the statements of an iteration. `batch` are the names of the loader's batch; without them
    /// the script creates its batches itself, and everything that the backward pass needs belongs to the
    /// micro-batch.
    pub(crate) fn classify(training: &Training<'_>, batch: &[&String]) -> Result<Self, Why> {
        let suite = &training.suite[..=training.backward];
        let feeds = feeding(suite, training);
        let mut of_batch: BTreeSet<String> = batch.iter().map(|name| (*name).clone()).collect();
        let in_part: Vec<bool> = suite
            .iter()
            .zip(&feeds)
            .enumerate()
            .map(|(index, (statement, feeds))| {
                let computes = index >= training.forward
                    || batch.is_empty()
                    || of_batch.iter().any(|name| statement.mentions(name));
                let is_in = *feeds && computes;
                if is_in {
                    of_batch.extend(binds(statement));
                }
                is_in
            })
            .collect();
        let from = in_part.iter().position(|is_in| *is_in).unwrap_or(training.forward);
        let mut bound = BTreeSet::new();
        let mut places = Vec::new();
        for index in from..suite.len() {
            let statement = &suite[index];
            places.push(if in_part[index] {
                counts_up(statement, &bound)?;
                bound.extend(binds(statement));
                Placement::Each
            } else if feeds[index]
                || training.clears.contains(&index)
                || (index < training.forward && !bound.iter().any(|name| statement.mentions(name)))
            {
                Placement::Before
            } else {
                Placement::After
            });
        }
        Ok(Self { from, places, bound })
    }

    /// Placement of a statement of the iteration.
    pub(crate) fn place(&self, index: usize) -> Placement {
        index.checked_sub(self.from).and_then(|at| self.places.get(at)).copied().unwrap_or(Placement::Before)
    }

    /// Names that are read after the loop before they are bound again, with the kind of use.
    pub(crate) fn read_after<'n>(
        &self,
        training: &Training<'_>,
        names: impl Iterator<Item = &'n String>,
    ) -> Vec<(&'n String, Read)> {
        let end = training.suite[training.backward].span.end;
        let start = training.suite[self.from].span.start;
        let put_off = (self.from..training.backward).filter(|index| self.place(*index) == Placement::After);
        let scope = flat(training.scope);
        let mut later: Vec<&Statement> =
            put_off.flat_map(|index| flat(std::slice::from_ref(&training.suite[index]))).collect();
        later.extend(scope.iter().filter(|statement| statement.span.start >= end));
        // Statements before the loop in the next iteration.
        let in_loop = |statement: &&&Statement| training.looped.span.contains(statement.span);
        let next: Vec<&Statement> =
            scope.iter().filter(in_loop).filter(|statement| statement.span.end <= start).copied().collect();
        names
            .filter_map(|name| {
                let how =
                    [&later, &next].into_iter().filter_map(|statements| first_read(statements, name)).max();
                how.map(|how| (name, how))
            })
            .collect()
    }
}

/// Kind of use of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Read {
    /// Only its size.
    Size,
    /// Value.
    Value,
}

/// Marks the statements that the forward and backward pass need.
fn feeding(suite: &[Statement], training: &Training<'_>) -> Vec<bool> {
    let mut needed: BTreeSet<String> = BTreeSet::new();
    let mut feeds = vec![false; suite.len()];
    for (index, statement) in suite.iter().enumerate().rev() {
        if training.clears.contains(&index) {
            continue;
        }
        let makes = binds(statement).iter().any(|name| needed.contains(name));
        let changes = changed_in_place(statement).is_some_and(|name| needed.contains(name));
        if index == training.backward || index == training.forward || makes || changes {
            feeds[index] = true;
            needed.extend(names(statement));
        }
    }
    feeds
}

/// Names bound by a statement and nested ones.
fn binds(statement: &Statement) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for each in flat(std::slice::from_ref(statement)) {
        if matches!(
            each.kind,
            StatementKind::Assign | StatementKind::Augment(_) | StatementKind::Loop | StatementKind::With
        ) {
            for target in &each.targets {
                targets(target, &mut found);
            }
        }
        for expression in each.expressions() {
            expression.visit(&mut |part| {
                if let ExpressionKind::Named { target, .. } = &part.kind {
                    targets(target, &mut found);
                }
            });
        }
    }
    found
}

fn targets(of: &Expression, found: &mut BTreeSet<String>) {
    match &of.kind {
        ExpressionKind::Name(name) => {
            found.insert(name.clone());
        }
        ExpressionKind::Several(parts) | ExpressionKind::Other(parts) => {
            for part in parts {
                targets(part, found);
            }
        }
        // A store to an attribute or element changes the object.
        ExpressionKind::Item { of, .. } | ExpressionKind::Attribute { of, .. } => {
            found.extend(of.root().map(str::to_owned));
        }
        _ => {}
    }
}

/// All names in a statement.
fn names(statement: &Statement) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for each in flat(std::slice::from_ref(statement)) {
        for expression in each.expressions() {
            expression.visit(&mut |part| found.extend(part.name().map(str::to_owned)));
        }
    }
    found
}

/// Name that a call such as `images.mul_(2)` changes in place.
fn changed_in_place(statement: &Statement) -> Option<&str> {
    if statement.kind != StatementKind::Expression {
        return None;
    }
    let (callee, _) = statement.values.first()?.call()?;
    match &callee.kind {
        ExpressionKind::Attribute { of, name } if name.ends_with('_') => of.root(),
        _ => None,
    }
}

/// Refuses a counter that was initialised before the loop, since each micro-batch would increment it.
fn counts_up(statement: &Statement, bound: &BTreeSet<String>) -> Result<(), Why> {
    let own = binds_anew(statement);
    for each in flat(std::slice::from_ref(statement)) {
        if !matches!(each.kind, StatementKind::Augment(_)) {
            continue;
        }
        let Some(name) = each.targets.first().and_then(Expression::root) else { continue };
        if !bound.contains(name) && !own.contains(name) {
            return Err(format!(
                "`{name}` is incremented between the batch and its backward pass, which would happen once per micro-batch"
            ));
        }
    }
    Ok(())
}

/// Names that a statement binds other than by incrementing.
fn binds_anew(statement: &Statement) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for each in flat(std::slice::from_ref(statement)) {
        if matches!(each.kind, StatementKind::Assign | StatementKind::Loop | StatementKind::With) {
            for target in &each.targets {
                targets(target, &mut found);
            }
        }
    }
    found
}

/// Statements and nested ones in text order, without bodies of functions and classes.
fn flat(suite: &[Statement]) -> Vec<&Statement> {
    let mut found = Vec::new();
    for statement in suite {
        found.push(statement);
        if !matches!(statement.kind, StatementKind::Function | StatementKind::Class) {
            for inner in statement.suites() {
                found.extend(flat(inner));
            }
        }
    }
    found
}

/// Use of a name in these statements before it is bound; `None` if there is none.
fn first_read(statements: &[&Statement], name: &str) -> Option<Read> {
    let mut how = None;
    for statement in statements {
        let augments = matches!(statement.kind, StatementKind::Augment(_));
        let binds = !augments && statement.targets.iter().any(|target| binds_it(target, name));
        if matches!(statement.kind, StatementKind::Function | StatementKind::Class) {
            if statement.mentions(name) {
                return Some(Read::Value);
            }
            continue;
        }
        let read = statement.values.iter().chain(statement.targets.iter().filter(|_| !binds));
        how = how.max(read.filter_map(|expression| reading(expression, name)).max());
        if binds {
            break;
        }
    }
    how
}

/// Use of a name in an expression.
fn reading(of: &Expression, name: &str) -> Option<Read> {
    const SIZES: [&str; 5] = ["shape", "size", "ndim", "dim", "numel"];
    let is_it = |part: &Expression| part.name() == Some(name);
    let (mut all, mut sizes) = (0, 0);
    of.visit(&mut |part| {
        all += usize::from(is_it(part));
        sizes += usize::from(match &part.kind {
            ExpressionKind::Attribute { of, name } => is_it(of) && SIZES.contains(&name.as_str()),
            ExpressionKind::Call { callee, arguments } => {
                callee.name() == Some("len") && arguments.iter().any(|argument| is_it(&argument.value))
            }
            _ => false,
        });
    });
    match all {
        0 => None,
        _ if all == sizes => Some(Read::Size),
        _ => Some(Read::Value),
    }
}

/// Returns `true` if a target binds a name without reading it.
fn binds_it(target: &Expression, name: &str) -> bool {
    match &target.kind {
        ExpressionKind::Name(bound) => bound == name,
        ExpressionKind::Several(parts) => parts.iter().any(|part| binds_it(part, name)),
        _ => false,
    }
}
