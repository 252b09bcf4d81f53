//! The optimizer's first step: creation of its state, and temporaries of all parameters at once.

use std::collections::{BTreeMap, HashSet};

use memfit_patch::RecordedFacts;
use memfit_recording::StackId;
use memfit_vocabulary::{Category, Cause, Lever, Phase};

use super::{Finding, size};
use crate::analysis::{Analysis, modelled_fix};
use crate::explanation::{Apply, Fix};
use crate::leaks::interval;
use crate::origins::Role;
use crate::timeline::Life;

/// Divisor of the parameters' bytes: a step that creates at least a sixteenth of them as state is a first
/// step for some of them.
const STATE_SHARE_DIVISOR: u64 = 16;

pub(super) fn find(analysis: &Analysis<'_>) -> Option<Finding> {
    let timeline = &analysis.timeline;
    let requested = timeline.trouble.requested?;
    if timeline.trouble.phase != Phase::Optimizer {
        return None;
    }
    let origin = timeline.origins.get(timeline.trouble.stack);
    let began = timeline
        .phases
        .iter()
        .rev()
        .find(|(began, phase)| *phase == Phase::Optimizer && *began <= timeline.trouble.moment)?
        .0;
    let here = |life: &Life| life.block.born >= began;
    let stacks = timeline.lives.iter().filter(|life| here(life)).map(|life| life.block.stack);
    let stacks: HashSet<StackId> = stacks.chain([timeline.trouble.stack]).collect();
    let copies: HashSet<StackId> = stacks.into_iter().filter(|stack| keeps_copy(analysis, *stack)).collect();
    let is_state = |life: &Life| life.category == Category::Optimizer || copies.contains(&life.block.stack);
    let state = timeline.sum(|life| here(life) && is_state(life));
    let parameters = timeline.sum(|life| life.category == Category::Parameters);
    let all_here = timeline.sum(here);
    let temporary = all_here.saturating_sub(state);
    let asks_for_state = origin.operation.state || copies.contains(&timeline.trouble.stack);
    // Each of several optimizers has a first step of its own.
    let line = origin.site();
    let before = |life: &&Life| life.role == Role::Optimizer && life.block.born < began;
    let made = || timeline.lives.iter().filter(before);
    let new_here = line.is_some() && made().next().is_some() && !made().any(|life| life.site == line);
    // Parameters that are trained from here on get their state in a later step.
    let creates_state = state * STATE_SHARE_DIVISOR >= parameters && state > 0;
    let first =
        timeline.steps_at(timeline.trouble.moment) == 0 || asks_for_state || new_here || creates_state;
    let foreach = !asks_for_state;
    let text = format!(
        "the optimizer's {} had allocated {} of state and {} of temporaries when it requested {}; the parameters take {}",
        if first { "first step" } else { "step" },
        size(state),
        size(temporary),
        analysis.request(),
        size(parameters)
    );
    let fixes = remedies(analysis, foreach, temporary, requested, state);
    Some(Finding {
        cause: Cause::FirstStepSurprise,
        bytes: all_here + requested,
        enough: first && analysis.enough(all_here + requested) == Some(true) && analysis.full(),
        facts: vec![analysis.fact(text, all_here, Some(timeline.trouble.stack))],
        fixes,
    })
}

