//! Everything that is there is needed: then it is a matter of size.

use std::collections::HashMap;

use memfit_levers::{Category, Cause, Label, Lever, Phase};

use super::{Finding, size};
use crate::bench::{Bench, modelled};
use crate::explanation::{Apply, Fix};
use crate::origins::{Role, Site};
use crate::source::{assigned, call_in, enclosing_def, ends_statement, indent_of, is_word, loop_end};
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
            "memory ran out while the model was being moved to the card: {} of parameters were there, {} more were asked for, and the allocator could get {}",
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
    // Training adds gradients, an optimizer's two moments and its temporaries, each as large as the parameters. How much
    // of the model was still to come is not known, nor are its activations: half as much again stands for both.
    let room =
        needed.saturating_mul(5).saturating_add(needed.saturating_mul(5) / 2).max(limit.saturating_mul(2));
    Some(Finding {
        cause: Cause::DoesNotFit,
        bytes: needed,
        enough: bench.short().is_some(),
        facts: vec![bench.fact(text, parameters, Some(story.trouble.stack))],
        fixes: vec![larger_card(bench, room), shard(bench, parameters)],
    })
}

/// Sizes in which cards are made, in GiB.
const CARDS: &[u64] = &[8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141, 180, 192, 288];

fn larger_card(bench: &Bench<'_>, room: u64) -> Fix {
    let least = room.div_ceil(1 << 30);
    let gib = CARDS.iter().copied().find(|gib| *gib >= least).unwrap_or(least);
    let how = format!(
        "a card with {gib} GiB or more: `memfit run --gpu NAME` says whether it holds, `memfit gpus` lists them"
    );
    let saves = bench.short().unwrap_or(0);
    modelled(bench, Lever::LargerCard, Label::Exact, saves, how, Apply::Card(gib << 30))
}

fn shard(bench: &Bench<'_>, parameters: u64) -> Fix {
    let how = "spread parameters, gradients and optimizer state over several cards (`fully_shard`, FSDP2): on two, each holds half";
    modelled(bench, Lever::Shard, Label::Rounding, parameters / 2, how.to_owned(), Apply::ByHand)
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
            "{} in tensors and {} more asked for are {}, and the allocator could get {}: {} grow with the batch, {} are parameters, gradients and optimizer state",
            size(trouble.allocated),
            size(requested),
            size(trouble.allocated + requested),
            size(limit),
            size(of_batch),
            size(of_state)
        ),
        None => format!("{} in tensors, and {} more asked for", size(trouble.allocated), size(requested)),
    };
    let stacks = bench.stacks(story.live().filter(|life| activations(life)));
    let mut facts = vec![bench.fact(text, trouble.allocated, Some(trouble.stack))];
    if let Some((stack, bytes)) = stacks.first() {
        facts.push(bench.fact("most of what grows with the batch was asked for here", *bytes, Some(*stack)));
    }
    Finding {
        cause: Cause::TooBig,
        bytes: trouble.allocated + requested,
        enough: true,
        facts,
        fixes: remedies(bench, of_batch),
    }
}

/// What makes a step smaller, the mathematics staying the same first.
fn remedies(bench: &Bench<'_>, of_batch: u64) -> Vec<Fix> {
    let story = &bench.story;
    let activations = story.sum(|life| life.category == Category::Activations);
    let mut fixes = Vec::new();
    if activations > 0 {
        let checkpointed = repeated_call(bench);
        let saves = checkpointed.as_ref().map_or(activations / 2, |(_, saves)| *saves);
        let apply = checkpointed.and_then(|(site, _)| checkpoint(bench, site)).unwrap_or_default();
        let how = "`torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` around each repeated block: its inside is made once more in the backward instead of kept";
        fixes.push(modelled(bench, Lever::Checkpointing, Label::Exact, saves, how.to_owned(), apply));
        let autocast = autocast(bench).unwrap_or_default();
        let how =
            "the forward under `torch.autocast(\"cuda\", dtype=torch.bfloat16)`: activations take about half";
        fixes.push(modelled(
            bench,
            Lever::AutocastBf16,
            Label::Precision,
            activations / 2,
            how.to_owned(),
            autocast,
        ));
    }
    let how = "a batch in two or more pieces with the gradients added up, the loss divided by all items together: the same step, less in it at a time (not with BatchNorm or losses over the whole batch)";
    fixes.push(modelled(
        bench,
        Lever::MicroBatch,
        Label::Rounding,
        of_batch / 2,
        how.to_owned(),
        Apply::ByHand,
    ));
    fixes.push(modelled(
        bench,
        Lever::SmallerBatch,
        Label::ChangesTraining,
        of_batch / 2,
        "half the batch".to_owned(),
        Apply::ByHand,
    ));
    let room = bench.story.trouble.allocated + bench.story.trouble.requested.unwrap_or(0);
    fixes.push(larger_card(bench, room + room / 2));
    fixes
}

