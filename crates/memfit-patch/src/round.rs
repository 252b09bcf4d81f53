//! What each statement of a round is to its backward: computed for each part of the batch, or once.

use std::collections::BTreeSet;

use memfit_source::{Expression, ExpressionKind, Statement, StatementKind};

use crate::Why;
use crate::training::Training;

/// Where a statement goes when the batch is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Once, before the parts.
    Before,
    /// In each part.
    Each,
    /// Once, after the parts.
    After,
}

/// The statements of a round from the first that is computed for each part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// The number of the first.
    pub(crate) from: usize,
    /// The place of that one and of each behind it, up to the backward.
    pub(crate) places: Vec<Place>,
    /// The names that the parts bind.
    pub(crate) bound: BTreeSet<String>,
}

impl Round {
    /// Sorts the statements of a round. `batch` are the names of the loader's batch; none where the script
    /// makes its batches itself, and everything that the backward needs belongs to a part.
    pub(crate) fn of(training: &Training<'_>, batch: &[&String]) -> Result<Self, Why> {
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
                Place::Each
            } else if feeds[index]
                || training.clears.contains(&index)
                || (index < training.forward && !bound.iter().any(|name| statement.mentions(name)))
            {
                Place::Before
            } else {
                Place::After
            });
        }
        Ok(Self { from, places, bound })
    }

    /// The place of a statement of the round.
    pub(crate) fn place(&self, index: usize) -> Place {
        index.checked_sub(self.from).and_then(|at| self.places.get(at)).copied().unwrap_or(Place::Before)
    }

    /// Which of these names are read behind the parts before they are bound anew, and how.
    pub(crate) fn read_after<'n>(
        &self,
        training: &Training<'_>,
        names: impl Iterator<Item = &'n String>,
    ) -> Vec<(&'n String, Read)> {
        let end = training.suite[training.backward].span.end;
        let start = training.suite[self.from].span.start;
        let put_off = (self.from..training.backward).filter(|index| self.place(*index) == Place::After);
        let scope = flat(training.scope);
        let mut later: Vec<&Statement> =
            put_off.flat_map(|index| flat(std::slice::from_ref(&training.suite[index]))).collect();
        later.extend(scope.iter().filter(|statement| statement.span.start >= end));
        // What comes before the parts in the next round.
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

/// How a name is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Read {
    /// Only for its size.
    Size,
    /// For what it holds.
    Value,
}

/// Which statements the forward and the backward need.
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

/// The names that a statement and those in it bind.
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
        // What is put into an object or a container changes it.
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

/// The name of what a call such as `images.mul_(2)` changes.
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

/// Refuses a statement that counts something up which began before the parts: each part would count.
fn counts_up(statement: &Statement, bound: &BTreeSet<String>) -> Result<(), Why> {
    let own = binds_anew(statement);
    for each in flat(std::slice::from_ref(statement)) {
        if !matches!(each.kind, StatementKind::Augment(_)) {
            continue;
        }
        let Some(name) = each.targets.first().and_then(Expression::root) else { continue };
        if !bound.contains(name) && !own.contains(name) {
            return Err(format!(
                "`{name}` is counted up between the batch and its backward, once for each part"
            ));
        }
    }
    Ok(())
}

/// The names that a statement binds other than by counting up.
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

/// Statements and those in them in the order of the text, without the bodies of functions and classes.
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

/// How a name is read in these statements before it is bound; nothing where it is not.
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

/// How an expression reads a name.
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

/// Whether a target binds a name, and does not read it.
fn binds_it(target: &Expression, name: &str) -> bool {
    match &target.kind {
        ExpressionKind::Name(bound) => bound == name,
        ExpressionKind::Several(parts) => parts.iter().any(|part| binds_it(part, name)),
        _ => false,
    }
}
