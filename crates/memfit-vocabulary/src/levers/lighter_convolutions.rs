//! Convolutions with fewer weights and products.

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
        "each 2d convolution becomes one filter for each channel and a 1x1 convolution, or 4 groups, or has a kernel of 3x3; the new layers begin with random weights",
    ),
    ..Declaration::new("lighter-convolutions", Stage::Model, Label::ChangesTraining)
};
