//! Everything that is there is needed: then it is a matter of size.

use std::collections::HashMap;

use memfit_patch::{BlockCall, Known};
use memfit_recording::TextId;
use memfit_vocabulary::{Category, Cause, Lever, Phase};

use super::{Finding, autocast, size};
use crate::bench::{Bench, modelled};
use crate::explanation::{Apply, Fix};
use crate::origins::{Role, Site};
use crate::story::Life;

fn state(bench: &Bench<'_>) -> u64 {
    bench.story.sum(|life| {
        matches!(
            life.category,
            Category::Parameters | Category::Buffers | Category::Gradients | Category::Optimizer
        )
    })
}

/// The model's own state is more than the card has.
pub(super) fn does_not_fit(bench: &Bench<'_>) -> Option<Finding> {
    let story = &bench.story;
    let requested = story.trouble.requested?;
    let limit = bench.limit?;
    let placing = story.origins.get(story.trouble.stack).role == Role::Placing;
    let parameters = story.sum(|life| matches!(life.category, Category::Parameters | Category::Buffers));
    let before_all = !story.ever(Phase::Forward) && !story.ever(Phase::Backward);
    // Each parameter that trains has a gradient beside it, whatever the batch.
    let trains = story.ever(Phase::Backward) || story.ever(Phase::Optimizer);
    let gradients = story.sum(|life| life.category == Category::Gradients);
    let least = if trains { parameters + parameters.max(gradients) } else { parameters };
    let of_model = before_all && (placing || parameters * 2 > limit) && parameters + requested > limit / 2;
    if !of_model && least <= limit {
        return None;
    }
    let text = if of_model {
        format!(
            "memory ran out while the model was being moved to the GPU: {} of parameters were there, {} more were requested, and the allocator could get {}",
            size(parameters),
            size(requested),
            size(limit)
        )
    } else {
        format!(
            "parameters and gradients alone take {}, and the allocator could get {}",
            size(least),
            size(limit)
        )
    };
    let needed = (parameters + requested).max(least);
    // Training adds gradients, an optimizer's two moments and its temporaries, each as large as the
    // parameters. How much of the model was still to come is not known, nor are its activations: half as
    // much again stands for both.
    let room =
        needed.saturating_mul(5).saturating_add(needed.saturating_mul(5) / 2).max(limit.saturating_mul(2));
    Some(Finding {
        cause: Cause::DoesNotFit,
        bytes: needed,
        enough: bench.full(),
        facts: vec![bench.fact(text, parameters, Some(story.trouble.stack))],
        fixes: vec![larger_card(bench, room), shard(bench, parameters)],
    })
}

/// Sizes in which cards are made, in GiB.
const CARDS: &[u64] = &[8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141, 180, 192, 288];

fn larger_card(bench: &Bench<'_>, room: u64) -> Fix {
    let least = room.div_ceil(1 << 30);
    let gib = CARDS.iter().copied().find(|gib| *gib >= least).unwrap_or(least);
    let how =
        format!("a GPU with {gib} GiB or more: `memfit gpus` lists them, `memfit run --gpu NAME` checks one");
    let saves = bench.short().unwrap_or(0);
    modelled(bench, Lever::LargerCard, saves, how, Apply::Card(gib << 30))
}

fn shard(bench: &Bench<'_>, parameters: u64) -> Fix {
    let how = "shard parameters, gradients and optimizer state over several GPUs (`fully_shard`, FSDP2): with two, each holds half";
    modelled(bench, Lever::Shard, parameters / 2, how.to_owned(), Apply::ByHand(None))
}

/// Tensors that are all needed.
pub(super) fn too_big(bench: &Bench<'_>) -> Finding {
    let story = &bench.story;
    let trouble = story.trouble;
    let requested = trouble.requested.unwrap_or(0);
    let activations =
        |life: &Life| matches!(life.category, Category::Activations | Category::Temporary | Category::Inputs);
    let of_batch = story.sum(activations) + requested;
    let of_state = state(bench);
    let text = match bench.limit {
        Some(limit) => format!(
            "{} in tensors and {} more requested make {}, and the allocator could get {}: {} grow with the batch, {} are parameters, gradients and optimizer state",
            size(trouble.allocated),
            size(requested),
            size(trouble.allocated + requested),
            beside(limit, trouble.allocated + requested),
            size(of_batch),
            size(of_state)
        ),
        None => format!("{} in tensors, and {} more requested", size(trouble.allocated), size(requested)),
    };
    let stacks = bench.stacks(story.live().filter(|life| activations(life)));
    let mut facts = vec![bench.fact(text, trouble.allocated, Some(trouble.stack))];
    if let Some((stack, bytes)) = stacks.first() {
        facts.push(bench.fact(
            "most of the memory that grows with the batch was allocated here",
            *bytes,
            Some(*stack),
        ));
    }
    Finding {
        cause: Cause::TooBig,
        bytes: trouble.allocated + requested,
        enough: true,
        facts,
        fixes: remedies(bench, of_batch),
    }
}

/// A limit beside what was wanted of it: where rounding hides the difference, it is said.
fn beside(limit: u64, wanted: u64) -> String {
    match wanted.checked_sub(limit) {
        Some(short) if short > 0 && size(limit) == size(wanted) => format!("{} less", size(short)),
        _ => size(limit),
    }
}

