//! Weights of a model that is not trained are quantized by torchao.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::QuantizedWeights, "a weight has one data type"),
        (Lever::QuantizedBase, "a weight has one data type"),
        (Lever::PruneMasks, "a mask needs the weight that it is multiplied with"),
        (Lever::Shard, "quantized weights cannot be sharded"),
    ],
    brief: "linear layers' weights quantized by torchao",
    docs: Docs::new(
        "`\"int8\"`, `\"fp8\"`, `\"int4\"`, `\"int8-int4\"`",
        "quantized weights of linear layers; needs the library torchao; for a model that is not trained; `int4` needs weights in bf16, and `int8-int4` is what `qat` trains for",
    ),
    ..Declaration::new("torchao-weights", Stage::Model, Label::ChangesTraining)
};
