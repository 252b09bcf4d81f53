//! One request, or a few similar ones, out of proportion to all others.

use std::collections::HashSet;

use memfit_patch::RecordedFacts;
use memfit_recording::{StackId, TextId};
use memfit_vocabulary::{Category, Cause, Lever, Phase};

use super::{Finding, attention, size};
use crate::analysis::{Analysis, modelled_fix};
use crate::explanation::{Apply, Fix};
use crate::origins::{Role, Site};
use crate::timeline::Life;

/// Divisor of the limit: a request of at least an eighth of the memory available to PyTorch is large.
const CARD_SHARE_DIVISOR: u64 = 8;
const MEDIAN_FACTOR: u64 = 6;
/// Maximum number of similar blocks. More of them are typical of the model.
const MAX_BLOCKS: usize = 8;

pub(super) fn find(analysis: &Analysis<'_>) -> Option<Finding> {
    let timeline = &analysis.timeline;
    let requested = timeline.trouble.requested?;
    let limit = analysis.limit?;
    let mut sizes: Vec<u64> = timeline
        .live()
        .filter(|life| !life.stays() && life.block.bytes >= 1 << 20)
        .map(|life| life.block.bytes)
        .collect();
    sizes.push(requested);
    sizes.sort_unstable();
    let median = sizes[sizes.len() / 2];
    let giant = *sizes.last()?;
    // Blocks of at least half the size count as similar: a 64-bit index and its float, a product and its
    // half-precision copy.
    let of_kind = |life: &&Life| !life.stays() && life.block.bytes * 2 >= giant;
    let count = timeline.live().filter(of_kind).count() + usize::from(requested * 2 >= giant);
    let bytes = timeline.live().filter(of_kind).map(|life| life.block.bytes).sum::<u64>()
        + if requested * 2 >= giant { requested } else { 0 };
    let rest = timeline.sum(|life| !life.stays()).saturating_sub(bytes);
    let out_of_proportion = giant >= limit / CARD_SHARE_DIVISOR
        && (giant >= median * MEDIAN_FACTOR || count <= 3 && !are_of_first_layers(analysis, &of_kind))
        && count <= MAX_BLOCKS
        && bytes >= rest;
    if !out_of_proportion {
        return None;
    }
    // The line that calls the backward pass does not show which operation it differentiates.
    let own = Some(timeline.trouble.stack)
        .filter(|stack| requested * 2 >= giant && timeline.origins.get(*stack).role != Role::Backward);
    let kept = analysis.stacks(timeline.live().filter(of_kind)).first().map(|(stack, _)| *stack);
    let stack = own.or(kept).or(Some(timeline.trouble.stack));
    let least = timeline.live().filter(of_kind).map(|life| life.block.bytes);
    let least = least.chain((requested * 2 >= giant).then_some(requested)).min().unwrap_or(giant);
    let giants = match (count, size(least), size(giant)) {
        (1, _, giant) => format!("one tensor of {giant} is"),
        (_, least, giant) if least == giant => {
            format!("{count} tensors of {giant} each, {} in total, are", size(bytes))
        }
        (_, least, giant) => format!("{count} tensors of {least} to {giant}, {} in total, are", size(bytes)),
    };
    let text = format!(
        "{giants} most of the step's memory; its other large tensors have a median of {}",
        size(median)
    );
    let sites: Vec<Site> = stack.map(|stack| timeline.origins.get(stack).user.clone()).unwrap_or_default();
    let is_input =
        |life: &&Life| life.category == Category::Inputs && !timeline.origins.get(life.block.stack).computed;
    let inputs = timeline.live().filter(of_kind).filter(is_input).count() > 0;
    let stacks = timeline.live().filter(of_kind).map(|life| life.block.stack).chain([timeline.trouble.stack]);
    let loss = stacks.into_iter().any(|stack| timeline.origins.get(stack).operation.loss);
    // What another module or function makes is not computed by the lines that a remedy changes.
    let largest = timeline.live().filter(of_kind).max_by_key(|life| life.block.bytes);
    // The backward pass has one line for all modules.
    let by_module = sites.is_empty() || timeline.trouble.phase == Phase::Backward;
    let same_code = |life: &&Life| match (largest.map(Life::module), life.site, sites.first()) {
        (Some(module), ..) if module != TextId::NONE && by_module => life.module() == module,
        (_, Some(site), Some(own)) => (site.file, site.function) == (own.file, own.function),
        _ => true,
    };
    let same_code =
        timeline.live().filter(of_kind).filter(same_code).map(|life| life.block.bytes).sum::<u64>()
            + own.map_or(0, |_| requested);
    let mut facts = vec![analysis.fact(text, bytes, stack)];
    let elsewhere =
        |kept: &StackId| timeline.origins.get(*kept).site().is_some_and(|site| sites.first() != Some(&site));
    if let Some(kept) = own.and(kept).filter(elsewhere) {
        facts.push(analysis.fact("one that is still allocated was made here", giant, Some(kept)));
    }
    Some(Finding {
        cause: Cause::GiantRequest,
        bytes,
        enough: analysis.enough(bytes) == Some(true) && analysis.full(),
        facts,
        fixes: remedies(analysis, &sites, Giants { all: bytes, same_code, inputs, loss }),
    })
}

