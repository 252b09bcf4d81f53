//! What a launch means for the contents of memory.

use super::{
    arrange::Arrange, elementwise::Elementwise, histogram::Histogram, random::Random, reduction::Reduction,
    scatter::Scatter, signature::Signature, sizes::Size, topk::TopK, triton, writes::Writes,
};
use crate::{
    launch::{Arguments, Grid},
    memory::Memory,
};

/// What is known of a kernel's effect, decided once from its name.
pub struct Effect(Kind);

enum Kind {
    /// Nothing follows that is worth knowing.
    None,
    Elementwise(Elementwise),
    Reduction(Reduction),
    Size(Size, Writes),
    Arrange(Arrange),
    Histogram(Histogram),
    Random(Random),
    Scatter(Scatter),
    TopK(TopK),
    Writes(Writes),
    /// The arguments that are addresses of what a kernel without a signature writes.
    Overwrites(Vec<usize>),
}

impl Effect {
    /// The effect of the kernel with this mangled name. Of one whose name is no signature, the text that its
    /// compiler left may tell what it writes; if not, it is taken to write wherever one of its
    /// `addresses` leads.
    pub fn of(mangled: &str, text: Option<&str>, addresses: impl FnOnce() -> Vec<usize>) -> Self {
        let Some(signature) = Signature::of(mangled) else {
            let written = text.and_then(|text| triton::written(text, mangled));
            return Self(Kind::Overwrites(written.unwrap_or_else(addresses)));
        };
        let kind = None
            .or_else(|| Elementwise::of(&signature).map(Kind::Elementwise))
            .or_else(|| Reduction::of(&signature).map(Kind::Reduction))
            .or_else(|| Arrange::of(&signature).map(Kind::Arrange))
            .or_else(|| Histogram::of(&signature).map(Kind::Histogram))
            .or_else(|| Random::of(&signature).map(Kind::Random))
            .or_else(|| Scatter::of(&signature).map(Kind::Scatter))
            .or_else(|| TopK::of(&signature).map(Kind::TopK))
            .or_else(|| {
                Size::of(&signature).map(|size| Kind::Size(size, Writes::of(&signature).but_first()))
            });
        Self(kind.unwrap_or_else(|| match Writes::of(&signature) {
            writes if writes.is_none() => Kind::None,
            writes => Kind::Writes(writes),
        }))
    }

    /// Whether a launch leaves all that is known as it is.
    pub fn is_none(&self) -> bool {
        matches!(self.0, Kind::None)
    }

    /// Applies it to a launch with these arguments.
    pub fn apply(&self, arguments: Arguments, grid: Grid, memory: &dyn Memory) {
        match &self.0 {
            Kind::None => {}
            Kind::Elementwise(elementwise) => elementwise.apply(arguments, memory),
            Kind::Reduction(reduction) => reduction.apply(arguments, memory),
            Kind::Size(size, writes) => {
                writes.apply(arguments, memory);
                size.apply(arguments, memory);
            }
            Kind::Arrange(arrange) => arrange.apply(arguments, grid, memory),
            Kind::Histogram(histogram) => histogram.apply(arguments, memory),
            Kind::Random(random) => random.apply(arguments, memory),
            Kind::Scatter(scatter) => scatter.apply(arguments, memory),
            Kind::TopK(topk) => topk.apply(arguments, memory),
            Kind::Writes(writes) => writes.apply(arguments, memory),
            Kind::Overwrites(written) => {
                for argument in written {
                    if let Some(target) = arguments.get::<u64>(*argument) {
                        memory.forget_block(target);
                    }
                }
            }
        }
    }
}
