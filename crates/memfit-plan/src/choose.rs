//! Exact choice of which repeated blocks to keep, recompute or offload for the backward pass, at the least
//! cost in time within a budget of bytes.
//!
//! Blocks run one after the other. The output of a block's forward pass stays until its backward pass; these
//! run in the opposite order and need all of the block's activations. Memory peaks either at the end of the
//! forward pass, together with the loss, or while one block runs, on top of the outputs of earlier blocks.
//!
//! The problem is a multiple-choice knapsack with a budget at each prefix. Dynamic programming solves it: a
//! partial choice is dropped if another one dominates it in bytes and time, or if the LP relaxation (with
//! divisible blocks) shows that it cannot beat the best known choice. Identical blocks need no special case,
//! since partial choices that differ only in which of them are selected have equal bytes and time.

/// Block in one forward and backward pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Bytes that its forward pass keeps, including its output.
    pub keep: u64,
    /// Bytes that remain if it is recomputed: its output.
    pub residue: u64,
    /// Nanoseconds of its recomputation.
    pub recompute_ns: u64,
    /// Costs of offloading it, if that is possible.
    pub offload: Option<Offload>,
}

/// Offloading of a block to host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Bytes that remain on the GPU.
    pub residue: u64,
    /// Nanoseconds of its transfers that do not overlap with computation.
    pub exposed_ns: u64,
}

/// Treatment of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// Kept.
    Keep,
    /// Recomputed.
    Recompute,
    /// Offloaded to host memory.
    Offload,
}

/// Treatment of all blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Treatments in order.
    pub fates: Vec<Fate>,
    /// Additional nanoseconds.
    pub extra_ns: u64,
    /// Peak bytes of the blocks and the loss.
    pub peak: u64,
}

impl Block {
    fn options(&self) -> impl Iterator<Item = (Fate, u64, u64)> {
        let offload = self.offload.map(|offload| (Fate::Offload, offload.residue, offload.exposed_ns));
        [(Fate::Keep, self.keep, 0), (Fate::Recompute, self.residue, self.recompute_ns)]
            .into_iter()
            .chain(offload)
    }

