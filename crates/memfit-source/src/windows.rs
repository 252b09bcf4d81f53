//! Windows: what counts micro-batches, and where the step and the clearing of gradients stand to it.

use crate::facts::{Bound, Counted, Facts, GuardId, LoopId, Op, OpKind, Over, Residue, Window};

/// Finds the windows of a text and puts them among its facts.
pub(crate) fn find(facts: &mut Facts) {
    let mut windows: Vec<Window> = Vec::new();
    for (index, step) in facts.ops.iter().enumerate() {
        if !matches!(step.kind, OpKind::Step { .. }) || step.deep || step.place.managed {
            continue;
        }
        let Some((guard, counted, alternative)) = counting(facts, step) else { continue };
        let looped = step.place.looped;
        if windows.iter().any(|window| window.guard == guard) {
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
    let backwards: Vec<usize> = (0..facts.ops.len())
        .filter(|index| {
            let op = &facts.ops[*index];
            matches!(op.kind, OpKind::Backward(_)) && same_round(op) && !in_guard(op)
        })
        .collect();
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
                && clears(step, op)
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

/// Done whenever the backward pass is: no branch around it that is not around that one too.
fn unconditional(facts: &Facts, op: &Op, backward: &Op) -> bool {
    let around: Vec<GuardId> = facts.guards_of(backward.place.guard).collect();
    facts.guards_of(op.place.guard).all(|id| around.contains(&id))
}

/// What is cleared is what is stepped: the optimizer itself, or a model.
fn clears(step: &Op, clear: &Op) -> bool {
    let optimizer = |name: &str| matches!(crate::names::suggested(name).kind, crate::facts::Kind::Optimizer);
    step.receiver == clear.receiver || !optimizer(&clear.receiver)
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
