//! One request, or a few of its kind, that are out of proportion to everything else.

use memfit_patch::Known;
use memfit_vocabulary::{Category, Cause, Lever};

use super::{Finding, size};
use crate::bench::{Bench, modelled};
use crate::explanation::{Apply, Fix};
use crate::origins::{Role, Site};
use crate::story::Life;

/// A request of this share of the card is large; one so many times the median of the others is out of
/// proportion.
const SHARE: u64 = 8;
const TIMES: u64 = 6;
/// More blocks of a kind than this are the model's nature and no single request.
const FEW: usize = 8;

pub(super) fn find(bench: &Bench<'_>) -> Option<Finding> {
    let story = &bench.story;
    let requested = story.trouble.requested?;
    let limit = bench.limit?;
    let mut sizes: Vec<u64> = story
        .live()
        .filter(|life| !life.stays() && life.block.bytes >= 1 << 20)
        .map(|life| life.block.bytes)
        .collect();
    sizes.push(requested);
    sizes.sort_unstable();
    let median = sizes[sizes.len() / 2];
    let giant = *sizes.last()?;
    // Half of it is the same thing in half the bytes: an index of 64 bits and its float, a product and its
    // half.
    let of_kind = |life: &&Life| !life.stays() && life.block.bytes * 2 >= giant;
    let count = story.live().filter(of_kind).count() + usize::from(requested * 2 >= giant);
    let bytes = story.live().filter(of_kind).map(|life| life.block.bytes).sum::<u64>()
        + if requested * 2 >= giant { requested } else { 0 };
    let rest = story.sum(|life| !life.stays()).saturating_sub(bytes);
    let out_of_proportion =
        giant >= limit / SHARE && (giant >= median * TIMES || count <= 3) && count <= FEW && bytes >= rest;
    if !out_of_proportion {
        return None;
    }
    // The line that calls the backward says nothing of what it goes back through.
    let own = Some(story.trouble.stack)
        .filter(|stack| requested * 2 >= giant && story.origins.get(*stack).role != Role::Backward);
    let kept = bench.stacks(story.live().filter(of_kind)).first().map(|(stack, _)| *stack);
    let stack = own.or(kept).or(Some(story.trouble.stack));
    let text = format!(
        "{} of {} each, {} in total, are most of the step's memory; its other large tensors have a median of {}",
        if count == 1 { "one tensor".to_owned() } else { format!("{count} tensors") },
        size(giant),
        size(bytes),
        size(median)
    );
    let sites: Vec<Site> = stack.map(|stack| story.origins.get(stack).user.clone()).unwrap_or_default();
    let inputs = story.live().filter(of_kind).filter(|life| life.category == Category::Inputs).count() > 0;
    let stacks = story.live().filter(of_kind).map(|life| life.block.stack).chain([story.trouble.stack]);
    let loss = stacks.into_iter().any(|stack| story.origins.get(stack).operation.loss);
    Some(Finding {
        cause: Cause::GiantRequest,
        bytes,
        enough: bench.enough(bytes) == Some(true) && bench.full(),
        facts: vec![bench.fact(text, bytes, stack)],
        fixes: remedies(bench, &sites, bytes, inputs, loss),
    })
}

fn remedies(bench: &Bench<'_>, sites: &[Site], bytes: u64, inputs: bool, loss: bool) -> Vec<Fix> {
    let mut fixes = Vec::new();
    for (lever, saves, how) in [
        (
            Lever::Sdpa,
            bytes,
            "`F.scaled_dot_product_attention(q, k, v)` computes the same without materialising the attention matrix",
        ),
        (Lever::ResizeBeforeUpload, bytes / 4 * 3, "resize images before they are copied to the GPU"),
    ] {
        match bench.change(lever, sites, Known::Nothing) {
            // Nothing there is of the kind.
            Apply::ByHand(None) => {}
            apply => {
                fixes.push(modelled(bench, lever, saves, how.to_owned(), apply));
                return fixes;
            }
        }
    }
    let by_hand =
        |lever, how: &str| modelled(bench, lever, bytes / 4 * 3, how.to_owned(), Apply::ByHand(None));
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
    fixes
}