    /// Savings of the block, cheapest per byte first: the lower convex hull of its options.
    fn steps(&self) -> Vec<Saving> {
        let mut options: Vec<(u64, u64)> = self.options().map(|(_, bytes, cost)| (bytes, cost)).collect();
        options.sort_by_key(|(bytes, cost)| (std::cmp::Reverse(*bytes), *cost));
        let mut steps: Vec<Saving> = Vec::new();
        let (mut bytes, mut cost) = (self.keep, 0);
        loop {
            let next = options
                .iter()
                .filter(|(smaller, _)| *smaller < bytes)
                .map(|(smaller, more)| {
                    (*smaller, *more, Saving { bytes: bytes - smaller, ns: more.saturating_sub(cost) })
                })
                .min_by(|(.., a), (.., b)| a.rate().total_cmp(&b.rate()).then(b.bytes.cmp(&a.bytes)));
            let Some((smaller, more, step)) = next else { return steps };
            steps.push(step);
            (bytes, cost) = (smaller, cost.max(more));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Saving {
    bytes: u64,
    ns: u64,
}

impl Saving {
    fn rate(self) -> f64 {
        self.ns as f64 / self.bytes as f64
    }
}

/// Choice for the first blocks.
#[derive(Clone, Copy, Debug)]
struct Partial {
    bytes: u64,
    ns: u64,
    fate: Fate,
    /// Index of the choice that it extends, in the layer before.
    before: u32,
}

/// Finds the choice with the least time, and among those with the fewest bytes, for which the peak stays
/// within the budget: at the end of the forward pass with `tail` bytes of the loss, and while each block
/// runs. Returns `None` if there is none.
pub fn choose(blocks: &[Block], tail: u64, budget: u64) -> Option<Choice> {
    let ahead = Ahead::from_blocks(blocks);
    let mut best = Ahead::first_guess(blocks, tail, budget).map_or(u64::MAX, |choice| choice.extra_ns);
    let mut layers: Vec<Vec<Partial>> = Vec::with_capacity(blocks.len());
    let mut current = vec![Partial { bytes: 0, ns: 0, fate: Fate::Keep, before: 0 }];
    for (index, block) in blocks.iter().enumerate() {
        let mut next = Vec::with_capacity(current.len() * 2);
        for (before, partial) in (0_u32..).zip(&current) {
            if partial.bytes.saturating_add(block.keep) > budget {
                continue;
            }
            for (fate, bytes, cost) in block.options() {
                let grown = Partial {
                    bytes: partial.bytes.saturating_add(bytes),
                    ns: partial.ns.saturating_add(cost),
                    fate,
                    before,
                };
                if ahead.bound(index + 1, grown, tail, budget).is_some_and(|least| least <= best) {
                    next.push(grown);
                }
            }
        }
        remove_dominated(&mut next);
        layers.push(std::mem::replace(&mut current, next));
        // After the last block, the bound is the cost itself.
        if index + 1 == blocks.len() {
            best = current.iter().map(|partial| partial.ns).min().unwrap_or(best);
        }
    }
    let end = current
        .iter()
        .filter(|partial| partial.bytes.saturating_add(tail) <= budget)
        .min_by_key(|partial| (partial.ns, partial.bytes))?;
    let mut fates = Vec::with_capacity(blocks.len());
    let mut partial = *end;
    for layer in layers.iter().rev() {
        fates.push(partial.fate);
        partial = layer[partial.before as usize];
    }
    fates.reverse();
    Some(Choice { peak: peak(blocks, &fates, tail), fates, extra_ns: end.ns })
}

/// Removes partial choices that are no better than another one in bytes or time.
fn remove_dominated(partials: &mut Vec<Partial>) {
    partials.sort_by_key(|partial| (partial.bytes, partial.ns));
    let mut least = None;
    partials.retain(|partial| {
        let stays = least.is_none_or(|least| partial.ns < least);
        if stays {
            least = Some(partial.ns);
        }
        stays
    });
}

/// Peak bytes of the blocks and the loss, with these treatments.
pub fn peak(blocks: &[Block], fates: &[Fate], tail: u64) -> u64 {
    let (mut left, mut most) = (0_u64, 0_u64);
    for (block, fate) in blocks.iter().zip(fates) {
        most = most.max(left.saturating_add(block.keep));
        let bytes =
            block.options().find(|(option, ..)| option == fate).map_or(block.keep, |(_, bytes, _)| bytes);
        left = left.saturating_add(bytes);
    }
    most.max(left.saturating_add(tail))
}

/// Options of the remaining blocks: bytes if all are kept, and savings, the cheapest first.
struct Ahead {
    kept: Vec<u64>,
    savings: Vec<Vec<Saving>>,
}

impl Ahead {
    fn from_blocks(blocks: &[Block]) -> Self {
        let mut kept = vec![0_u64];
        let mut savings: Vec<Vec<Saving>> = vec![Vec::new()];
        for block in blocks.iter().rev() {
            kept.push(kept.last().map_or(0, |sum| sum.saturating_add(block.keep)));
            let mut all = savings.last().cloned().unwrap_or_default();
            all.extend(block.steps());
            all.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
            savings.push(all);
        }
        kept.reverse();
        savings.reverse();
        Self { kept, savings }
    }

    /// Lower bound of the cost with any choice for the blocks from `index` on; `None` if none fits.
    fn bound(&self, index: usize, partial: Partial, tail: u64, budget: u64) -> Option<u64> {
        let full = partial.bytes.saturating_add(self.kept[index]).saturating_add(tail);
        let mut over = full.saturating_sub(budget);
        let mut least = partial.ns;
        for saving in &self.savings[index] {
            if over == 0 {
                return Some(least);
            }
            if saving.bytes >= over {
                // A part of a block suffices; rounded down to remain a lower bound.
                return Some(least.saturating_add((saving.rate() * over as f64) as u64));
            }
            over -= saving.bytes;
            least = least.saturating_add(saving.ns);
        }
        (over == 0).then_some(least)
    }

    /// Greedy choice: whole blocks, cheapest per byte first.
    fn first_guess(blocks: &[Block], tail: u64, budget: u64) -> Option<Choice> {
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        let rate = |block: &Block| {
            Saving { bytes: block.keep.saturating_sub(block.residue).max(1), ns: block.recompute_ns }.rate()
        };
        order.sort_by(|a, b| rate(&blocks[*a]).total_cmp(&rate(&blocks[*b])));
        let mut fates = vec![Fate::Keep; blocks.len()];
        let mut extra_ns = 0_u64;
        for index in std::iter::once(None).chain(order.into_iter().map(Some)) {
            if let Some(index) = index {
                fates[index] = Fate::Recompute;
                extra_ns = extra_ns.saturating_add(blocks[index].recompute_ns);
            }
            let peak = peak(blocks, &fates, tail);
            if peak <= budget {
                return Some(Choice { fates, extra_ns, peak });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tries every combination.
    fn exhaustive(blocks: &[Block], tail: u64, budget: u64) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        for number in 0..3_usize.pow(blocks.len() as u32) {
            let mut rest = number;
            let mut fates = Vec::new();
            let (mut cost, mut left, mut possible) = (0, 0, true);
            for block in blocks {
                let fate = [Fate::Keep, Fate::Recompute, Fate::Offload][rest % 3];
                rest /= 3;
                match block.options().find(|(option, ..)| *option == fate) {
                    Some((_, bytes, ns)) => {
                        cost += ns;
                        left += bytes;
                    }
                    None => possible = false,
                }
                fates.push(fate);
            }
            if possible && peak(blocks, &fates, tail) <= budget {
                best = Some(best.map_or((cost, left), |best| best.min((cost, left))));
            }
        }
        best
    }

    fn block() -> impl Strategy<Value = Block> {
        let offload = proptest::option::of((0..20_u64, 0..50_u64));
        (0..100_u64, 0..100_u64, 0..50_u64, offload).prop_map(|(keep, residue, recompute_ns, offload)| {
            Block {
                keep,
                residue,
                recompute_ns,
                offload: offload.map(|(residue, exposed_ns)| Offload { residue, exposed_ns }),
            }
        })
    }

    proptest! {
        #[test]
        fn no_combination_is_better(
            blocks in proptest::collection::vec(block(), 0..7),
            tail in 0..100_u64,
            budget in 0..600_u64,
        ) {
            let chosen = choose(&blocks, tail, budget);
            let best = exhaustive(&blocks, tail, budget);
            prop_assert_eq!(chosen.as_ref().map(|choice| choice.extra_ns), best.map(|(cost, _)| cost));
            if let Some(choice) = chosen {
                prop_assert!(choice.peak <= budget);
                prop_assert_eq!(choice.peak, peak(&blocks, &choice.fates, tail));
            }
        }
    }

    #[test]
    fn chooses_among_a_hundred_blocks() {
        // Identical blocks, and blocks that all differ.
        let alike = vec![
            Block {
                keep: 1_000,
                residue: 100,
                recompute_ns: 50,
                offload: Some(Offload { residue: 10, exposed_ns: 70 }),
            };
            100
        ];
        let different: Vec<Block> = (0..100_u64)
            .map(|index| Block {
                keep: 1_000 + index * 7_919 % 1_013,
                residue: 50 + index * 104_729 % 97,
                recompute_ns: 100 + index * 1_299_709 % 331,
                offload: (index % 3 == 0).then_some(Offload { residue: 10, exposed_ns: 200 + index }),
            })
            .collect();
        for blocks in [alike, different] {
            let all: u64 = blocks.iter().map(|block| block.keep).sum();
            for percent in [20, 35, 50, 80, 95] {
                let choice = choose(&blocks, 500, all * percent / 100).unwrap();
                assert!(choice.extra_ns > 0 && choice.peak <= all * percent / 100);
            }
            assert_eq!(choose(&blocks, 500, all + 500).unwrap().extra_ns, 0);
            assert_eq!(choose(&blocks, 500, 100), None);
        }
    }
}
