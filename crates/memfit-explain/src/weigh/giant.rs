//! One request, or a few similar ones, out of proportion to all others.

use memfit_patch::RecordedFacts;
use memfit_recording::StackId;
use memfit_vocabulary::{Category, Cause, Lever};

use super::{Finding, size};
use crate::analysis::{Analysis, modelled_fix};
use crate::explanation::{Apply, Fix};
use crate::origins::{Role, Site};
use crate::timeline::Life;

/// Divisor of the limit: a request of at least an eighth of the GPU is large.
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
        && (giant >= median * MEDIAN_FACTOR || count <= 3)
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
    let giants = if count == 1 {
        format!("one tensor of {} is", size(giant))
    } else {
        format!("{count} tensors of {} each, {} in total, are", size(giant), size(bytes))
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
        fixes: remedies(analysis, &sites, bytes, inputs, loss),
    })
}

fn remedies(analysis: &Analysis<'_>, sites: &[Site], bytes: u64, inputs: bool, loss: bool) -> Vec<Fix> {
    let mut fixes = Vec::new();
    for (lever, saves, how) in [
        (
            Lever::Sdpa,
            bytes,
            "`F.scaled_dot_product_attention(q, k, v)` computes the same without materialising the attention matrix",
        ),
        (Lever::ResizeBeforeUpload, bytes / 4 * 3, "resize images before they are copied to the GPU"),
    ] {
        match analysis.change(lever, sites, RecordedFacts::Nothing) {
            // No remedy of this kind exists.
            Apply::ByHand(None) => {}
            apply => {
                fixes.push(modelled_fix(analysis, lever, saves, how.to_owned(), apply));
                return fixes;
            }
        }
    }
    let by_hand =
        |lever, how: &str| modelled_fix(analysis, lever, bytes / 4 * 3, how.to_owned(), Apply::ByHand(None));
    if loss {
        fixes.push(by_hand(
            Lever::ChunkedLoss,
            "chunked cross-entropy: compute the loss over chunks of the tokens under checkpointing, or with `F.linear_cross_entropy` (2.15), so that the full logits are never materialised",
        ));
    }
    if inputs {
        fixes.push(by_hand(
            Lever::ResizeBeforeUpload,
            "resize or crop images before they are copied to the GPU",
        ));
    }
    if !loss && !inputs {
        fixes.push(by_hand(
            Lever::ByParts,
            "compute it in parts: a loop over a few rows at a time that reduces each part (sum, minimum, top-k) before the next. In training, run each part under `torch.utils.checkpoint.checkpoint`, which keeps none of them for the backward pass",
        ));
    }
    fixes
}
