//! 2:4 sparsity of a model that is not trained: half of the weights, with their positions.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::QuantizedBase, "a weight has one data type"),
        (Lever::QuantizedWeights, "a weight has one data type"),
        (Lever::TorchaoWeights, "a weight has one data type"),
        (Lever::PeftQlora, "a weight has one data type"),
        (Lever::Qat, "sparse weights are not trained"),
        (Lever::Float8Training, "sparse weights are not trained"),
        (Lever::PruneMasks, "a mask needs the weight that it is multiplied with"),
        (Lever::Shard, "sparse weights cannot be sharded"),
    ],
    brief: "linear layers' weights in 2:4 sparsity",
    docs: Docs::new(
        "",
        "2:4 sparsity: of each four neighbouring weights of linear layers the two largest are kept, in PyTorch's CUTLASS format; for a 16-bit model that is not trained",
    ),
    ..Declaration::new("semi-structured", Stage::Model, Label::ChangesTraining)
};
