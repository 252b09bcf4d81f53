//! Steps that leave memory behind: a few tensors, or their whole graph.

use std::collections::{BTreeMap, HashSet};

use memfit_allocator::Edit;
use memfit_patch::RecordedFacts;
use memfit_recording::StackId;
use memfit_vocabulary::{Category, Cause, Lever, Phase, Proof};

use super::{Finding, size};
use crate::analysis::{Analysis, modelled_fix, replayed_fix};
use crate::explanation::{Apply, Fact, Fix, Line};
use crate::leaks::Leak;
use crate::origins::{Role, Site};
use crate::timeline::Life;

/// Advice for values that are collected.
const KEEP_ON_CPU: &str = "move what is collected over the steps off the GPU and detach it: `.detach().cpu()`, or `.item()` for a number";

/// Minimum number of tensors left by a step for them to be a graph, rather than a collection.
const MIN_GRAPH_TENSORS: usize = 4;

/// Number of the last periods that left something, of which one is taken as typical.
const LAST_PERIODS: usize = 8;

/// Minimum number of lines that rebuild a larger tensor for them to be a cache of keys and values.
const KEYS_AND_VALUES: usize = 2;

/// Maximum number of leaks, the largest first, for which a remedy is searched.
const MAX_LEAKS: usize = 8;

