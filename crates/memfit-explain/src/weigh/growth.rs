//! Steps that leave something behind: a few tensors, or their whole graph.

use std::collections::HashSet;

use memfit_allocator::Edit;
use memfit_patch::Known;
use memfit_recording::StackId;
use memfit_vocabulary::{Category, Cause, Lever, Proof};

use super::{Finding, size};
use crate::bench::{Bench, modelled, replayed};
use crate::explanation::{Apply, Fact, Fix, Line};
use crate::leaks::Leak;
use crate::origins::{Role, Site};
use crate::story::Life;

/// So many tensors of each step stay, so it is a graph and not what somebody collects.
const TENSORS_OF_A_GRAPH: usize = 4;

/// The number of leaks, the largest first, whose lines are looked at for a remedy.
const LEAKS_LOOKED_AT: usize = 8;

pub(super) fn find(bench: &Bench<'_>, leaks: &[Leak]) -> Option<Finding> {
    let bytes: u64 = leaks.iter().map(|leak| leak.bytes).sum();
    let per_step: u64 = leaks.iter().map(|leak| leak.per_step).sum();
    // What grows by less than a thousandth of what is there in each step is no reason for anything.
    if leaks.is_empty() || per_step * 1000 < bench.story.trouble.allocated {
        return None;
    }
    let story = &bench.story;
    let now = story.period_of(story.trouble.moment);
    let blocks: HashSet<u32> = leaks.iter().flat_map(|leak| leak.blocks.iter().copied()).collect();
    // What the step under way has made so far it may yet let go by itself.
    let old: u64 = story
        .live()
        .filter(|life| blocks.contains(&life.index) && story.period_of(life.block.born) < now)
        .map(|life| life.block.bytes)
        .sum();
    let activations: u64 =
        leaks.iter().filter(|leak| leak.category == Category::Activations).map(|leak| leak.bytes).sum();
    // Of a graph, many tensors of a step stay, and most of what its forward made for the backward.
    let typical = now.saturating_sub(2);
    let made =
        |life: &&Life| life.category == Category::Activations && story.period_of(life.block.born) == typical;
    let stayed = || story.lives.iter().filter(made).filter(|life| blocks.contains(&life.index));
    let tensors = stayed().count();
    let stays: u64 = stayed().map(|life| life.block.bytes).sum();
    // Other forwards of the same step, of which nothing stays, have graphs of their own.
    let called = |life: &Life| story.origins.get(life.block.stack).caller;
    let callers: HashSet<Site> = stayed().filter_map(called).collect();
    let of_modules: u64 = stayed().filter(|life| called(life).is_some()).map(|life| life.block.bytes).sum();
    let same_forward = |life: &&Life| {
        of_modules * 2 <= stays || called(life).is_some_and(|caller| callers.contains(&caller))
    };
    let whole: u64 = story.lives.iter().filter(made).filter(same_forward).map(|life| life.block.bytes).sum();
    let graph = tensors >= TENSORS_OF_A_GRAPH && activations * 2 > bytes && stays * 5 >= whole * 2;
    let of_anew: u64 = leaks.iter().filter(|leak| leak.made_anew).map(|leak| leak.bytes).sum();
    let anew = !graph && of_anew * 2 > bytes;
    let unused = story.trouble.reserved.saturating_sub(story.trouble.allocated);
    let steps = leaks.iter().map(|leak| leak.steps).max().unwrap_or(0);
    let first = leaks.first()?;
    let stack = story.lives.iter().find(|life| life.index == first.blocks[0]).map(|life| life.block.stack);
    let (part, parts) = if story.by_rounds { ("forward pass", "forward passes") } else { ("step", "steps") };
    let (cause, text) = if graph {
        let text = format!(
            "each {part} keeps {} in {tensors} tensors of its forward pass, its whole autograd graph: {} after {steps} {parts}",
            size(per_step),
            size(bytes)
        );
        (Cause::RetainedGraph, text)
    } else if anew {
        let text = format!(
            "a tensor is rebuilt each {part} with {} more in it, {} by now, and old and new exist at the same time",
            size(per_step),
            size(bytes)
        );
        (Cause::GrowingCache, text)
    } else {
        let text =
            format!("each {part} keeps {} more, {} after {steps} {parts}", size(per_step), size(bytes));
        (Cause::Leaking, text)
    };
    let mut facts = vec![bench.fact(text, bytes, stack)];
    if let Some(step) = first.dies_at.filter(|_| story.trouble.requested.is_none()) {
        facts.push(bench.fact(format!("at that rate memory runs out in {part} {step}"), per_step, None));
    }
    let end_of = |block: u32| -> Edit {
        let Some(life) =
            story.lives.binary_search_by_key(&block, |life| life.index).ok().map(|at| &story.lives[at])
        else {
            return Edit::Keep;
        };
        if !blocks.contains(&block) {
            return Edit::Keep;
        }
        story.periods().get(story.period_of(life.block.born)).map_or(Edit::Keep, |end| Edit::FreeAt(*end))
    };
    let then = bench.replay(&bench.program, &bench.case.given, end_of);
    let sites = bench.sites(newest(bench, leaks));
    let places: Vec<memfit_patch::Site> = sites.iter().map(|site| bench.place(*site)).collect();
    let told = |line: u32| facts[0].lines.iter().any(|known| known.line == line);
    if let Some(keeper) = bench.code.keeper(&places).filter(|keeper| !told(keeper.line)) {
        let memfit_patch::Site { file, line, function } = keeper;
        let lines = vec![bench.with_text(Line { file, line, function, text: None })];
        facts.push(Fact { text: "this line keeps it".to_owned(), bytes: per_step, lines });
    }
    let (lever, how) = if graph {
        (
            Lever::ReleaseGraph,
            "keep no tensor with an autograd graph from step to step: `.item()` or `.detach()` running totals, `.detach()` what the next step reads, and drop `retain_graph=True` where one backward pass is enough",
        )
    } else {
        (
            Lever::KeepOffTheCard,
            "move what is collected over the steps off the GPU and detach it: `.detach().cpu()`, or `.item()` for a number",
        )
    };
    let backwards = story.lives.iter().rev().filter(|life| life.role == Role::Backward);
    let backwards = bench.sites(backwards.map(|life| life.block.stack));
    let backwards: Vec<memfit_patch::Site> = backwards.iter().map(|site| bench.place(*site)).collect();
    let apply = bench.change(lever, &sites, Known::Backwards(&backwards));
    let mut fixes = Vec::new();
    if anew {
        fixes.push(preallocated(bench, &blocks));
    }
    let fix = replayed(lever, how.to_owned(), &then, apply);
    // The next step may read what the last has made: that it could go earlier, the calls do not show.
    fixes.push(if anew {
        Fix { fits: None, proof: Proof::Modelled, apply: Apply::ByHand(None), ..fix }
    } else {
        fix
    });
    let enough = match story.trouble.requested {
        // What is left behind has to be what fills the card, and not a trickle beside something else.
        Some(_) => bench.enough(old) == Some(true) && old * 4 >= story.trouble.allocated && old >= unused,
        None => true,
    };
    Some(Finding { cause, bytes, enough, facts, fixes })
}

