//! Forward passes whose graph is kept although no backward pass follows.

use std::collections::{HashMap, HashSet};

use memfit_allocator::Edit;
use memfit_patch::RecordedFacts;
use memfit_vocabulary::{Category, Cause, Lever, Phase};

use super::{Finding, size};
use crate::analysis::{Analysis, modelled_fix};
use crate::explanation::Fix;
use crate::origins::Site;
use crate::timeline::{Life, Timeline};

/// Names of functions that evaluate.
const EVALUATION_NAMES: [&str; 12] = [
    "eval",
    "evaluate",
    "evaluation",
    "valid",
    "validate",
    "validation",
    "test",
    "infer",
    "inference",
    "predict",
    "score",
    "encode",
];

/// Minimum number of completed passes without a backward pass if nothing was ever trained. A loss over two or
/// three views of a batch has as many before its first backward pass.
const MIN_PASSES: usize = 3;

pub(super) fn find(analysis: &Analysis<'_>) -> Option<Finding> {
    let timeline = &analysis.timeline;
    let trouble = timeline.trouble;
    trouble.requested?;
    if trouble.phase != Phase::Forward && trouble.phase != Phase::Other {
        return None;
    }
    let round = timeline.rounds_at(trouble.moment).checked_sub(1)?;
    let began = timeline.rounds[round];
    // Graphs of passes without a backward pass: the current one and earlier ones that are still live.
    let graph =
        |life: &Life| life.category == Category::Activations && !backward_after(timeline, life.block.born);
    let kept = timeline.sum(graph);
    let caller = caller(timeline, began, trouble.moment);
    let is_off = |site: Site| analysis.code.is_without_grad(timeline.track.texts.get(site.file), site.line);
    if analysis.without_graph() || caller.is_some_and(is_off) {
        return None;
    }
    let trained: HashSet<Site> = trained_callers(timeline);
    let trains = !trained.is_empty() || timeline.has_phase(Phase::Backward);
    let elsewhere = caller.is_some_and(|caller| !trained.is_empty() && !trained.contains(&caller));
    let name = caller.map(|caller| timeline.track.texts.get(caller.function)).unwrap_or_default();
    let telling = name
        .rsplit('.')
        .next()
        .unwrap_or_default()
        .split('_')
        .any(|word| EVALUATION_NAMES.contains(&word.to_ascii_lowercase().as_str()));
    let never = !trains && round >= MIN_PASSES && earlier_rounds_had_no_backward(timeline, began);
    let only = !(elsewhere || telling || never || trains) && analysis.code.only_evaluates();
    if !(elsewhere || telling || never || only) || kept == 0 || analysis.backward_is_ahead() {
        return None;
    }
    let why = if elsewhere {
        format!("`{name}` calls the model, and no backward pass ever followed")
    } else if never {
        "the model was called repeatedly, and no backward pass ever followed".to_owned()
    } else if only {
        "the model is in evaluation mode, and nothing in the source trains it".to_owned()
    } else {
        format!("`{name}` calls the model, and its name says that it evaluates")
    };
    let text = format!("{why}: {} of activations are saved for a backward pass that never runs", size(kept));
    // Without a graph, little more is live than what one operation passes to the next.
    let free_times_without_graph = free_times_without_graph(timeline, graph);
    let then = analysis.replay(&analysis.program, &analysis.case.given, |block| {
        free_times_without_graph.get(&block).map_or(Edit::Keep, |moment| Edit::FreeAt(*moment))
    });
    let stays: u64 = timeline
        .live()
        .filter(|life| graph(life) && !free_times_without_graph.contains_key(&life.index))
        .map(|life| life.block.bytes)
        .sum();
    let saves = kept.saturating_sub(stays);
    // The batch belongs to the graph as well; the call of the model is the line to change.
    let stacks = analysis.stacks(timeline.live().filter(|life| graph(life)));
    let by_model = stacks.iter().find(|(stack, _)| timeline.origins.get(*stack).caller.is_some());
    let stack = by_model.or(stacks.first()).map(|(stack, _)| *stack);
    let how = "evaluate under `torch.no_grad()` (or `torch.inference_mode()`): no activations are saved for a backward pass";
    let known = RecordedFacts::NeverTrained(elsewhere || only);
    let apply = caller.map(|caller| analysis.change(Lever::NoGrad, &[caller], known)).unwrap_or_default();
    Some(Finding {
        cause: Cause::EvaluationWithGradients,
        bytes: saves,
        // The graph must be a large part of the live memory. Otherwise the evaluation's own tensors are too
        // large.
        enough: then.fits == Some(true) && saves * 4 >= trouble.allocated,
        facts: vec![analysis.fact(text, kept, stack)],
        fixes: vec![Fix {
            fits: then.fits,
            ..modelled_fix(analysis, Lever::NoGrad, saves, how.to_owned(), apply)
        }],
    })
}

/// Moment at which each block of a graph would be freed without the graph: when the next block is allocated,
/// or at the end of its pass. The last block is the input of the current operation.
fn free_times_without_graph(timeline: &Timeline<'_>, graph: impl Fn(&Life) -> bool) -> HashMap<u32, u32> {
    let kept: Vec<&Life> = timeline.live().filter(|life| graph(life)).collect();
    let mut free_times_without_graph = HashMap::new();
    for (index, life) in kept.iter().enumerate() {
        let round = timeline.rounds_at(life.block.born);
        let end = timeline.rounds.get(round).copied().filter(|end| *end < timeline.trouble.moment);
        let next = kept.get(index + 1).filter(|next| timeline.rounds_at(next.block.born) == round);
        if let Some(moment) = next.map(|next| next.block.born).or(end) {
            free_times_without_graph.insert(life.index, moment);
        }
    }
    free_times_without_graph
}

/// Returns `true` if a backward pass ran between a moment and the explained one.
fn backward_after(timeline: &Timeline<'_>, moment: u32) -> bool {
    timeline.phase_ran(Phase::Backward, moment, timeline.trouble.moment)
}

/// User line that calls the model in a range of the run.
fn caller(timeline: &Timeline<'_>, from: u32, to: u32) -> Option<Site> {
    let inside = timeline.lives.iter().filter(|life| life.block.born >= from && life.block.born <= to);
    let call = timeline.model_call(inside, to == timeline.trouble.moment)?;
    timeline.origins.get(call).caller
}

/// Lines that called the model in passes that were followed by a backward pass.
fn trained_callers(timeline: &Timeline<'_>) -> HashSet<Site> {
    let backwards: Vec<u32> = timeline
        .phases
        .iter()
        .filter(|(_, phase)| *phase == Phase::Backward)
        .map(|(began, _)| *began)
        .collect();
    let mut callers = HashSet::new();
    let mut from = 0;
    for backward in backwards {
        // Of several passes before a backward pass, only the last is certain to belong to it.
        let round = timeline.rounds_at(backward).checked_sub(1).map_or(from, |round| timeline.rounds[round]);
        callers.extend(caller(timeline, round.max(from), backward));
        from = backward;
    }
    callers
}

fn earlier_rounds_had_no_backward(timeline: &Timeline<'_>, began: u32) -> bool {
    !timeline.phase_ran(Phase::Backward, 0, began)
}
