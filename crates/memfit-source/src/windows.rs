//! Detection of gradient accumulation windows: the counter, the step and the clearing of gradients.

use crate::facts::{
    CounterBinding, CounterTest, Facts, GuardId, IterableKind, LoopId, Op, OpKind, Overlap, Residue, Window,
};

/// Adds the windows of a text to its facts.
pub(crate) fn find(facts: &mut Facts) {
    let mut windows: Vec<Window> = Vec::new();
    for (index, step) in facts.ops.iter().enumerate() {
        if !matches!(step.kind, OpKind::Step { .. }) || step.deep || step.site.managed {
            continue;
        }
        let Some((guard, counted, alternative)) = counting_guard(facts, step) else { continue };
        let looped = step.site.looped;
        if windows.iter().any(|window| window.guard == guard && is_same(facts, step, &facts.ops[window.step]))
        {
            continue;
        }
        if let Some(window) = window(facts, index, step, guard, counted, alternative, looped) {
            windows.push(window);
        }
    }
    facts.windows = windows;
}

/// Innermost counting branch around a step, within its loop.
fn counting_guard(facts: &Facts, step: &Op) -> Option<(GuardId, CounterTest, bool)> {
    for id in facts.guards_of(step.site.guard) {
        let guard = facts.guard(id);
        if guard.looped != step.site.looped {
            break;
        }
        let Some(counted) = &guard.what.counted else { continue };
        // The step must be in the branch where the count is reached.
        if guard.negated != guard.what.negated {
            continue;
        }
        if counted.residue == Residue::Reached && !is_reset(facts, counted, id, step.site.looped) {
            continue;
        }
        return Some((id, counted.clone(), guard.what.alternative));
    }
    None
}

/// A counter compared by `==` or `>=` must be incremented in the loop and reset in the branch.
fn is_reset(facts: &Facts, counted: &CounterTest, guard: GuardId, looped: Option<LoopId>) -> bool {
    let of = |update: &&crate::facts::Update| {
        update.name == counted.counter && looped.is_none_or(|looped| facts.within(&update.site, looped))
    };
    let counts = facts.updates.iter().filter(of).any(|update| update.adds.is_some());
    let resets = facts
        .updates
        .iter()
        .filter(of)
        .any(|update| update.sets == Some(0) && facts.guards_of(update.site.guard).any(|id| id == guard));
    counts && resets
}

fn window(
    facts: &Facts,
    index: usize,
    step: &Op,
    guard: GuardId,
    counted: CounterTest,
    alternative: bool,
    looped: Option<LoopId>,
) -> Option<Window> {
    let in_guard = |op: &Op| facts.guards_of(op.site.guard).any(|id| id == guard);
    // `if amp: scaler.step(optimizer)`, `else: optimizer.step()` are windows of their own.
    let same_iteration = |op: &Op| {
        !facts.are_alternatives(&op.site, &step.site)
            && match looped {
                Some(looped) => op.site.looped == Some(looped) && !op.deep,
                None => op.site.function == step.site.function && op.site.looped.is_none(),
            }
    };
    // Another branch that counts alike steps for the same micro-batches.
    let test = facts.slice(facts.guard(guard).test);
    let alike = |op: &Op| {
        in_guard(op) || facts.guards_of(op.site.guard).any(|id| facts.slice(facts.guard(id).test) == test)
    };
    let backwards = accumulated_backwards(facts, step, &in_guard, &alike, &same_iteration);
    let first = facts.ops.get(*backwards.first()?)?;
    // Without a loop in the text, the counter must come from outside as well.
    if looped.is_none() && !matches!(counted.bound, CounterBinding::Parameter | CounterBinding::Elsewhere) {
        return None;
    }
    if facts.ops.iter().any(|op| op.site.managed && same_iteration(op)) {
        return None;
    }
    let clears_each_iteration = (0..facts.ops.len())
        .filter(|index| {
            let op = &facts.ops[*index];
            matches!(op.kind, OpKind::ZeroGrad { .. })
                && same_iteration(op)
                && unconditional(facts, op, first)
                && clears(facts, step, op)
        })
        .collect();
    let flushed = looped.is_some_and(|looped| {
        let (end, parent) = (facts.looped(looped).end, facts.looped(looped).parent);
        facts.ops.iter().any(|op| {
            matches!(op.kind, OpKind::Step { .. })
                && op.site.function == step.site.function
                && op.site.order > end
                && (op.site.looped == parent || op.site.looped.is_none())
        })
    });
    let steps_elsewhere = facts.ops.iter().any(|op| {
        matches!(op.kind, OpKind::Step { .. })
            && same_iteration(op)
            && !in_guard(op)
            && op.receiver == step.receiver
    });
    Some(Window {
        looped,
        guard,
        counted,
        alternative,
        step: index,
        backwards,
        clears_each_iteration,
        flushed,
        steps_elsewhere,
    })
}

