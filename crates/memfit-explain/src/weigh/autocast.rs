//! Detection of autocast in the forward pass, from the source around the model's call or from the allocated
//! blocks; and what it would save.

use std::collections::{BTreeMap, HashMap, HashSet};

use memfit_recording::{StackId, TextId};
use memfit_vocabulary::Category;

use crate::analysis::Analysis;
use crate::origins::{Cast, Role};
use crate::timeline::Life;

/// Minimum size of a weight. Smaller parameters are biases and scales, which autocast does not convert.
const MIN_WEIGHT_BYTES: u64 = 32 << 10;

/// Returns `true` if there is evidence that autocast is on.
pub(super) fn is_on(analysis: &Analysis<'_>) -> bool {
    is_around_the_call(analysis) || weights_are_cast(analysis)
}

/// Estimates the bytes that autocast saves of the activations for which `of` holds.
///
/// An activation is kept by the operation that made it, if that saves its result, and by the next one, which
/// saves its input. Both keep it in their own precision: between a convolution and a normalisation there may
/// be a copy in each, and autocast may then take more memory instead of less.
pub(super) fn savings(analysis: &Analysis<'_>, of: impl Fn(&Life) -> bool) -> u64 {
    let timeline = &analysis.timeline;
    let mut lives: Vec<&Life> = timeline.live().filter(|life| of(life)).collect();
    lives.sort_by_key(|life| life.index);
    let operation = |life: &Life| timeline.origins.get(life.block.stack).operation;
    let (mut own, mut cast) = (0_u64, 0_u64);
    let mut is_full = false;
    for (place, life) in lives.iter().enumerate() {
        let made = operation(life);
        is_full = made.cast.is_full(is_full);
        let next = lives.get(place + 1).map_or(Cast::Input, |next| operation(next).cast);
        let read_full = next.is_full(is_full);
        let bytes = |full: bool| if full { life.block.bytes } else { life.block.bytes / 2 };
        own += life.block.bytes;
        cast += bytes(read_full);
        if made.saves_result && read_full != is_full {
            cast += bytes(is_full);
        }
    }
    own.saturating_sub(cast)
}

/// Returns `true` if a frame of the model's call is inside a `with` block of autocast.
fn is_around_the_call(analysis: &Analysis<'_>) -> bool {
    let timeline = &analysis.timeline;
    let called = analysis.model_call().map(|stack| timeline.origins.get(stack));
    called.is_some_and(|origin| {
        origin.user.iter().any(|site| {
            let file = timeline.track.texts.get(site.file);
            analysis.code.is_under_autocast(file, site.line)
        })
    })
}

/// Returns `true` if the forward pass allocates copies of the weights of half their size, as autocast does
/// before a matrix product: the same line also allocates the product.
fn weights_are_cast(analysis: &Analysis<'_>) -> bool {
    let timeline = &analysis.timeline;
    let forward = timeline.lives.iter().filter(|life| life.role == Role::Forward);
    let called: HashSet<TextId> =
        forward.map(|life| life.block.module).filter(|module| *module != TextId::NONE).collect();
    // Memory may run out before all modules are called.
    let is_called = |owner: TextId| called.is_empty() || owner == TextId::NONE || called.contains(&owner);
    let mut weights: BTreeMap<u64, u64> = BTreeMap::new();
    // Sizes allocated by the forward pass, by line.
    let mut made: HashMap<StackId, BTreeMap<u64, u64>> = HashMap::new();
    for life in &timeline.lives {
        let role = timeline.origins.get(life.block.stack).role;
        match life.category {
            Category::Parameters
                if life.requested_bytes() >= MIN_WEIGHT_BYTES && is_called(life.block.owner) =>
            {
                *weights.entry(life.requested_bytes()).or_default() += 1;
            }
            Category::Parameters | Category::Gradients | Category::Optimizer | Category::Buffers => {}
            _ if matches!(role, Role::Forward | Role::Plain) => {
                *made.entry(life.block.stack).or_default().entry(life.requested_bytes()).or_default() += 1;
            }
            _ => {}
        }
    }
    let copies_of = |size: u64| -> u64 {
        let of_line = made.values().map(|sizes| {
            let copies = sizes.get(&(size / 2)).copied().unwrap_or(0);
            let beside = sizes.values().sum::<u64>() - copies;
            copies.min(beside)
        });
        of_line.sum()
    };
    let all: u64 = weights.iter().map(|(size, count)| size * count).sum();
    let cast: u64 = weights.iter().map(|(size, count)| size * count.min(&copies_of(*size))).sum();
    cast > all / 2
}
