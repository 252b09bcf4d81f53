//! Blocks whose stack does not tell what they are for: blocks from before the recording, and tensors that a
//! constructor made. The gradients of a backward pass show how many tensors of a size are trained.

use std::collections::HashMap;

use memfit_recording::Block;
use memfit_vocabulary::Category;

use crate::origins::{Origins, Role};

/// Tensors of state for each parameter that are taken for optimizer state (Adam).
const STATES: u64 = 2;
/// Maximum deviation from that, as a divisor of the bytes: buffers, sizes that parameters share.
const DEVIATION_DIVISOR: u64 = 50;

/// A block with its index, category and role.
type Classified = (u32, Block, Category, Role);

/// Corrects categories by the gradients of the recording. Candidates are the blocks from before the recording
/// (`before`) that were taken for parameters, and tensors of constructors that were taken for a batch. As
/// many of a size are parameters as have a gradient of that size, the first ones. The others are optimizer
/// state if there are two for each parameter, else unknown. A constructor's tensor without a gradient is
/// unknown, too.
pub(crate) fn correct(blocks: &mut [Classified], origins: &Origins, before: u32) {
    let trained = most_at_once(blocks);
    let mut seen: HashMap<u64, u64> = HashMap::new();
    let (mut parameters, mut others) = (0_u64, Vec::new());
    for (place, (_, block, category, role)) in blocks.iter_mut().enumerate() {
        let guessed = *category == Category::Parameters && *role == Role::Unknown && block.born < before;
        let made =
            *category == Category::Inputs && *role == Role::Plain && origins.get(block.stack).in_constructor;
        if block.noted.is_some() || !(guessed || made) {
            continue;
        }
        let Some(trained) = trained.get(&block.bytes) else {
            *category = if made { Category::Unknown } else { *category };
            continue;
        };
        let seen = seen.entry(block.bytes).or_default();
        *seen += 1;
        if *seen <= *trained {
            *category = Category::Parameters;
            parameters = parameters.saturating_add(block.bytes);
        } else {
            others.push(place);
        }
    }
    let bytes = others.iter().map(|place| blocks[*place].1.bytes).fold(0, u64::saturating_add);
    let expected = parameters.saturating_mul(STATES);
    let is_state = bytes > 0 && bytes.abs_diff(expected) <= expected / DEVIATION_DIVISOR;
    for place in others {
        blocks[place].2 = if is_state { Category::Optimizer } else { Category::Unknown };
    }
}

/// For each size of a gradient, how many gradients of that size were live at once.
fn most_at_once(blocks: &[Classified]) -> HashMap<u64, u64> {
    let mut changes: Vec<(u32, bool, u64)> = Vec::new();
    for (_, block, category, _) in blocks {
        if *category == Category::Gradients {
            changes.extend([(block.born, true, block.bytes), (block.freed, false, block.bytes)]);
        }
    }
    // Frees come before allocations of the same moment.
    changes.sort_unstable();
    let (mut live, mut most): (HashMap<u64, u64>, HashMap<u64, u64>) = Default::default();
    for (_, is_born, bytes) in changes {
        let now = live.entry(bytes).or_default();
        *now = if is_born { *now + 1 } else { now.saturating_sub(1) };
        let most = most.entry(bytes).or_default();
        *most = (*most).max(*now);
    }
    most
}

#[cfg(test)]
mod tests {
    use memfit_recording::{NEVER, Track};

    use super::*;

    fn block(bytes: u64, born: u32, category: Category, role: Role) -> Classified {
        (0, Block { bytes, born, freed: NEVER, ..Block::default() }, category, role)
    }

    /// Categories of blocks from before the recording: `earlier` are their sizes, `gradients` those of the
    /// gradients that it shows.
    fn corrected(earlier: &[u64], gradients: &[u64]) -> Vec<Category> {
        let guess = |bytes: &u64| block(*bytes, 0, Category::Parameters, Role::Unknown);
        let shown = |bytes: &u64| block(*bytes, 9, Category::Gradients, Role::Backward);
        let mut blocks: Vec<_> = earlier.iter().map(guess).chain(gradients.iter().map(shown)).collect();
        correct(&mut blocks, &Origins::from_track(&Track::default()), 5);
        blocks.truncate(earlier.len());
        blocks.into_iter().map(|(_, _, category, _)| category).collect()
    }

    #[test]
    fn blocks_from_before_are_parameters_only_as_far_as_gradients_tell() {
        use Category::{Optimizer, Parameters, Unknown};
        // Adam: two more of each size. What has no gradient is frozen, or a buffer.
        assert_eq!(
            corrected(&[100, 40, 100, 40, 100, 40, 7], &[100, 40]),
            [Parameters, Parameters, Optimizer, Optimizer, Optimizer, Optimizer, Parameters]
        );
        // One more of each size is momentum or a copy of the weights.
        assert_eq!(corrected(&[100, 100], &[100]), [Parameters, Unknown]);
        // A small parameter without its second state.
        assert_eq!(
            corrected(&[1000, 1000, 1000, 25, 25], &[1000, 25]),
            [Parameters, Optimizer, Optimizer, Parameters, Optimizer]
        );
        // Layers of one size, each with its gradient.
        assert_eq!(corrected(&[100, 100], &[100, 100]), [Parameters, Parameters]);
        // Without a backward pass, nothing tells.
        assert_eq!(corrected(&[100, 100, 100], &[]), [Parameters; 3]);
    }

    #[test]
    fn gradients_of_steps_one_after_another_are_not_live_at_once() {
        let mut first = block(100, 10, Category::Gradients, Role::Backward);
        first.1.freed = 20;
        let second = block(100, 20, Category::Gradients, Role::Backward);
        assert_eq!(most_at_once(&[first, second]), HashMap::from([(100, 1)]));
    }
}
