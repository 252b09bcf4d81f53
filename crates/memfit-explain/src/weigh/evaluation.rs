//! A forward whose graph is kept although no backward comes.

use std::collections::{HashMap, HashSet};

use memfit_allocator::Edit;
use memfit_vocabulary::{Category, Cause, Label, Lever, Phase};

use super::{Finding, size};
use crate::bench::{Bench, modelled};
use crate::explanation::{Apply, Fix};
use crate::origins::Site;
use crate::source::{enclosing_def, ends_statement, indent_of};
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
    if caller.is_some_and(|caller| keeps_no_graph(bench, caller)) {
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
    let never = !trains && round >= 1 && earlier_rounds_had_no_backward(story, began);
    if !(elsewhere || telling || never) || kept == 0 {
        return None;
    }
    let why = if elsewhere {
        format!("`{name}` calls the model, and no backward ever followed a call of its")
    } else if never {
        "the model was called again and again, and no backward ever followed".to_owned()
    } else {
        format!("`{name}` calls the model; by its name it evaluates")
    };
    let text = format!("{why}: {} of activations are kept for a backward that does not come", size(kept));
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
    let how =
        "evaluate under `torch.no_grad()` (or `torch.inference_mode()`): nothing is kept for a backward";
    let apply = caller.and_then(|caller| edit(bench, caller)).unwrap_or_default();
    Some(Finding {
        cause: Cause::EvaluationWithGradients,
        bytes: saves,
        // What is kept has to be a good part of what is there: else it is the evaluation's own tensors that
        // are too much.
        enough: then.fits == Some(true) && saves * 4 >= trouble.allocated,
        facts: vec![bench.fact(text, kept, stack)],
        fixes: vec![Fix {
            fits: then.fits,
            ..modelled(bench, Lever::NoGrad, Label::Exact, saves, how.to_owned(), apply)
        }],
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

/// `@torch.no_grad()` over the function that evaluates, or `with torch.no_grad():` around the line.
fn edit(bench: &Bench<'_>, caller: Site) -> Option<Apply> {
    let mut source = bench.source(caller)?;
    let function =
        bench.story.track.texts.get(caller.function).rsplit('.').next().unwrap_or_default().to_owned();
    let own_def = enclosing_def(&source, caller.line)
        .filter(|def| source.line(*def).contains(&format!("def {function}")))
        // Not over a function that also trains.
        .filter(|def| !has_backward(&source, *def, caller.line));
    if let Some(def) = own_def {
        let mut first = def;
        while first > 1 && source.line(first - 1).trim_start().starts_with('@') {
            first -= 1;
        }
        let indent = indent_of(source.line(def)).to_owned();
        source.insert_before(first, format!("{indent}@torch.no_grad()"));
    } else {
        let text = source.line(caller.line).to_owned();
        if text.is_empty() || !ends_statement(&text) {
            return None;
        }
        let indent = indent_of(&text);
        source.replace_by(
            caller.line,
            vec![format!("{indent}with torch.no_grad():"), format!("{indent}    {}", text.trim())],
        );
    }
    source.import("import torch");
    source.edit()
}

/// Whether the source says that no graph is kept where the model is called: by a `with` around the line, or
/// over its function.
fn keeps_no_graph(bench: &Bench<'_>, caller: Site) -> bool {
    let Some(source) = bench.source(caller) else { return false };
    let says = |text: &str| text.contains("no_grad(") || text.contains("inference_mode(");
    let mut outer = indent_of(source.line(caller.line)).len();
    for line in (1..caller.line).rev() {
        let text = source.line(line).to_owned();
        let indent = indent_of(&text).len();
        if text.trim().is_empty() || indent >= outer {
            continue;
        }
        outer = indent;
        let trimmed = text.trim_start();
        if trimmed.starts_with("with ") && says(trimmed) {
            return true;
        }
        if trimmed.starts_with("def ") || trimmed.starts_with("async def ") {
            let over = (1..line).rev().map(|above| source.line(above).trim().to_owned());
            return over
                .take_while(|above| above.starts_with('@'))
                .any(|above| says(&above) || above.ends_with("no_grad"));
        }
    }
    false
}

fn has_backward(source: &crate::source::Source, def: u32, _line: u32) -> bool {
    let indent = indent_of(source.line(def)).len();
    source
        .lines()
        .skip(def as usize)
        .take_while(|(_, text)| text.trim().is_empty() || indent_of(text).len() > indent)
        .any(|(_, text)| text.contains(".backward("))
}