/// Finds state that grows with each step, as L-BFGS keeps the directions of earlier steps.
pub(super) fn growing_state(analysis: &Analysis<'_>) -> Option<Finding> {
    let timeline = &analysis.timeline;
    timeline.trouble.requested?;
    let now = timeline.period_of(timeline.trouble.moment);
    let mut by_step: BTreeMap<usize, (u64, StackId)> = BTreeMap::new();
    for life in timeline.live().filter(|life| life.category == Category::Optimizer) {
        let of_step = by_step.entry(timeline.period_of(life.block.born)).or_insert((0, life.block.stack));
        of_step.0 += life.block.bytes;
    }
    // Parameters that are trained later, or another optimizer, get state in few steps.
    interval(by_step.keys().copied(), now).filter(|every| *every == 1)?;
    let mut sizes: Vec<u64> = by_step.values().map(|(bytes, _)| *bytes).collect();
    sizes.sort_unstable();
    let typical = sizes[sizes.len() / 2];
    // The first step creates the state that does not grow.
    let grown = typical.saturating_mul(by_step.len() as u64);
    let enough = grown * 4 >= timeline.trouble.allocated && analysis.enough(grown) == Some(true);
    let text = format!(
        "each step adds {} to the optimizer's state, {} after {} steps",
        size(typical),
        size(grown),
        by_step.len()
    );
    let stack = by_step.last_key_value().map(|(_, (_, stack))| *stack);
    let how = "the optimizer keeps something of each step (`LBFGS`: up to `history_size` of them, each as large as all parameters): keep it in host memory, or keep fewer, which changes the training";
    Some(Finding {
        cause: Cause::Leaking,
        bytes: grown,
        enough,
        facts: vec![analysis.fact(text, grown, stack)],
        fixes: vec![modelled_fix(
            analysis,
            Lever::HostOptimizerState,
            grown,
            how.to_owned(),
            Apply::ByHand(None),
        )],
    })
}

/// Returns `true` if the optimizer's own line keeps a copy of a gradient: the momentum of SGD begins as one.
/// The copies that it computes with are not detached.
fn keeps_copy(analysis: &Analysis<'_>, stack: StackId) -> bool {
    let track = analysis.timeline.track;
    let Some(frame) = track.stacks.get(stack).next() else { return false };
    let file = track.texts.get(frame.file);
    file.contains("torch/optim/")
        && analysis
            .code
            .line(file, frame.line)
            .is_some_and(|text| text.contains("detach()") && text.contains("clone("))
}

fn remedies(analysis: &Analysis<'_>, foreach: bool, temporary: u64, requested: u64, state: u64) -> Vec<Fix> {
    let saves = if foreach { temporary + requested } else { temporary };
    let mut fixes = Vec::new();
    let timeline = &analysis.timeline;
    let steps = timeline.lives.iter().rev().filter(|life| life.role == Role::Optimizer);
    let stacks = std::iter::once(timeline.trouble.stack).chain(steps.map(|life| life.block.stack));
    let stack = stacks.into_iter().find(|stack| timeline.origins.get(*stack).site().is_some());
    let sites = analysis.sites(stack);
    let mut add = |lever, how: &str| {
        let apply = analysis.change(lever, &sites, RecordedFacts::Nothing);
        let mut fix = modelled_fix(analysis, lever, saves, how.to_owned(), apply);
        if !foreach {
            // State is still being created, so the remaining temporaries are unknown.
            fix.fits = Some(false);
        }
        fixes.push(fix);
    };
    // Only PyTorch's own optimizers are known to have these options. Without stacks, it is likely one.
    let of_torch = !timeline.origins.any()
        || timeline.origins.get(stack.unwrap_or(timeline.trouble.stack)).operation.torch_optimizer;
    if of_torch {
        add(
            Lever::FusedOptimizer,
            "`fused=True`: one kernel updates each parameter, without temporaries for all of them at once",
        );
        add(
            Lever::ForeachOff,
            "`foreach=False`: parameters are updated one at a time, with temporaries for one",
        );
    }
    let eight = state + requested;
    // Fewer temporaries are an option of the optimizer, where they are enough.
    if !foreach || !of_torch || state > 0 && analysis.enough(saves) != Some(true) {
        fixes.push(modelled_fix(
            analysis,
            Lever::HostOptimizerState,
            eight,
            "keep the optimizer's state in host memory between steps, and copy it over for a few parameters at a time (`memfit.Step` with `levers={\"host-optimizer-state\": True}`)".to_owned(),
            Apply::ByHand(None),
        ));
    }
    fixes.push(modelled_fix(
        analysis,
        Lever::EightBitOptimizer,
        eight / 4 * 3,
        "an optimizer with 8-bit state (`bitsandbytes.optim.AdamW8bit`, torchao's `AdamW8bit`): a quarter of the state".to_owned(),
        Apply::ByHand(None),
    ));
    fixes
}
