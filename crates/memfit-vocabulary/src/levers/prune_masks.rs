//! The smallest weights are masked with zeros, as `torch.nn.utils.prune` does.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::QuantizedBase, "a mask needs the weight that it is multiplied with"),
        (Lever::QuantizedWeights, "a mask needs the weight that it is multiplied with"),
        (Lever::Shard, "masks are not sharded with their weights"),
    ],
    unit: "%",
    brief: "the smallest weights masked with zeros (this takes memory)",
    docs: Docs::new(
        "percent of the weights to mask",
        "`torch.nn.utils.prune.l1_unstructured` on linear and convolution layers: the weights stay, and a mask of the same size is added to each; saves no memory",
    ),
    ..Declaration::new("prune-masks", Stage::Model, Label::ChangesTraining)
};