pub(super) fn find(analysis: &Analysis<'_>, leaks: &[Leak]) -> Option<Finding> {
    let bytes: u64 = leaks.iter().map(|leak| leak.bytes).sum();
    let per_step: u64 = leaks.iter().map(|leak| leak.per_step).sum();
    let timeline = &analysis.timeline;
    // Growth of less than a thousandth of the live memory in each step is not a cause, unless it has filled
    // the GPU: a cache grows by one token at a time.
    let slow = per_step * 1000 < timeline.trouble.allocated;
    let little = timeline.trouble.requested.is_none() || bytes * 4 < timeline.trouble.allocated;
    if leaks.is_empty() || slow && little {
        return None;
    }
    // Before the first backward pass, calls that leave activations may be the parts of one graph.
    if timeline.by_rounds && !timeline.has_phase(Phase::Backward) && analysis.backward_is_ahead() {
        return None;
    }
    let now = timeline.period_of(timeline.trouble.moment);
    let blocks: HashSet<u32> = leaks.iter().flat_map(|leak| leak.blocks.iter().copied()).collect();
    // Memory of the current step may still be freed by the program. What is rebuilt has the content of
    // earlier steps, whenever it was allocated.
    let rebuilt: HashSet<u32> =
        leaks.iter().filter(|leak| leak.rebuilt).flat_map(|leak| leak.blocks.iter().copied()).collect();
    let is_old = |life: &Life| timeline.period_of(life.block.born) < now || rebuilt.contains(&life.index);
    let old: u64 = timeline
        .live()
        .filter(|life| blocks.contains(&life.index) && is_old(life))
        .map(|life| life.block.bytes)
        .sum();
    let graph = kept_graph(analysis, leaks, &blocks, now);
    let rebuilt_bytes: u64 = leaks.iter().filter(|leak| leak.rebuilt).map(|leak| leak.bytes).sum();
    let concatenates = |leak: &&Leak| leak.site.is_some_and(|site| analysis.is_concatenated(site));
    let rebuilt_bytes = rebuilt_bytes.max(leaks.iter().filter(concatenates).map(|leak| leak.bytes).sum());
    let is_cache = graph.is_none() && rebuilt_bytes * 2 > bytes;
    let unused = timeline.trouble.reserved.saturating_sub(timeline.trouble.allocated);
    let steps = leaks.iter().map(|leak| leak.steps).max().unwrap_or(0);
    let first = leaks.first()?;
    let stack_of = |leak: &Leak| {
        timeline.lives.iter().find(|life| life.index == leak.blocks[0]).map(|life| life.block.stack)
    };
    // Blocks of the autograd engine's threads have no lines.
    let has_lines = |stack: &StackId| timeline.origins.get(*stack).site().is_some();
    let stack = leaks.iter().filter_map(stack_of).find(has_lines).or_else(|| stack_of(first));
    let (part, parts) =
        if timeline.by_rounds { ("forward pass", "forward passes") } else { ("step", "steps") };
    // A few bytes of each step, such as a loss, do not make it more often.
    let every = leaks.iter().max_by_key(|leak| leak.bytes).map_or(1, |leak| leak.every);
    let (each, per_time, parts) = match every {
        0 | 1 => (format!("each {part}"), per_step, parts.to_owned()),
        every => {
            let per_time = per_step.saturating_mul(every as u64);
            (format!("one in {every} {parts}"), per_time, format!("of these {parts}"))
        }
    };
    let (cause, text) = if let Some(tensors) = graph {
        let text = format!(
            "{each} keeps {} in {tensors} tensors of its forward pass, its whole autograd graph: {} after {steps} {parts}",
            size(per_time),
            size(bytes)
        );
        (Cause::RetainedGraph, text)
    } else if is_cache {
        let text = format!(
            "a tensor is rebuilt each {part} with {} more in it, {} by now, and old and new exist at the same time",
            size(per_step),
            size(bytes)
        );
        (Cause::GrowingCache, text)
    } else {
        let text = format!("{each} keeps {} more, {} after {steps} {parts}", size(per_time), size(bytes));
        (Cause::Leaking, text)
    };
    let mut facts = vec![analysis.fact(text, bytes, stack)];
    if let Some(step) = first.dies_at.filter(|_| timeline.trouble.requested.is_none()) {
        facts.push(analysis.fact(format!("at that rate memory runs out in {part} {step}"), per_step, None));
    }
    let end_of = |block: u32| -> Edit {
        let Some(life) =
            timeline.lives.binary_search_by_key(&block, |life| life.index).ok().map(|at| &timeline.lives[at])
        else {
            return Edit::Keep;
        };
        if !blocks.contains(&block) {
            return Edit::Keep;
        }
        timeline
            .periods()
            .get(timeline.period_of(life.block.born))
            .map_or(Edit::Keep, |end| Edit::FreeAt(*end))
    };
    let then = analysis.replay(&analysis.program, &analysis.case.given, end_of);
    let sites = analysis.sites(newest_stacks(analysis, leaks));
    let places = analysis.places(&sites);
    let is_named = |site: &memfit_patch::Site| {
        facts[0].lines.iter().any(|known| known.line == site.line && known.file == site.file)
    };
    let of_module = stack.is_some_and(|stack| timeline.origins.get(stack).caller.is_some());
    let by_hook = || {
        Some((
            "a hook keeps what modules take or return",
            analysis.code.storing_hook().filter(|_| of_module)?,
        ))
    };
    let keeper = analysis.code.keeper(&places).map(|site| ("this line keeps it", site));
    if let Some((text, keeper)) = keeper.or_else(by_hook).filter(|(_, keeper)| !is_named(keeper)) {
        let memfit_patch::Site { file, line, function } = keeper;
        let lines = vec![analysis.with_text(Line { file, line, function, text: None })];
        facts.push(Fact { text: text.to_owned(), bytes: per_step, lines });
    }
    let (lever, how) = if graph.is_some() {
        (
            Lever::ReleaseGraph,
            "keep no tensor with an autograd graph from step to step: `.item()` or `.detach()` running totals, `.detach()` what the next step reads, and drop `retain_graph=True` where one backward pass is enough",
        )
    } else {
        (Lever::KeepOnCpu, KEEP_ON_CPU)
    };
    let backwards = timeline.lives.iter().rev().filter(|life| life.role == Role::Backward);
    let backwards = analysis.places(&analysis.sites(backwards.map(|life| life.block.stack)));
    let apply = analysis.change(lever, &sites, RecordedFacts::Backwards(&backwards));
    let mut fixes = Vec::new();
    if is_cache {
        let growing = leaks.iter().filter(|leak| leak.rebuilt || concatenates(leak));
        let of_model = of_module && !timeline.has_phase(Phase::Backward);
        if of_model && growing.count() >= KEYS_AND_VALUES {
            fixes.extend(shorter_cache(analysis, rebuilt_bytes));
        }
        let preallocated = preallocated(analysis, &blocks);
        // Of many tensors, one exists twice at a time: the others go on growing.
        let fits = preallocated.fits.filter(|_| preallocated.saves * 4 >= rebuilt_bytes);
        fixes.push(Fix { fits, ..preallocated });
    }
    let fix = replayed_fix(lever, how.to_owned(), &then, apply);
    // The next step may read the old value: the calls do not show that it could be freed earlier.
    fixes.push(if is_cache {
        Fix { fits: None, proof: Proof::Modelled, apply: Apply::ByHand(None), ..fix }
    } else {
        fix
    });
    // A detached result may keep the memory of a larger one, from which PyTorch made it in place
    // (`mse_loss`).
    if graph.is_some()
        && let edit @ Apply::Edit(_) = analysis.change(Lever::KeepOnCpu, &sites, RecordedFacts::Nothing)
    {
        fixes.push(replayed_fix(Lever::KeepOnCpu, KEEP_ON_CPU.to_owned(), &then, edit));
    }
    let enough = match timeline.trouble.requested {
        // The leak must fill the GPU, and not be a minor addition to another cause.
        Some(_) => {
            analysis.enough(old) == Some(true) && old * 4 >= timeline.trouble.allocated && old >= unused
        }
        None => true,
    };
    Some(Finding { cause, bytes, enough, facts, fixes })
}

