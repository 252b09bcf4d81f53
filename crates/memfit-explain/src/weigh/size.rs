//! All live memory is needed: model and batch are too large for the GPU.

use std::collections::{HashMap, HashSet};

use memfit_patch::{BlockCall, RecordedFacts};
use memfit_recording::{TextId, Track};
use memfit_vocabulary::{Category, Cause, Lever, Phase};

use super::{Finding, attention, autocast, size};
use crate::analysis::{Analysis, modelled_fix};
use crate::explanation::{Apply, Fix};
use crate::leaks::Leak;
use crate::origins::{Role, Site};
use crate::timeline::Life;

fn state(analysis: &Analysis<'_>) -> u64 {
    analysis.timeline.sum(|life| {
        matches!(
            life.category,
            Category::Parameters | Category::Buffers | Category::Gradients | Category::Optimizer
        )
    })
}

/// Memory that does not depend on the batch, and the part of it that a training creates later.
fn of_the_model(analysis: &Analysis<'_>) -> String {
    let of = |category| analysis.timeline.sum(|life| life.category == category);
    let (gradients, optimizer) = (of(Category::Gradients), of(Category::Optimizer));
    let listed = match (gradients > 0, optimizer > 0) {
        (false, false) => "parameters",
        (true, false) => "parameters and gradients",
        (false, true) => "parameters and optimizer state",
        (true, true) => "parameters, gradients and optimizer state",
    };
    let text = match state(analysis) {
        0 => "none are parameters".to_owned(),
        bytes => format!("{} are {listed}", size(bytes)),
    };
    // A first forward pass that saves activations belongs to a training.
    let first = !analysis.timeline.has_phase(Phase::Backward) && !saw_whole_steps(analysis);
    if gradients > 0 || optimizer > 0 || !first || analysis.without_graph() {
        return text;
    }
    format!(
        "{text}. A training adds gradients, as large as the parameters that it trains, and the optimizer's state, twice as large with Adam"
    )
}

/// Checks whether the model's own state exceeds the GPU.
pub(super) fn does_not_fit(analysis: &Analysis<'_>) -> Option<Finding> {
    let timeline = &analysis.timeline;
    let requested = timeline.trouble.requested?;
    let limit = analysis.limit?;
    let placing = timeline.origins.get(timeline.trouble.stack).role == Role::Placing;
    let parameters = timeline.sum(|life| matches!(life.category, Category::Parameters | Category::Buffers));
    let before_all = !timeline.has_phase(Phase::Forward) && !timeline.has_phase(Phase::Backward);
    // Each trained parameter has a gradient, whatever the batch size.
    let trains = timeline.has_phase(Phase::Backward) || timeline.has_phase(Phase::Optimizer);
    let gradients = timeline.sum(|life| life.category == Category::Gradients);
    let least = if trains { parameters + parameters.max(gradients) } else { parameters };
    let of_model = before_all && (placing || parameters * 2 > limit) && parameters + requested > limit / 2;
    if !of_model && least <= limit {
        return None;
    }
    let text = if of_model {
        format!(
            "memory ran out while the model was being moved to the GPU, with {} of parameters on it, at a request of {}; {} were available to PyTorch",
            size(parameters),
            analysis.request(),
            size(limit)
        )
    } else {
        format!(
            "parameters and gradients alone take {}, {} more than the {} available to PyTorch",
            size(least),
            size(least.saturating_sub(limit)),
            size(limit)
        )
    };
    let needed = (parameters + requested).max(least);
    // Training adds gradients, the two moments of an optimizer such as Adam, and its temporaries, each as
    // large as the parameters. The part of the model that was not yet created and the activations are
    // unknown: half of that sum is added for them.
    let room =
        needed.saturating_mul(5).saturating_add(needed.saturating_mul(5) / 2).max(limit.saturating_mul(2));
    let mut fixes = vec![larger_gpu(analysis, room), shard(analysis, parameters)];
    if of_model {
        fixes.push(sixteen_bits(analysis, parameters));
    }
    Some(Finding {
        cause: Cause::DoesNotFit,
        bytes: needed,
        enough: analysis.full(),
        facts: vec![analysis.fact(text, parameters, Some(analysis.failing_stack()))],
        fixes,
    })
}

/// Memory sizes of the catalogue's GPUs in GiB, as on their boxes.
pub const GPU_SIZES_GIB: &[u64] =
    &[6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 94, 96, 128, 141, 144, 180, 186, 270];