/// The line in a loop of a forward under which most activations are, and what of them would not be kept.
fn repeated_call(bench: &Bench<'_>) -> Option<(Site, u64)> {
    let story = &bench.story;
    let mut by_site: HashMap<Site, (u64, u64)> = HashMap::new();
    for life in story.live().filter(|life| life.category == Category::Activations) {
        let users = &story.origins.get(life.block.stack).user;
        for (depth, site) in users.iter().enumerate() {
            let entry = by_site.entry(*site).or_default();
            entry.0 += life.block.bytes;
            // What the line itself returns is kept; what is made further inside is not.
            if depth > 0 || life.role == Role::Forward {
                entry.1 = entry.1.max(life.block.bytes);
            }
        }
    }
    let mut sites: Vec<(Site, (u64, u64))> = by_site.into_iter().collect();
    sites.sort_by_key(|(site, (bytes, _))| (std::cmp::Reverse(*bytes), *site));
    sites.into_iter().find_map(|(site, (bytes, largest))| {
        let source = bench.source(site)?;
        let text = source.line(site.line);
        let (names, value) = assigned(text)?;
        let (callee, arguments) = call_in(value)?;
        let repeated = loop_end(&source, site.line).is_some();
        let in_forward = enclosing_def(&source, site.line).is_some_and(|def| {
            source.line(def).contains("def forward") || source.line(def).contains("def __call__")
        });
        let passes_on = names.len() == 1 && is_word(arguments, names[0]);
        let plain = !callee.contains("checkpoint") && !callee.contains("torch.") && !callee.starts_with("F.");
        let blocks = story
            .live()
            .filter(|life| {
                life.category == Category::Activations
                    && story.origins.get(life.block.stack).user.contains(&site)
            })
            .count() as u64;
        let kept = (blocks / 4).max(1) * (largest / 2);
        (repeated && in_forward && passes_on && plain)
            .then(|| (site, bytes.saturating_sub(kept.min(bytes / 4))))
    })
}

fn checkpoint(bench: &Bench<'_>, site: Site) -> Option<Apply> {
    let mut source = bench.source(site)?;
    let text = source.line(site.line).to_owned();
    let (names, value) = assigned(&text)?;
    let (callee, arguments) = call_in(value)?;
    let line = format!(
        "{}{} = torch.utils.checkpoint.checkpoint({callee}, {arguments}, use_reentrant=False)",
        indent_of(&text),
        names[0]
    );
    source.replace(site.line, line);
    source.import("import torch.utils.checkpoint");
    source.edit()
}

/// The line that calls the model, under autocast.
fn autocast(bench: &Bench<'_>) -> Option<Apply> {
    let story = &bench.story;
    let own = story.origins.get(story.trouble.stack).caller;
    let caller =
        own.or_else(|| story.lives.iter().rev().find_map(|life| story.origins.get(life.block.stack).caller))?;
    let mut source = bench.source(caller)?;
    let text = source.line(caller.line).to_owned();
    if !ends_statement(&text) || text.contains("autocast") {
        return None;
    }
    let indent = indent_of(&text);
    source.replace_by(
        caller.line,
        vec![
            format!("{indent}with torch.autocast(\"cuda\", dtype=torch.bfloat16):"),
            format!("{indent}    {}", text.trim()),
        ],
    );
    source.import("import torch");
    source.edit()
}
