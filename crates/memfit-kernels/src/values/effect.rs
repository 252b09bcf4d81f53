//! The effect of a launch on the known contents of memory.

use std::ops::RangeInclusive;

use super::{
    arrange::Arrange,
    elementwise::Elementwise,
    histogram::Histogram,
    random::Random,
    reduction::Reduction,
    scatter::Scatter,
    sizes::Size,
    topk::TopK,
    writes::{self, Writes},
};
use crate::{
    binary::Param,
    launch::{Arguments, Launch},
    memory::Memory,
};

/// Effect of a family's kernels on known contents.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// No known effect on memory contents.
    None,
    Elementwise(Elementwise),
    Reduction(Reduction),
    Size(Size, Writes),
    Arrange(Arrange),
    Histogram(Histogram),
    Random(Random),
    Scatter(Scatter),
    TopK(TopK),
    /// Forgets the memory that the kernel writes.
    Writes(Writes),
    /// Forgets the blocks behind these arguments, for a kernel without a signature.
    Overwrites(Vec<usize>),
    /// Forgets everything that the arguments lead to, for an unknown kernel: the whole block behind an
    /// argument that is an address.
    Anything,
}

impl Effect {
    /// Returns `true` if a kernel's parameters have the sizes of the family's layout; `None` if the effect is
    /// not modelled.
    pub(crate) fn fits(&self, params: &[Param]) -> Option<bool> {
        let sizes = match self {
            Self::Elementwise(elementwise) => elementwise.sizes(),
            Self::Reduction(reduction) => reduction.sizes(),
            Self::Size(size, _) => size.sizes(),
            Self::Arrange(arrange) => arrange.sizes(),
            Self::Histogram(histogram) => histogram.sizes(),
            Self::Random(random) => random.sizes(),
            Self::Scatter(scatter) => scatter.sizes(),
            Self::TopK(topk) => topk.sizes(),
            Self::Writes(Writes::Lists(lists, _)) => {
                return Some(
                    params.first().is_some_and(|param| lists.sizes().contains(&(param.size as usize))),
                );
            }
            Self::None | Self::Writes(_) | Self::Overwrites(_) | Self::Anything => return None,
        };
        let fits = |(index, size): (usize, &RangeInclusive<usize>)| {
            params.get(index).is_some_and(|param| size.contains(&(param.size as usize)))
        };
        Some(sizes.iter().enumerate().all(fits))
    }

    /// Applies the effect to a launch. If the arguments do not match the family's layout, the kernel may have
    /// written anything.
    pub(crate) fn apply(&self, launch: Launch) {
        let Launch { grid, arguments, memory } = launch;
        let applied = match self {
            Self::None => Some(()),
            Self::Elementwise(elementwise) => elementwise.apply(arguments, memory),
            Self::Reduction(reduction) => reduction.apply(arguments, memory),
            Self::Size(size, writes) => {
                writes.apply(launch);
                size.apply(arguments, memory)
            }
            Self::Arrange(arrange) => arrange.apply(arguments, grid, memory),
            Self::Histogram(histogram) => histogram.apply(arguments, memory),
            Self::Random(random) => random.apply(arguments, memory),
            Self::Scatter(scatter) => scatter.apply(arguments, memory),
            Self::TopK(topk) => topk.apply(arguments, memory),
            Self::Writes(writes) => {
                writes.apply(launch);
                Some(())
            }
            Self::Overwrites(written) => forget_blocks(written, arguments, memory),
            Self::Anything => {
                let params = arguments.params().unwrap_or_default().iter().enumerate();
                let addresses: Vec<usize> =
                    params.filter(|(_, param)| param.size == 8).map(|(index, _)| index).collect();
                // The remaining parameters are structures.
                forget_blocks(&addresses, arguments, memory).and(None)
            }
        };
        if applied.is_none() {
            writes::forget_all_targets(arguments, memory);
        }
    }
}

/// Forgets the blocks behind arguments that are addresses.
fn forget_blocks(written: &[usize], arguments: Arguments, memory: &dyn Memory) -> Option<()> {
    for argument in written {
        memory.forget_block(arguments.get::<u64>(*argument)?);
    }
    Some(())
}