/// What grows made once, as large as it will be. What the failing request would have replaced is its size
/// without the part that comes now: that much is there twice.
fn preallocated(bench: &Bench<'_>, blocks: &HashSet<u32>) -> Fix {
    let story = &bench.story;
    let requested = story.trouble.requested.unwrap_or(0);
    let twice = story
        .live()
        .filter(|life| blocks.contains(&life.index) && life.block.bytes <= requested)
        .map(|life| life.block.bytes)
        .max()
        .unwrap_or(0);
    let how = "allocate it once at its final size (`torch.empty(most, …)`) and write each part into its place: `torch.cat` of everything so far needs the old and the new tensor at once. Results that are only looked at later can be collected in a list on the host and concatenated at the end";
    modelled(bench, Lever::Preallocate, twice, how.to_owned(), Apply::ByHand(None))
}

/// Where the newest blocks of the largest leaks were asked for.
fn newest(bench: &Bench<'_>, leaks: &[Leak]) -> Vec<StackId> {
    let story = &bench.story;
    let now = story.period_of(story.trouble.moment);
    let known = |block: &u32| story.lives.binary_search_by_key(block, |life| life.index).ok();
    // What the step under way has made may yet go by itself.
    let newest = leaks.iter().take(LEAKS_LOOKED_AT).filter_map(|leak| {
        let lives = || leak.blocks.iter().rev().filter_map(known).map(|at| &story.lives[at]);
        lives().find(|life| story.period_of(life.block.born) < now).or_else(|| lives().next())
    });
    newest.map(|life| life.block.stack).collect()
}
