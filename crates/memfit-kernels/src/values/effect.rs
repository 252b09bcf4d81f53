//! The effect of a launch on the known contents of memory.

use super::{
    arrange::Arrange, elementwise::Elementwise, histogram::Histogram, random::Random, reduction::Reduction,
    scatter::Scatter, sizes::Size, topk::TopK, writes::Writes,
};
use crate::launch::Launch;

/// What the kernels of a family do to known contents.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// Nothing that is worth knowing.
    None,
    Elementwise(Elementwise),
    Reduction(Reduction),
    Size(Size, Writes),
    Arrange(Arrange),
    Histogram(Histogram),
    Random(Random),
    Scatter(Scatter),
    TopK(TopK),
    /// Forgets what the kernel writes, as far as its signature tells.
    Writes(Writes),
    /// Forgets the blocks behind these arguments, of a kernel without a signature.
    Overwrites(Vec<usize>),
}

impl Effect {
    /// Applies it to a launch.
    pub(crate) fn apply(&self, launch: Launch) {
        let Launch { grid, arguments, memory } = launch;
        match self {
            Self::None => {}
            Self::Elementwise(elementwise) => elementwise.apply(arguments, memory),
            Self::Reduction(reduction) => reduction.apply(arguments, memory),
            Self::Size(size, writes) => {
                writes.apply(arguments, memory);
                size.apply(arguments, memory);
            }
            Self::Arrange(arrange) => arrange.apply(arguments, grid, memory),
            Self::Histogram(histogram) => histogram.apply(arguments, memory),
            Self::Random(random) => random.apply(arguments, memory),
            Self::Scatter(scatter) => scatter.apply(arguments, memory),
            Self::TopK(topk) => topk.apply(arguments, memory),
            Self::Writes(writes) => writes.apply(arguments, memory),
            Self::Overwrites(written) => {
                for argument in written {
                    if let Some(target) = arguments.get::<u64>(*argument) {
                        memory.forget_block(target);
                    }
                }
            }
        }
    }
}
