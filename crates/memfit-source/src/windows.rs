//! Windows: what counts micro-batches, and where the step and the clearing of gradients stand to it.

use crate::facts::{Bound, Counted, Facts, GuardId, LoopId, Op, OpKind, Over, Overlap, Residue, Window};

/// Finds the windows of a text and puts them among its facts.
pub(crate) fn find(facts: &mut Facts) {
    let mut windows: Vec<Window> = Vec::new();
    for (index, step) in facts.ops.iter().enumerate() {
        if !matches!(step.kind, OpKind::Step { .. }) || step.deep || step.place.managed {
            continue;
        }
        let Some((guard, counted, alternative)) = counting(facts, step) else { continue };
        let looped = step.place.looped;
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

/// The innermost branch around a step, in its loop, that counts.
fn counting(facts: &Facts, step: &Op) -> Option<(GuardId, Counted, bool)> {
    for id in facts.guards_of(step.place.guard) {
        let guard = facts.guard(id);
        if guard.looped != step.place.looped {
            break;
        }
        let Some(counted) = &guard.what.counted else { continue };
        // The step must stand where the count is reached, not where it is not.
        if guard.negated != guard.what.negated {
            continue;
        }
        if counted.residue == Residue::Reached && !is_reset(facts, counted, id, step.place.looped) {
            continue;
        }
        return Some((id, counted.clone(), guard.what.alternative));
    }
    None
}

/// A count that is compared with its end must count up in the loop, and begin anew in the branch.
fn is_reset(facts: &Facts, counted: &Counted, guard: GuardId, looped: Option<LoopId>) -> bool {
    let of = |update: &&crate::facts::Update| {
        update.name == counted.counter && looped.is_none_or(|looped| facts.within(&update.place, looped))
    };
    let counts = facts.updates.iter().filter(of).any(|update| update.adds.is_some());
    let resets =
        facts.updates.iter().filter(of).any(|update| {
            update.sets == Some(0) && facts.guards_of(update.place.guard).any(|id| id == guard)
        });
    counts && resets
}

fn window(
    facts: &Facts,
    index: usize,
    step: &Op,
    guard: GuardId,
    counted: Counted,
    alternative: bool,
    looped: Option<LoopId>,
) -> Option<Window> {
    let in_guard = |op: &Op| facts.guards_of(op.place.guard).any(|id| id == guard);
    let same_round = |op: &Op| match looped {
        Some(looped) => op.place.looped == Some(looped) && !op.deep,
        None => op.place.function == step.place.function && op.place.looped.is_none(),
    };
    let backwards = accumulating(facts, step, &in_guard, &same_round);
    let first = facts.ops.get(*backwards.first()?)?;
    // Without a loop in sight the count must come from outside as well.
    if looped.is_none() && !matches!(counted.bound, Bound::Parameter | Bound::Elsewhere) {
        return None;
    }
    if facts.ops.iter().any(|op| op.place.managed && same_round(op)) {
        return None;
    }
    let clears_each_round = (0..facts.ops.len())
        .filter(|index| {
            let op = &facts.ops[*index];
            matches!(op.kind, OpKind::ZeroGrad { .. })
                && same_round(op)
                && unconditional(facts, op, first)
                && clears(facts, step, op)
        })
        .collect();
    let flushed = looped.is_some_and(|looped| {
        let (end, parent) = (facts.looped(looped).end, facts.looped(looped).parent);
        facts.ops.iter().any(|op| {
            matches!(op.kind, OpKind::Step { .. })
                && op.place.function == step.place.function
                && op.place.order > end
                && (op.place.looped == parent || op.place.looped.is_none())
        })
    });
    let steps_elsewhere = facts.ops.iter().any(|op| {
        matches!(op.kind, OpKind::Step { .. })
            && same_round(op)
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
        clears_each_round,
        flushed,
        steps_elsewhere,
    })
}

/// The backward passes of a round that add to the gradients which the guarded step takes. Each reaches
/// parameters of that optimizer from outside of the branch that steps it; where other optimizers step, or
/// other backward passes go before the step in its branch, it must be seen to.
fn accumulating(
    facts: &Facts,
    step: &Op,
    in_guard: &dyn Fn(&Op) -> bool,
    same_round: &dyn Fn(&Op) -> bool,
) -> Vec<usize> {
    let is_backward = |op: &Op| matches!(op.kind, OpKind::Backward(_));
    let reaches = |op: &Op| facts.overlap(&op.weights, &step.weights);
    let inner: Vec<&Op> = facts
        .ops
        .iter()
        .filter(|op| is_backward(op) && in_guard(op) && reaches(op) != Overlap::No)
        .filter(|op| op.place.order < step.place.order)
        .collect();
    // Another optimizer that takes its steps outside of the branch has a backward pass of its own there.
    let alternates = facts.ops.iter().any(|op| {
        matches!(op.kind, OpKind::Step { .. }) && same_round(op) && !in_guard(op) && !is_same(facts, step, op)
    });
    let adds = |op: &Op| match reaches(op) {
        Overlap::Yes => true,
        Overlap::No => false,
        Overlap::Unknown if alternates => false,
        // As in `if step: loss.backward()`, `else: with no_sync(): loss.backward()`.
        Overlap::Unknown => {
            inner.iter().all(|inner| facts.overlap(&op.weights, &inner.weights) == Overlap::Yes)
        }
    };
    let found: Vec<usize> = (0..facts.ops.len())
        .filter(|index| {
            let op = &facts.ops[*index];
            is_backward(op) && same_round(op) && !in_guard(op) && adds(op)
        })
        .collect();
    // What is cleared before the branch has a backward pass of its own is not meant to be stepped.
    let Some(next) = inner.iter().map(|op| op.place.order).min() else { return found };
    let dropped = |order: u32| {
        facts.ops.iter().filter(|op| matches!(op.kind, OpKind::ZeroGrad { .. })).any(|clear| {
            let at = clear.place.order;
            let between = if order < next { order < at && at < next } else { at > order || at < next };
            let always = in_guard(clear) || unconditional(facts, clear, step);
            between && always && (in_guard(clear) || same_round(clear)) && clears(facts, step, clear)
        })
    };
    found.into_iter().filter(|index| !dropped(facts.ops[*index].place.order)).collect()
}

/// Whether two steps, or a step and what clears, are of one optimizer.
fn is_same(facts: &Facts, step: &Op, other: &Op) -> bool {
    step.receiver == other.receiver || facts.overlap(&step.weights, &other.weights) == Overlap::Yes
}

/// Done whenever the backward pass is: no branch around it that is not around that one too.
fn unconditional(facts: &Facts, op: &Op, backward: &Op) -> bool {
    let around: Vec<GuardId> = facts.guards_of(backward.place.guard).collect();
    facts.guards_of(op.place.guard).all(|id| around.contains(&id))
}

/// What is cleared is what is stepped: the optimizer itself, or a model.
fn clears(facts: &Facts, step: &Op, clear: &Op) -> bool {
    let optimizer = |name: &str| matches!(crate::names::suggested(name).kind, crate::facts::Kind::Optimizer);
    step.receiver == clear.receiver
        || match facts.overlap(&step.weights, &clear.weights) {
            Overlap::Yes => true,
            Overlap::No => false,
            Overlap::Unknown => !optimizer(&clear.receiver),
        }
}

impl Window {
    /// Whether the number of rounds is known to be a multiple of the window.
    pub fn comes_out_even(&self, facts: &Facts) -> bool {
        let rounds = self.looped.map(|looped| &facts.looped(looped).over);
        match (rounds, self.counted.rounds) {
            (Some(Over::Range(Some(rounds))), Some(period)) => period > 0 && rounds % period == 0,
            (Some(Over::Literal(rounds)), Some(period)) => period > 0 && *rounds as i64 % period == 0,
            _ => false,
        }
    }
}
