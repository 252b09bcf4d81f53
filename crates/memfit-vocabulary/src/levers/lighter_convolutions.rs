//! Convolutions with fewer weights and operations.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::PruneMasks, "a layer that is replaced loses the hook of its mask"),
        (Lever::Shard, "layers would be replaced after they were sharded"),
    ],
    brief: "convolutions replaced by ones with fewer weights",
    docs: Docs::new(
        "`\"depthwise\"`, `\"grouped\"`, `\"small-kernels\"`",
        "each 2d convolution becomes a depthwise-separable convolution, a grouped one (4 groups), or one with a 3x3 kernel; the new layers start with random weights",
    ),
    ..Declaration::new("lighter-convolutions", Stage::Model, Label::ChangesTraining)
};
