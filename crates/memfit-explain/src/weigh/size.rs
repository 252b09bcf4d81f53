//! Everything that is there is needed: then it is a matter of size.

use std::collections::HashMap;

use memfit_recording::TextId;
use memfit_vocabulary::{Category, Cause, Label, Lever, Phase};

use super::{Finding, autocast, size};
use crate::bench::{Bench, modelled};
use crate::explanation::{Apply, Fix};
use crate::origins::{Role, Site};
use crate::source::{Source, assigned, call_in, enclosing_def, ends_statement, indent_of, is_word, loop_end};
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
        let checkpointed = repeated_calls(bench);
        let saves = checkpointed.as_ref().map_or(activations / 2, |found| found.saves);
        let apply = checkpointed.and_then(|found| checkpoint(bench, &found.lines)).unwrap_or_default();
        let how = "`torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` around each repeated block: its inside is made once more in the backward instead of kept";
        fixes.push(modelled(bench, Lever::Checkpointing, Label::Exact, saves, how.to_owned(), apply));
        let offload = around_the_model(bench, "with torch.autograd.graph.save_on_cpu():").unwrap_or_default();
        let largest = story.live().filter(|life| life.category == Category::Activations);
        let largest = largest.map(|life| life.block.bytes).max().unwrap_or(0);
        let how = "the forward under `torch.autograd.graph.save_on_cpu()`: what it keeps for the backward waits in the host's memory, at the price of the way there and back";
        fixes.push(modelled(
            bench,
            Lever::ActivationOffload,
            Label::Exact,
            activations.saturating_sub(2 * largest),
            how.to_owned(),
            offload,
        ));
        if !autocast::is_on(bench) {
            let apply = around_the_model(bench, "with torch.autocast(\"cuda\", dtype=torch.bfloat16):")
                .unwrap_or_default();
            let how = "the forward under `torch.autocast(\"cuda\", dtype=torch.bfloat16)`: activations take about half";
            let (lever, label) = (Lever::AutocastBf16, Label::Precision);
            fixes.push(modelled(bench, lever, label, activations / 2, how.to_owned(), apply));
        }
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
        let Some(source) = bench.source(site) else { continue };
        let Some(def) = checkpointable(&source, site.line) else { continue };
        // A line in a loop returns something each time it is called; one outside of it once.
        let in_loop = loop_end(&source, site.line).is_some();
        let returned = if in_loop { (blocks / 4).max(1) * (largest / 2) } else { largest };
        let saves = bytes.saturating_sub(if in_loop { returned.min(bytes / 4) } else { returned });
        if saves > 0 {
            by_forward.entry((site.file, def)).or_default().push((site, saves));
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

/// The `forward` around a line that calls a module and keeps what it returns under a name.
fn checkpointable(source: &Source, line: u32) -> Option<u32> {
    let text = source.line(line);
    let (names, value) = assigned(text)?;
    let (callee, arguments) = call_in(value)?;
    let def = enclosing_def(source, line)?;
    let header = source.line(def);
    let forward = header.contains("def forward") || header.contains("def __call__");
    let repeated = loop_end(source, line).is_some() && is_word(arguments, names[0]);
    let own = callee.strip_prefix("self.").is_some_and(|rest| !rest.contains('('));
    let plain = !callee.contains("checkpoint") && !callee.contains("torch.") && !callee.starts_with("F.");
    let whole =
        ends_statement(text) && value.ends_with(')') && !arguments.contains('*') && !arguments.is_empty();
    (forward && plain && whole && names.len() == 1 && (repeated || own)).then_some(def)
}

fn checkpoint(bench: &Bench<'_>, lines: &[Site]) -> Option<Apply> {
    let mut source = bench.source(*lines.first()?)?;
    for site in lines {
        let text = source.line(site.line).to_owned();
        let (names, value) = assigned(&text)?;
        let (callee, arguments) = call_in(value)?;
        let line = format!(
            "{}{} = torch.utils.checkpoint.checkpoint({callee}, {arguments}, use_reentrant=False)",
            indent_of(&text),
            names[0]
        );
        source.replace(site.line, line);
    }
    source.import("import torch.utils.checkpoint");
    source.edit()
}

/// The line that calls the model, under a context.
fn around_the_model(bench: &Bench<'_>, context: &str) -> Option<Apply> {
    let story = &bench.story;
    let own = story.origins.get(story.trouble.stack).caller;
    let caller =
        own.or_else(|| story.lives.iter().rev().find_map(|life| story.origins.get(life.block.stack).caller))?;
    let mut source = bench.source(caller)?;
    let text = source.line(caller.line).to_owned();
    if !ends_statement(&text)
        || text.contains("autocast")
        || text.trim_start().starts_with("return") && text.contains(" for ")
    {
        return None;
    }
    let indent = indent_of(&text);
    source
        .replace_by(caller.line, vec![format!("{indent}{context}"), format!("{indent}    {}", text.trim())]);
    source.import("import torch");
    source.edit()
}