fn larger_gpu(analysis: &Analysis<'_>, room: u64) -> Fix {
    let least = room.div_ceil(1 << 30);
    let gib = GPU_SIZES_GIB.iter().copied().find(|gib| *gib >= least).unwrap_or(least);
    let how = if saw_whole_steps(analysis) {
        format!("a GPU with {gib} GiB or more (`memfit gpus` lists all, `memfit run --gpu NAME` checks one)")
    } else {
        "a larger GPU; what a whole step needs is unknown, as none was completed: `memfit cards -- COMMAND` finds the smallest GPU on which the script fits".to_owned()
    };
    let saves = analysis.short().unwrap_or(0);
    let fix = modelled_fix(analysis, Lever::LargerGpu, saves, how, Apply::Card(gib << 30));
    for_whole_steps(analysis, fix)
}

/// Returns `true` if the needs of a whole step are known: the first one creates the optimizer's state, so
/// that the second may need more.
pub(super) fn saw_whole_steps(analysis: &Analysis<'_>) -> bool {
    analysis.timeline.steps_at(analysis.timeline.trouble.moment) >= 2
}

/// A remedy that is enough for the request may not be enough for the rest of a step that is unknown.
fn for_whole_steps(analysis: &Analysis<'_>, fix: Fix) -> Fix {
    let known = saw_whole_steps(analysis);
    Fix { fits: fix.fits.filter(|fits| known || !fits), ..fix }
}

fn shard(analysis: &Analysis<'_>, parameters: u64) -> Fix {
    let how = "shard parameters, gradients and optimizer state over several GPUs (`fully_shard`, FSDP2): with two, each holds half";
    modelled_fix(analysis, Lever::Shard, parameters / 2, how.to_owned(), Apply::ByHand(None))
}

fn sixteen_bits(analysis: &Analysis<'_>, parameters: u64) -> Fix {
    let how = "create or load the model in 16 bits (`torch.set_default_dtype(torch.bfloat16)`, or `dtype=` where weights are loaded), if it is in 32: weights, gradients and optimizer state take half";
    modelled_fix(analysis, Lever::PureBf16, parameters / 2, how.to_owned(), Apply::ByHand(None))
}