/// What makes a step smaller, the mathematics staying the same first.
fn remedies(bench: &Bench<'_>, of_batch: u64) -> Vec<Fix> {
    let story = &bench.story;
    let activations = story.sum(|life| life.category == Category::Activations);
    let mut fixes = Vec::new();
    // What no backward will go through has no graph to be made smaller.
    let graph = !bench.without_graph();
    if graph && activations > 0 {
        let checkpointed = repeated_calls(bench);
        let saves = checkpointed.as_ref().map_or(activations / 2, |found| found.saves);
        let lines = checkpointed.map(|found| found.lines).unwrap_or_default();
        let apply = bench.change(Lever::Checkpointing, &lines, Known::Nothing);
        let how = "activation checkpointing: `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` for each repeated block recomputes its activations in the backward pass";
        fixes.push(modelled(bench, Lever::Checkpointing, saves, how.to_owned(), apply));
        let offload = around_the_model(bench, Lever::ActivationOffload);
        let largest = story.live().filter(|life| life.category == Category::Activations);
        let largest = largest.map(|life| life.block.bytes).max().unwrap_or(0);
        let how = "run the forward pass under `torch.autograd.graph.save_on_cpu()`: activations are offloaded to host memory until the backward pass, which costs two copies";
        fixes.push(modelled(
            bench,
            Lever::ActivationOffload,
            activations.saturating_sub(2 * largest),
            how.to_owned(),
            offload,
        ));
        if !autocast::is_on(bench) {
            let apply = around_the_model(bench, Lever::AutocastBf16);
            let how = "run the forward pass under `torch.autocast(\"cuda\", dtype=torch.bfloat16)`: activations take about half";
            fixes.push(modelled(bench, Lever::AutocastBf16, activations / 2, how.to_owned(), apply));
        }
    }
    if graph {
        let how = "gradient accumulation: run the batch as two or more micro-batches. `memfit.Step` first checks in numbers that the loss allows it (BatchNorm and losses that compare samples do not)";
        fixes.push(modelled(bench, Lever::MicroBatch, of_batch / 2, how.to_owned(), Apply::ByHand(None)));
    }
    fixes.push(modelled(
        bench,
        Lever::SmallerBatch,
        of_batch / 2,
        "half the batch".to_owned(),
        Apply::ByHand(None),
    ));
    let room = bench.story.trouble.allocated + bench.story.trouble.requested.unwrap_or(0);
    fixes.push(larger_card(bench, room + room / 2));
    fixes
}

/// Lines of one forward that call blocks under which activations are, and what of them would not be kept.
struct Repeated {
    lines: Vec<Site>,
    saves: u64,
}

/// Where the inside of what is called could be made once more: the forward that has most activations under
/// such lines.
fn repeated_calls(bench: &Bench<'_>) -> Option<Repeated> {
    let story = &bench.story;
    // By line: all bytes under it, and the largest block, which stands for what the line itself returns.
    let mut by_site: HashMap<Site, (u64, u64, u64)> = HashMap::new();
    for life in story.live().filter(|life| life.category == Category::Activations) {
        for site in &story.origins.get(life.block.stack).user {
            let entry = by_site.entry(*site).or_default();
            entry.0 += life.block.bytes;
            entry.1 = entry.1.max(life.block.bytes);
            entry.2 += 1;
        }
    }
    let mut by_forward: HashMap<(TextId, u32), Vec<(Site, u64)>> = HashMap::new();
    for (site, (bytes, largest, blocks)) in by_site {
        let file = story.track.texts.get(site.file);
        // A line in a loop returns something each time it is called; one outside of it once.
        let Some(BlockCall { function, in_loop }) = bench.code.block_call(file, site.line) else { continue };
        let returned = if in_loop { (blocks / 4).max(1) * (largest / 2) } else { largest };
        let saves = bytes.saturating_sub(if in_loop { returned.min(bytes / 4) } else { returned });
        if saves > 0 {
            by_forward.entry((site.file, function)).or_default().push((site, saves));
        }
    }
    let all = by_forward.into_values().map(|mut lines| {
        lines.sort_unstable();
        // While the backward is in one of them, its inside is there.
        let inside =
            if lines.len() > 1 { lines.iter().map(|(_, saves)| *saves).max().unwrap_or(0) } else { 0 };
        let saves = lines.iter().map(|(_, saves)| saves).sum::<u64>() - inside;
        Repeated { lines: lines.into_iter().map(|(site, _)| site).collect(), saves }
    });
    all.filter(|found| found.saves > 0)
        .max_by(|one, other| one.saves.cmp(&other.saves).then_with(|| other.lines.cmp(&one.lines)))
}

/// The line that calls the model, under a context.
fn around_the_model(bench: &Bench<'_>, lever: Lever) -> Apply {
    let story = &bench.story;
    let own = story.origins.get(story.trouble.stack).caller;
    let caller =
        own.or_else(|| story.lives.iter().rev().find_map(|life| story.origins.get(life.block.stack).caller));
    bench.change(lever, caller.as_slice(), Known::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_looks_like_what_was_wanted_is_told_by_the_difference() {
        assert_eq!(beside(73 << 30, 80 << 30), "73.00 GiB");
        assert_eq!(beside((73 << 30) - (1 << 20), 73 << 30), "1 MiB less");
        assert_eq!(beside(73 << 30, 73 << 30), "73.00 GiB");
    }
}
