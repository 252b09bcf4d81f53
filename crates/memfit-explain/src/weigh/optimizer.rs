//! The optimizer's first step: state that was not there before, and temporaries of all parameters at once.

use memfit_patch::Known;
use memfit_vocabulary::{Category, Cause, Lever, Phase};

use super::{Finding, size};
use crate::bench::{Bench, modelled};
use crate::explanation::{Apply, Fix};
use crate::origins::Role;

pub(super) fn find(bench: &Bench<'_>) -> Option<Finding> {
    let story = &bench.story;
    let requested = story.trouble.requested?;
    if story.trouble.phase != Phase::Optimizer {
        return None;
    }
    let origin = story.origins.get(story.trouble.stack);
    let began = story
        .phases
        .iter()
        .rev()
        .find(|(began, phase)| *phase == Phase::Optimizer && *began <= story.trouble.moment)?
        .0;
    let here = |life: &crate::story::Life| life.block.born >= began;
    let state = story.sum(|life| here(life) && life.category == Category::Optimizer);
    let parameters = story.sum(|life| life.category == Category::Parameters);
    let all_here = story.sum(here);
    let temporary = all_here.saturating_sub(state);
    let asks_for_state = origin.operation.state;
    // Of several optimizers each has a first step of its own.
    let line = origin.site();
    let before = |life: &&crate::story::Life| life.role == Role::Optimizer && life.block.born < began;
    let made = || story.lives.iter().filter(before);
    let new_here = line.is_some() && made().next().is_some() && !made().any(|life| life.site == line);
    let first = story.steps_at(story.trouble.moment) == 0 || asks_for_state || new_here;
    let foreach = !asks_for_state;
    let text = format!(
        "the optimizer's {} had allocated {} of state and {} of temporaries when it asked for {} more; the parameters take {}",
        if first { "first step" } else { "step" },
        size(state),
        size(temporary),
        size(requested),
        size(parameters)
    );
    let fixes = remedies(bench, foreach, temporary, requested, state);
    Some(Finding {
        cause: Cause::FirstStepSurprise,
        bytes: all_here + requested,
        enough: first && bench.enough(all_here + requested) == Some(true) && bench.full(),
        facts: vec![bench.fact(text, all_here, Some(story.trouble.stack))],
        fixes,
    })
}

fn remedies(bench: &Bench<'_>, foreach: bool, temporary: u64, requested: u64, state: u64) -> Vec<Fix> {
    let saves = if foreach { temporary + requested } else { temporary };
    let mut fixes = Vec::new();
    let story = &bench.story;
    let steps = story.lives.iter().rev().filter(|life| life.role == Role::Optimizer);
    let stacks = std::iter::once(story.trouble.stack).chain(steps.map(|life| life.block.stack));
    let stack = stacks.into_iter().find(|stack| story.origins.get(*stack).site().is_some());
    let sites = bench.sites(stack);
    let mut add = |lever, how: &str| {
        let apply = bench.change(lever, &sites, Known::Nothing);
        let mut fix = modelled(bench, lever, saves, how.to_owned(), apply);
        if !foreach {
            // State is still being made: what of the temporaries is to come is not known.
            fix.fits = Some(false);
        }
        fixes.push(fix);
    };
    add(
        Lever::FusedOptimizer,
        "`fused=True`: one kernel updates each parameter, without temporaries for all of them at once",
    );
    add(Lever::ForeachOff, "`foreach=False`: parameters are updated one at a time, with temporaries for one");
    let eight = state + requested;
    fixes.push(modelled(
        bench,
        Lever::EightBitOptimizer,
        eight / 4 * 3,
        "an optimizer with 8-bit state (`bitsandbytes.optim.AdamW8bit`, torchao's `AdamW8bit`): a quarter of the state".to_owned(),
        Apply::ByHand(None),
    ));
    fixes
}