/// Finding for tensors that are all needed.
pub(super) fn too_big(analysis: &Analysis<'_>, leaks: &[Leak]) -> Finding {
    let timeline = &analysis.timeline;
    let trouble = timeline.trouble;
    let requested = trouble.requested.unwrap_or(0);
    let activations =
        |life: &Life| matches!(life.category, Category::Activations | Category::Temporary | Category::Inputs);
    let of_batch = timeline.sum(activations) + requested;
    let text = format!(
        "{}. Of the tensors and this request, {} grow with the batch and {}",
        shortfall(analysis, requested),
        size(of_batch),
        of_the_model(analysis)
    );
    let stacks = analysis.stacks(timeline.live().filter(|life| activations(life)));
    let mut facts = vec![analysis.fact(text, trouble.allocated, Some(analysis.failing_stack()))];
    // Threads of the autograd engine show no lines.
    if let Some((stack, bytes)) = stacks.first().filter(|(stack, _)| !analysis.lines(*stack).is_empty()) {
        facts.push(analysis.fact(
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
        fixes: remedies(analysis, leaks, of_batch),
    }
}

/// States by how much the request exceeded the memory, with all parts of the sum.
fn shortfall(analysis: &Analysis<'_>, requested: u64) -> String {
    let trouble = analysis.timeline.trouble;
    let needed = format!(
        "{} in tensors and the requested {} make {}",
        size(trouble.allocated),
        size(requested),
        size(trouble.allocated + requested)
    );
    let Some(limit) = analysis.limit else { return needed };
    if let Some(short) = analysis.short() {
        return format!("{needed}, {} more than the {} available to PyTorch", size(short), size(limit));
    }
    // In total, enough was free: in blocks that were too small, and outside of the segments.
    let inside = trouble.reserved.saturating_sub(trouble.allocated);
    let outside = limit.saturating_sub(trouble.reserved);
    let segment = analysis.segment.unwrap_or(requested);
    match segment.checked_sub(outside) {
        Some(short) if short > 0 => {
            let rounded = if size(segment) == size(requested) {
                String::new()
            } else {
                format!(" (the allocator rounds {} up)", size(requested))
            };
            format!(
                "the request needs a new segment of {}{rounded}, but only {} are not yet reserved: {} are missing. The reserved segments have {} free, in blocks that are too small",
                size(segment),
                size(outside),
                size(short),
                size(inside)
            )
        }
        _ => format!("{needed} of {} available to PyTorch, but in blocks that are too small", size(limit)),
    }
}

/// Returns `false` if the recorded stacks show which functions of PyTorch ran, and batch normalisation is not
/// among them. Compiled code shows no functions.
fn may_have_batch_norm(track: &Track) -> bool {
    let mut shows_functions = false;
    for frame in track.stacks.frames() {
        let (file, name) = (track.texts.get(frame.file), track.texts.get(frame.name));
        let is_compiled = ["/torch/_dynamo/", "/torch/_inductor/"].iter().any(|part| file.contains(part));
        if is_compiled || file.ends_with("torch/nn/modules/batchnorm.py") || name.contains("batch_norm") {
            return true;
        }
        shows_functions |= file.ends_with("torch/nn/functional.py");
    }
    !shows_functions
}

/// Remedies that make a step smaller, those that keep the training results first.
fn remedies(analysis: &Analysis<'_>, leaks: &[Leak], of_batch: u64) -> Vec<Fix> {
    let timeline = &analysis.timeline;
    // Activations that the script keeps from step to step stay, however a step saves its own.
    let kept: HashSet<u32> = leaks.iter().flat_map(|leak| &leak.blocks).copied().collect();
    let of_step = |life: &Life| life.category == Category::Activations && !kept.contains(&life.index);
    let activations = timeline.sum(of_step);
    let mut fixes = Vec::new();
    // Without a backward pass, there is no graph to reduce.
    let graph = !analysis.without_graph();
    if graph && activations > 0 {
        let checkpointed = repeated_calls(analysis, of_step);
        let saves = checkpointed.as_ref().map_or(activations / 2, |found| found.saves);
        let lines = checkpointed.map(|found| found.lines).unwrap_or_default();
        let apply = analysis.change(Lever::Checkpointing, &lines, RecordedFacts::Nothing);
        let mut how = "activation checkpointing: `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)` for each repeated block recomputes its activations in the backward pass".to_owned();
        if may_have_batch_norm(analysis.timeline.track) && !matches!(apply, Apply::ByHand(Some(_))) {
            how.push_str("; in blocks with BatchNorm, this alone would update running statistics twice: the patch of `memfit plan --diff` updates them once");
        }
        fixes.push(modelled_fix(analysis, Lever::Checkpointing, saves, how, apply));
        let offload = around_the_model(analysis, Lever::ActivationOffload);
        let largest = timeline.live().filter(|life| of_step(life));
        let largest = largest.map(|life| life.block.bytes).max().unwrap_or(0);
        // A layer's own activations are on the GPU while it runs. If they are most of all, little is saved.
        let saves = activations.saturating_sub(2 * largest).max(1);
        let how = "run the forward pass under `torch.autograd.graph.save_on_cpu()`: activations are offloaded to host memory until the backward pass; this costs one copy in each direction";
        fixes.push(modelled_fix(analysis, Lever::ActivationOffload, saves, how.to_owned(), offload));
        let savings = autocast::savings(analysis, of_step);
        if !autocast::is_on(analysis) && savings > 0 {
            let apply = around_the_model(analysis, Lever::AutocastBf16);
            let how = "run the forward pass under `torch.autocast(\"cuda\", dtype=torch.bfloat16)`: activations of convolutions and matrix products take half the memory; normalisation layers, softmax and losses stay in 32 bits";
            fixes.push(modelled_fix(analysis, Lever::AutocastBf16, savings, how.to_owned(), apply));
        }
    }
    fixes.extend(bucket_views(analysis));
    fixes.extend(attention::remedy(analysis));
    if graph {
        let how = "gradient accumulation: run the batch as two or more micro-batches. `memfit.Step` first runs a few samples as one batch and as micro-batches; models with BatchNorm and losses that compare samples fail that test";
        fixes.push(modelled_fix(
            analysis,
            Lever::MicroBatch,
            of_batch / 2,
            how.to_owned(),
            Apply::ByHand(None),
        ));
    }
    fixes.push(modelled_fix(
        analysis,
        Lever::SmallerBatch,
        of_batch / 2,
        "half the batch".to_owned(),
        Apply::ByHand(None),
    ));
    let room = analysis.timeline.trouble.allocated + analysis.timeline.trouble.requested.unwrap_or(0);
    let fixes = fixes.into_iter().map(|fix| for_whole_steps(analysis, fix));
    fixes.chain([larger_gpu(analysis, room + room / 2)]).collect()
}

/// File of PyTorch whose code allocates the buckets in which gradients are reduced.
const DISTRIBUTED_DATA_PARALLEL: &str = "torch/nn/parallel/distributed.py";

/// Remedy for gradients that exist twice: in buckets that are reduced, and as tensors of their own.
fn bucket_views(analysis: &Analysis<'_>) -> Option<Fix> {
    let timeline = &analysis.timeline;
    let track = timeline.track;
    let is_bucket = |life: &Life| {
        let mut frames = track.stacks.get(life.block.stack);
        frames.any(|frame| track.texts.get(frame.file).ends_with(DISTRIBUTED_DATA_PARALLEL))
    };
    let gradients = |life: &Life| life.category == Category::Gradients;
    let buckets = timeline.sum(|life| gradients(life) && is_bucket(life));
    let saves = buckets.min(timeline.sum(|life| gradients(life) && !is_bucket(life)));
    let how = "`DistributedDataParallel(model, gradient_as_bucket_view=True)`: gradients are views of the buckets in which they are reduced, instead of copies of them";
    (saves > 0).then(|| {
        modelled_fix(analysis, Lever::GradientAsBucketView, saves, how.to_owned(), Apply::ByHand(None))
    })
}

/// Lines of one forward pass that call blocks with activations inside, and the bytes that would not be kept.
struct RepeatedBlocks {
    lines: Vec<Site>,
    saves: u64,
}

/// Finds the forward pass with the most activations inside blocks that could be recomputed.
fn repeated_calls(analysis: &Analysis<'_>, of_step: impl Fn(&Life) -> bool) -> Option<RepeatedBlocks> {
    let timeline = &analysis.timeline;
    // By line: all bytes inside, and the largest block, which stands for the line's own result.
    let mut by_site: HashMap<Site, (u64, u64, u64)> = HashMap::new();
    for life in timeline.live().filter(|life| of_step(life)) {
        for site in &timeline.origins.get(life.block.stack).user {
            let entry = by_site.entry(*site).or_default();
            entry.0 += life.block.bytes;
            entry.1 = entry.1.max(life.block.bytes);
            entry.2 += 1;
        }
    }
    let mut by_forward: HashMap<(TextId, u32), Vec<(Site, u64)>> = HashMap::new();
    for (site, (bytes, largest, blocks)) in by_site {
        let file = timeline.track.texts.get(site.file);
        // A line in a loop returns a result in each iteration; one outside of it once.
        let Some(BlockCall { function, in_loop }) = analysis.code.block_call(file, site.line) else {
            continue;
        };
        let returned = if in_loop { (blocks / 4).max(1) * (largest / 2) } else { largest };
        let saves = bytes.saturating_sub(if in_loop { returned.min(bytes / 4) } else { returned });
        if saves > 0 {
            by_forward.entry((site.file, function)).or_default().push((site, saves));
        }
    }
    let all = by_forward.into_values().map(|mut lines| {
        lines.sort_unstable();
        // While the backward pass is in one of the blocks, its recomputed inside is live.
        let inside =
            if lines.len() > 1 { lines.iter().map(|(_, saves)| *saves).max().unwrap_or(0) } else { 0 };
        let saves = lines.iter().map(|(_, saves)| saves).sum::<u64>() - inside;
        RepeatedBlocks { lines: lines.into_iter().map(|(site, _)| site).collect(), saves }
    });
    all.filter(|found| found.saves > 0)
        .max_by(|one, other| one.saves.cmp(&other.saves).then_with(|| other.lines.cmp(&one.lines)))
}

/// Edit that wraps the line that calls the model in a context.
fn around_the_model(analysis: &Analysis<'_>, lever: Lever) -> Apply {
    let timeline = &analysis.timeline;
    let caller = analysis.model_call().and_then(|stack| timeline.origins.get(stack).caller);
    analysis.change(lever, caller.as_slice(), RecordedFacts::Nothing)
}
