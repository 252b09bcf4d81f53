//! A forward whose graph is kept although no backward comes.

use std::collections::{HashMap, HashSet};

use memfit_allocator::Edit;
use memfit_patch::Known;
use memfit_vocabulary::{Category, Cause, Lever, Phase};

use super::{Finding, size};
use crate::bench::{Bench, modelled};
use crate::explanation::Fix;
use crate::origins::Site;
use crate::story::{Life, Story};

/// Names of functions that evaluate.
const TELLING: [&str; 12] = [
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

/// So many passes without a backward come before the one under way where nothing was ever trained: a loss
/// over two or three views of a batch has as many before its first backward.
const PASSES: usize = 3;

pub(super) fn find(bench: &Bench<'_>) -> Option<Finding> {
    let story = &bench.story;
    let trouble = story.trouble;
    trouble.requested?;
    if trouble.phase != Phase::Forward && trouble.phase != Phase::Other {
        return None;
    }
    let round = story.rounds_at(trouble.moment).checked_sub(1)?;
    let began = story.rounds[round];
    // A graph of rounds that nothing went back through: the one under way, and those before it that are still
    // there.
    let graph =
        |life: &Life| life.category == Category::Activations && !backward_after(story, life.block.born);
    let kept = story.sum(graph);
    let caller = caller(story, began, trouble.moment);
    let is_off = |site: Site| bench.code.is_without_grad(story.track.texts.get(site.file), site.line);
    if bench.without_graph() || caller.is_some_and(is_off) {
        return None;
    }
    let trained: HashSet<Site> = trained_callers(story);
    let trains = !trained.is_empty() || story.ever(Phase::Backward);
    let elsewhere = caller.is_some_and(|caller| !trained.is_empty() && !trained.contains(&caller));
    let name = caller.map(|caller| story.track.texts.get(caller.function)).unwrap_or_default();
    let telling = name
        .rsplit('.')
        .next()
        .unwrap_or_default()
        .split('_')
        .any(|word| TELLING.contains(&word.to_ascii_lowercase().as_str()));
    let never = !trains && round >= PASSES && earlier_rounds_had_no_backward(story, began);
    if !(elsewhere || telling || never) || kept == 0 {
        return None;
    }
    let why = if elsewhere {
        format!("`{name}` calls the model, and no backward pass ever followed")
    } else if never {
        "the model was called repeatedly, and no backward pass ever followed".to_owned()
    } else {
        format!("`{name}` calls the model, and its name says that it evaluates")
    };
    let text = format!("{why}: {} of activations are saved for a backward pass that never runs", size(kept));
    // Without a graph, what one operation hands to the next is there, and little else.
    let handed_on = handed_on(story, graph);
    let then = bench.replay(&bench.program, &bench.case.given, |block| {
        handed_on.get(&block).map_or(Edit::Keep, |moment| Edit::FreeAt(*moment))
    });
    let stays: u64 = story
        .live()
        .filter(|life| graph(life) && !handed_on.contains_key(&life.index))
        .map(|life| life.block.bytes)
        .sum();
    let saves = kept.saturating_sub(stays);
    let stack = bench.stacks(story.live().filter(|life| graph(life))).first().map(|(stack, _)| *stack);
    let how = "evaluate under `torch.no_grad()` (or `torch.inference_mode()`): no activations are saved for a backward pass";
    let known = Known::NeverTrained(elsewhere);
    let apply = caller.map(|caller| bench.change(Lever::NoGrad, &[caller], known)).unwrap_or_default();
    Some(Finding {
        cause: Cause::EvaluationWithGradients,
        bytes: saves,
        // What is kept has to be a good part of what is there: else it is the evaluation's own tensors that
        // are too much.
        enough: then.fits == Some(true) && saves * 4 >= trouble.allocated,
        facts: vec![bench.fact(text, kept, stack)],
        fixes: vec![Fix { fits: then.fits, ..modelled(bench, Lever::NoGrad, saves, how.to_owned(), apply) }],
    })
}

/// When each block of a graph would have gone if no graph were kept: once the next was made, or with its
/// pass. The last is what the operation under way works on.
fn handed_on(story: &Story<'_>, graph: impl Fn(&Life) -> bool) -> HashMap<u32, u32> {
    let kept: Vec<&Life> = story.live().filter(|life| graph(life)).collect();
    let mut handed_on = HashMap::new();
    for (index, life) in kept.iter().enumerate() {
        let round = story.rounds_at(life.block.born);
        let end = story.rounds.get(round).copied().filter(|end| *end < story.trouble.moment);
        let next = kept.get(index + 1).filter(|next| story.rounds_at(next.block.born) == round);
        if let Some(moment) = next.map(|next| next.block.born).or(end) {
            handed_on.insert(life.index, moment);
        }
    }
    handed_on
}

/// Whether a backward ran between a moment and the trouble.
fn backward_after(story: &Story<'_>, moment: u32) -> bool {
    story.ran(Phase::Backward, moment, story.trouble.moment)
}

/// The user's line that calls the model, in a part of the run.
fn caller(story: &Story<'_>, from: u32, to: u32) -> Option<Site> {
    let own = story.origins.get(story.trouble.stack).caller.filter(|_| to == story.trouble.moment);
    own.or_else(|| {
        let inside = story.lives.iter().filter(|life| life.block.born >= from && life.block.born <= to);
        inside.rev().find_map(|life| story.origins.get(life.block.stack).caller)
    })
}

/// The lines that called the model in rounds that a backward followed.
fn trained_callers(story: &Story<'_>) -> HashSet<Site> {
    let backwards: Vec<u32> =
        story.phases.iter().filter(|(_, phase)| *phase == Phase::Backward).map(|(began, _)| *began).collect();
    let mut callers = HashSet::new();
    let mut from = 0;
    for backward in backwards {
        // Of several rounds before a backward, the last is the one that it goes back through for certain.
        let round = story.rounds_at(backward).checked_sub(1).map_or(from, |round| story.rounds[round]);
        callers.extend(caller(story, round.max(from), backward));
        from = backward;
    }
    callers
}

fn earlier_rounds_had_no_backward(story: &Story<'_>, began: u32) -> bool {
    !story.ran(Phase::Backward, 0, began)
}
