//! The optimizer's first step: state that was not there before, and temporaries of all parameters at once.

use memfit_vocabulary::{Category, Cause, Label, Lever, Phase};

use super::{Finding, size};
use crate::bench::{Bench, modelled};
use crate::explanation::{Apply, Fix};
use crate::origins::Role;
use crate::source::{assigned, statement_end};

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
        "the optimizer's {} had made {} of state and {} of temporaries when it asked for {} more; the parameters take {}",
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
    let mut add = |lever, label, option: &str, how: &str| {
        let apply = option_edit(bench, option).unwrap_or_default();
        let mut fix = modelled(bench, lever, label, saves, how.to_owned(), apply);
        if !foreach {
            // State is still being made: what of the temporaries is to come is not known.
            fix.fits = Some(false);
        }
        fixes.push(fix);
    };
    add(
        Lever::FusedOptimizer,
        Label::Rounding,
        "fused=True",
        "`fused=True`: one kernel updates each parameter, without temporaries for all of them at once",
    );
    add(
        Lever::ForeachOff,
        Label::Exact,
        "foreach=False",
        "`foreach=False`: parameters are updated one after the other, with temporaries for one",
    );
    let eight = state + requested;
    fixes.push(modelled(
        bench,
        Lever::EightBitOptimizer,
        Label::ChangesTraining,
        eight / 4 * 3,
        "an optimizer with 8-bit state (`bitsandbytes.optim.AdamW8bit`, torchao's `AdamW8bit`): a quarter of the state".to_owned(),
        Apply::ByHand,
    ));
    fixes
}

/// An option at the end of the line that makes the optimizer.
fn option_edit(bench: &Bench<'_>, option: &str) -> Option<Apply> {
    let story = &bench.story;
    let users = std::iter::once(story.trouble.stack).chain(
        story.lives.iter().rev().filter(|life| life.role == Role::Optimizer).map(|life| life.block.stack),
    );
    let stack = users.into_iter().find(|stack| story.origins.get(*stack).site().is_some())?;
    for site in &story.origins.get(stack).user {
        let Some(mut source) = bench.source(*site) else { continue };
        let lines: Vec<(u32, String)> =
            source.lines().map(|(number, text)| (number, text.to_owned())).collect();
        for (number, text) in &lines {
            let Some((_, value)) = assigned(text) else { continue };
            let callee = value.split('(').next().unwrap_or_default();
            let is_optimizer = OPTIMIZERS.iter().any(|name| callee.rsplit('.').next() == Some(name));
            if !is_optimizer {
                continue;
            }
            let end = statement_end(&source, *number);
            let last = source.line(end).to_owned();
            let close = last.rfind(')')?;
            let before = last[..close].trim_end();
            let comma =
                if before.ends_with(',') || before.ends_with('(') || before.is_empty() { "" } else { ", " };
            let new = if before.trim().is_empty() {
                // The bracket closes on a line of its own.
                let indent = crate::source::indent_of(source.line(end - 1)).to_owned();
                source.insert_before(end, format!("{indent}{option},"));
                last.clone()
            } else {
                format!("{before}{comma}{option}{}", &last[close..])
            };
            if new != last {
                source.replace(end, new);
            }
            return source.edit();
        }
    }
    None
}

/// Those that take the option.
const OPTIMIZERS: [&str; 5] = ["Adam", "AdamW", "SGD", "Adagrad", "NAdam"];
