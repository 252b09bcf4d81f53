//! What of a model's repeated blocks is kept for the backward, computed again, or sent to the host meanwhile:
//! the choice that costs the least time within a budget of bytes, exactly.
//!
//! Blocks run one after the other. What a block's forward leaves lies there until its backward, which runs in
//! the opposite order and needs all of that block, whatever became of it in between. So the memory is
//! greatest either at the end of the forwards, with something of the loss beside all that is left, or while
//! one block runs, with what those before it left.
//!
//! The choice is a multiple-choice knapsack with a budget at each prefix. Partial choices of the same blocks
//! are compared by their bytes and their time, and those that another one beats in both are dropped; so are
//! those that cannot become better than the best one known, by the bound that the problem with divisible
//! blocks gives. Alike blocks fold by themselves: partial choices that differ only in which of them were
//! taken are equal in both.

/// One block, in one forward and backward.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Bytes that its forward leaves, its output among them.
    pub keep: u64,
    /// Bytes that are left where it is computed again: its output.
    pub residue: u64,
    /// Nanoseconds that computing it again takes.
    pub recompute_ns: u64,
    /// What sending it to the host and back costs, where that is possible.
    pub offload: Option<Offload>,
}

/// A block that waits in the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Bytes that are left on the card.
    pub residue: u64,
    /// Nanoseconds of its way that do not hide behind its neighbour's computing.
    pub exposed_ns: u64,
}

/// What becomes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// It is kept.
    Keep,
    /// It is computed again.
    Recompute,
    /// It waits in the host's memory.
    Offload,
}

/// What becomes of all blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Of each, in order.
    pub fates: Vec<Fate>,
    /// Nanoseconds that it costs.
    pub extra_ns: u64,
    /// The most bytes that the blocks and the loss have at a time.
    pub peak: u64,
}

impl Block {
    fn options(&self) -> impl Iterator<Item = (Fate, u64, u64)> {
        let offload = self.offload.map(|offload| (Fate::Offload, offload.residue, offload.exposed_ns));
        [(Fate::Keep, self.keep, 0), (Fate::Recompute, self.residue, self.recompute_ns)]
            .into_iter()
            .chain(offload)
    }

    /// The steps by which bytes can be saved, the cheapest a byte first: those of the lower hull of its
    /// options.
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

/// A choice for the first blocks.
#[derive(Clone, Copy, Debug)]
struct Partial {
    bytes: u64,
    ns: u64,
    fate: Fate,
    /// Its place among the choices for one block fewer.
    before: u32,
}

/// The choice that costs the least time, and of those the fewest bytes, with which neither the end of the
/// forwards, where `tail` bytes lie beside what the blocks left, nor any block's own turn passes the budget;
/// none where there is none.
pub fn choose(blocks: &[Block], tail: u64, budget: u64) -> Option<Choice> {
    let ahead = Ahead::of(blocks);
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
        undominated(&mut next);
        layers.push(std::mem::replace(&mut current, next));
        // With nothing left ahead the bound is the cost itself.
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

/// Drops those that another one is no worse than in bytes and in time.
fn undominated(partials: &mut Vec<Partial>) {
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

/// The most bytes that the blocks and the loss have at a time, with these fates.
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

/// What the blocks still ahead can do: their bytes if all are kept, and their savings, the cheapest first.
struct Ahead {
    kept: Vec<u64>,
    savings: Vec<Vec<Saving>>,
}

impl Ahead {
    fn of(blocks: &[Block]) -> Self {
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

    /// No choice for the blocks from `index` on makes it cheaper than this; none where none makes it fit.
    fn bound(&self, index: usize, partial: Partial, tail: u64, budget: u64) -> Option<u64> {
        let full = partial.bytes.saturating_add(self.kept[index]).saturating_add(tail);
        let mut over = full.saturating_sub(budget);
        let mut least = partial.ns;
        for saving in &self.savings[index] {
            if over == 0 {
                return Some(least);
            }
            if saving.bytes >= over {
                // A part of a block would do: rounded down, so that the bound stays one.
                return Some(least.saturating_add((saving.rate() * over as f64) as u64));
            }
            over -= saving.bytes;
            least = least.saturating_add(saving.ns);
        }
        (over == 0).then_some(least)
    }

    /// A good choice at little cost: blocks are taken whole, the cheapest a byte first.
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

    /// Every combination.
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
    fn a_hundred_blocks_are_no_trouble() {
        // Alike ones, and ones of which no two are alike.
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