/// Returns `true` if several modules made such blocks in the first step's forward pass. Where memory runs out
/// in a model's first layers, their outputs are most of what there is, and show the size of the batch.
fn are_of_first_layers(analysis: &Analysis<'_>, of_kind: &impl Fn(&&Life) -> bool) -> bool {
    let timeline = &analysis.timeline;
    let first = timeline.steps_at(timeline.trouble.moment) == 0 && !timeline.has_phase(Phase::Backward);
    let modules: HashSet<TextId> = timeline.live().filter(of_kind).map(Life::module).collect();
    first && modules.len() > 1 && !modules.contains(&TextId::NONE)
}

/// The large blocks and the failed request, for the remedies.
#[derive(Clone, Copy, Debug)]
struct Giants {
    /// Bytes of all.
    all: u64,
    /// Bytes of those that the same module or function made.
    same_code: u64,
    /// `true` if inputs are among them.
    inputs: bool,
    /// `true` if a loss made one of them.
    loss: bool,
}

fn remedies(analysis: &Analysis<'_>, sites: &[Site], giants: Giants) -> Vec<Fix> {
    let Giants { all, same_code, inputs, loss } = giants;
    if let Some(fix) = attention::remedy_at(analysis, sites, same_code) {
        return vec![fix];
    }
    match analysis.change(Lever::ResizeBeforeUpload, sites, RecordedFacts::Nothing) {
        // The source has no images at these lines.
        Apply::ByHand(None) => {}
        apply => {
            let how = "resize images before they are copied to the GPU".to_owned();
            return vec![modelled_fix(analysis, Lever::ResizeBeforeUpload, all / 4 * 3, how, apply)];
        }
    }
    let mut fixes = Vec::new();
    let by_hand = |lever, bytes: u64, how: &str| {
        modelled_fix(analysis, lever, bytes / 4 * 3, how.to_owned(), Apply::ByHand(None))
    };
    if loss {
        fixes.push(by_hand(
            Lever::ChunkedLoss,
            all,
            "chunked cross-entropy: compute the loss over chunks of the tokens under checkpointing, or with `F.linear_cross_entropy` (2.15), so that the full logits are never materialised",
        ));
    }
    if inputs {
        fixes.push(by_hand(
            Lever::ResizeBeforeUpload,
            all,
            "resize or crop images before they are copied to the GPU",
        ));
    }
    // The line of a backward pass does not show the attention that it differentiates.
    let attention = attention::remedy(analysis).filter(|fix| fix.saves >= same_code / 2);
    if !loss && !inputs {
        fixes.push(attention.unwrap_or_else(|| {
            by_hand(
                Lever::ByParts,
                same_code,
                "compute it in parts: a loop over a few rows at a time that reduces each part (sum, minimum, top-k) before the next. In training, run each part under `torch.utils.checkpoint.checkpoint`, which keeps none of them for the backward pass",
            )
        }));
    }
    fixes
}
