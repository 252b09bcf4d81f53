//! Whether the forward runs under autocast already: what stands around the model's call says so, or what the
//! forward made does.

use std::collections::{BTreeMap, HashMap};

use memfit_recording::StackId;
use memfit_vocabulary::Category;

use crate::bench::Bench;
use crate::origins::Role;

/// Parameters of fewer bytes are biases and scales, which stay as they are.
const SMALLEST_WEIGHT: u64 = 32 << 10;

/// Whether autocast is on already, as far as can be told.
pub(super) fn is_on(bench: &Bench<'_>) -> bool {
    is_around_the_call(bench) || weights_are_cast(bench)
}

/// Whether the model is called within a `with` of it, wherever up the stack that stands.
fn is_around_the_call(bench: &Bench<'_>) -> bool {
    let story = &bench.story;
    let stacks = std::iter::once(story.trouble.stack);
    let stacks = stacks.chain(story.lives.iter().rev().map(|life| life.block.stack));
    let called = stacks.map(|stack| story.origins.get(stack)).find(|origin| origin.caller.is_some());
    called.is_some_and(|origin| {
        origin.user.iter().any(|site| {
            let file = story.track.texts.get(site.file);
            bench.code.is_under_autocast(file, site.line)
        })
    })
}

/// Whether the forward makes copies of the weights in half their size, as autocast does before it multiplies
/// by them: beside each copy the same line makes something else of it.
fn weights_are_cast(bench: &Bench<'_>) -> bool {
    let story = &bench.story;
    let mut weights: BTreeMap<u64, u64> = BTreeMap::new();
    // By line and size, what the forward makes.
    let mut made: HashMap<StackId, BTreeMap<u64, u64>> = HashMap::new();
    for life in &story.lives {
        let role = story.origins.get(life.block.stack).role;
        match life.category {
            Category::Parameters if life.asked() >= SMALLEST_WEIGHT => {
                *weights.entry(life.asked()).or_default() += 1;
            }
            Category::Parameters | Category::Gradients | Category::Optimizer | Category::Buffers => {}
            _ if matches!(role, Role::Forward | Role::Plain) => {
                *made.entry(life.block.stack).or_default().entry(life.asked()).or_default() += 1;
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
    all > 0 && cast > all / 2
}