/// Backward passes of an iteration that contribute to the gradients of the guarded step. Each is outside of
/// the step's branch and reaches parameters of that optimizer. If it is unknown which parameters a pass
/// reaches, it counts only if no other optimizer steps outside of the branch, and if it certainly shares
/// parameters with every backward pass that precedes the step in the branch.
fn accumulated_backwards(
    facts: &Facts,
    step: &Op,
    in_guard: &dyn Fn(&Op) -> bool,
    alike: &dyn Fn(&Op) -> bool,
    same_iteration: &dyn Fn(&Op) -> bool,
) -> Vec<usize> {
    let is_backward = |op: &Op| matches!(op.kind, OpKind::Backward(_));
    let reaches = |op: &Op| facts.overlap(&op.weights, &step.weights);
    let inner: Vec<&Op> = facts
        .ops
        .iter()
        .filter(|op| is_backward(op) && in_guard(op) && reaches(op) != Overlap::No)
        .filter(|op| op.site.order < step.site.order)
        .collect();
    // Another optimizer that steps outside of the branch has its own backward pass there.
    let alternates = facts.ops.iter().any(|op| {
        matches!(op.kind, OpKind::Step { .. })
            && same_iteration(op)
            && !alike(op)
            && !is_same(facts, step, op)
    });
    let adds = |op: &Op| match reaches(op) {
        Overlap::Yes => true,
        Overlap::No => false,
        Overlap::Unknown if alternates => false,
        // For example `if step: loss.backward()`, `else: with no_sync(): loss.backward()`.
        Overlap::Unknown => {
            inner.iter().all(|inner| facts.overlap(&op.weights, &inner.weights) == Overlap::Yes)
        }
    };
    let found: Vec<usize> = (0..facts.ops.len())
        .filter(|index| {
            let op = &facts.ops[*index];
            is_backward(op) && same_iteration(op) && !in_guard(op) && adds(op)
        })
        .collect();
    // Gradients cleared before a backward pass of the branch itself are not meant for the step.
    let Some(next) = inner.iter().map(|op| op.site.order).min() else { return found };
    let dropped = |order: u32| {
        facts.ops.iter().filter(|op| matches!(op.kind, OpKind::ZeroGrad { .. })).any(|clear| {
            let at = clear.site.order;
            let between = if order < next { order < at && at < next } else { at > order || at < next };
            let always = in_guard(clear) || unconditional(facts, clear, step);
            between && always && (in_guard(clear) || same_iteration(clear)) && clears(facts, step, clear)
        })
    };
    found.into_iter().filter(|index| !dropped(facts.ops[*index].site.order)).collect()
}

/// Returns `true` if two operations concern the same optimizer.
fn is_same(facts: &Facts, step: &Op, other: &Op) -> bool {
    step.receiver == other.receiver || facts.overlap(&step.weights, &other.weights) == Overlap::Yes
}

/// Returns `true` if the operation runs whenever the backward pass does: every branch around it also encloses
/// the pass.
fn unconditional(facts: &Facts, op: &Op, backward: &Op) -> bool {
    let around: Vec<GuardId> = facts.guards_of(backward.site.guard).collect();
    facts.guards_of(op.site.guard).all(|id| around.contains(&id))
}

/// Returns `true` if the cleared gradients are those of the step, cleared on the optimizer or on a model.
fn clears(facts: &Facts, step: &Op, clear: &Op) -> bool {
    let optimizer =
        |name: &str| matches!(crate::names::value_by_name(name).kind, crate::facts::Kind::Optimizer);
    step.receiver == clear.receiver
        || match facts.overlap(&step.weights, &clear.weights) {
            Overlap::Yes => true,
            Overlap::No => false,
            Overlap::Unknown => !optimizer(&clear.receiver),
        }
}

impl Window {
    /// Returns `true` if the number of iterations is known to be a multiple of the window.
    pub fn is_whole_multiple(&self, facts: &Facts) -> bool {
        let rounds = self.looped.map(|looped| &facts.looped(looped).iterable_kind);
        match (rounds, self.counted.rounds) {
            (Some(IterableKind::Range(Some(rounds))), Some(period)) => period > 0 && rounds % period == 0,
            (Some(IterableKind::Literal(rounds)), Some(period)) => period > 0 && *rounds as i64 % period == 0,
            _ => false,
        }
    }
}