/// Number of tensors of a typical forward pass that stay, if the leaks are graphs that steps keep: many
/// tensors of each step, and at least two fifths of what its forward pass saved for the backward pass.
fn kept_graph(analysis: &Analysis<'_>, leaks: &[Leak], blocks: &HashSet<u32>, now: usize) -> Option<usize> {
    let timeline = &analysis.timeline;
    let period = |life: &Life| timeline.period_of(life.block.born);
    // Of the last complete periods, the one that keeps most: others may keep nothing, or be calls of another
    // model. What modules return counts, if any of it is known.
    let called = |life: &Life| timeline.origins.get(life.block.stack).caller;
    let complete = |life: &&Life| {
        blocks.contains(&life.index) && period(life) + 2 <= now && life.category == Category::Activations
    };
    let mut kept: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for life in timeline.live().filter(complete) {
        let of_period = kept.entry(period(life)).or_default();
        of_period.0 += if called(life).is_some() { life.block.bytes } else { 0 };
        of_period.1 += life.block.bytes;
    }
    let last = kept.into_iter().rev().take(LAST_PERIODS);
    let (typical, _) = last.max_by_key(|(period, bytes)| (*bytes, *period))?;
    let in_typical = |life: &&Life| life.category == Category::Activations && period(life) == typical;
    let kept_lives = || timeline.lives.iter().filter(in_typical).filter(|life| blocks.contains(&life.index));
    let tensors = kept_lives().count();
    let kept_bytes: u64 = kept_lives().map(|life| life.block.bytes).sum();
    // Other forward passes of the same step, which leave nothing, have graphs of their own.
    let callers: HashSet<Site> = kept_lives().filter_map(called).collect();
    let rounds: HashSet<usize> = kept_lives().map(|life| timeline.rounds_at(life.block.born)).collect();
    let of_modules: u64 =
        kept_lives().filter(|life| called(life).is_some()).map(|life| life.block.bytes).sum();
    let same_forward = |life: &&Life| {
        if !timeline.origins.any() {
            return rounds.contains(&timeline.rounds_at(life.block.born));
        }
        of_modules * 2 <= kept_bytes || called(life).is_some_and(|caller| callers.contains(&caller))
    };
    let forward_bytes: u64 =
        timeline.lives.iter().filter(in_typical).filter(same_forward).map(|life| life.block.bytes).sum();
    // If modules compute, the graph of a forward pass has tensors of theirs. Tensors that only the
    // script's own lines make between their calls, such as observations of an environment, are a collection.
    let by_script = of_modules * 4 < kept_bytes
        && timeline.lives.iter().filter(in_typical).any(|life| called(life).is_some());
    // Without gradients, kept activations have no graph.
    let off = |life: &Life| {
        let sites = &timeline.origins.get(life.block.stack).user;
        sites.iter().any(|site| analysis.code.is_without_grad(timeline.track.texts.get(site.file), site.line))
    };
    let sum = |of: &dyn Fn(&Life) -> bool| {
        let kept = timeline.live().filter(|life| blocks.contains(&life.index) && of(life));
        kept.map(|life| life.block.bytes).sum::<u64>()
    };
    let activations = sum(&|life| life.category == Category::Activations);
    // A gradient that has a graph itself (`create_graph=True`) keeps what its backward pass computed.
    let by_backward = |life: &Life| matches!(life.category, Category::Temporary | Category::Gradients);
    let of_backward = sum(&|life| life.role == Role::Backward && by_backward(life));
    // A graph also keeps the batch that the model was called with.
    let batch = if of_modules * 2 > kept_bytes { sum(&|life| life.category == Category::Inputs) } else { 0 };
    let bytes: u64 = leaks.iter().map(|leak| leak.bytes).sum();
    let rest = bytes.saturating_sub(batch);
    let is_mostly_graph = activations * 4 > rest && (activations + of_backward) * 2 > rest;
    let is_most_of_forward = kept_bytes * 5 >= forward_bytes * 2;
    let graph = tensors >= MIN_GRAPH_TENSORS
        && is_mostly_graph
        && is_most_of_forward
        && !by_script
        && !kept_lives().any(off);
    graph.then_some(tensors)
}

/// Remedies for the keys and values that a language model caches for each token.
fn shorter_cache(analysis: &Analysis<'_>, cached: u64) -> [Fix; 2] {
    let fix =
        |lever, saves, how: &str| modelled_fix(analysis, lever, saves, how.to_owned(), Apply::ByHand(None));
    [
        fix(
            Lever::KvCacheWindow,
            cached / 2,
            "if these are the keys and values of a language model: keep those of the last tokens only (half of them saves this much), or answer fewer requests at once",
        ),
        fix(
            Lever::KvCache8Bit,
            cached / 4 * 3,
            "if these are the keys and values of a language model: keep them in 8 bits (a quarter of float32)",
        ),
    ]
}

/// Remedy that allocates a growing tensor once, in its final size. The failed request would have replaced the
/// old tensor, whose size without the new part is live twice.
fn preallocated(analysis: &Analysis<'_>, blocks: &HashSet<u32>) -> Fix {
    let timeline = &analysis.timeline;
    let requested = timeline.trouble.requested.unwrap_or(0);
    let twice = timeline
        .live()
        .filter(|life| blocks.contains(&life.index) && life.block.bytes <= requested)
        .map(|life| life.block.bytes)
        .max()
        .unwrap_or(0);
    let how = "allocate it once at its final size (`torch.empty(most, …)`) and write each part into its place: `torch.cat` of everything so far needs the old and the new tensor at once. Results that are only needed later can be collected in a list on the host and concatenated at the end";
    modelled_fix(analysis, Lever::Preallocate, twice, how.to_owned(), Apply::ByHand(None))
}

/// Stacks of the newest blocks of the largest leaks.
fn newest_stacks(analysis: &Analysis<'_>, leaks: &[Leak]) -> Vec<StackId> {
    let timeline = &analysis.timeline;
    let now = timeline.period_of(timeline.trouble.moment);
    let known = |block: &u32| timeline.lives.binary_search_by_key(block, |life| life.index).ok();
    // Memory of the current step may still be freed.
    let newest_stacks = leaks.iter().take(MAX_LEAKS).filter_map(|leak| {
        let lives = || leak.blocks.iter().rev().filter_map(known).map(|at| &timeline.lives[at]);
        lives().find(|life| timeline.period_of(life.block.born) < now).or_else(|| lives().next())
    });
    newest_stacks.map(|life| life.block.stack).collect()
}
