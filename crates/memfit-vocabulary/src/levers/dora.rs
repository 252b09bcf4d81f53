//! DoRA adapters: LoRA adapters with a trained magnitude for each row of the weight.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::Lora, "a layer has one kind of adapter"),
        (Lever::TrainOnly, "`dora` selects the trained parameters itself"),
        (Lever::QuantizedBase, "DoRA computes the length of each row of the full weight"),
        (Lever::QuantizedWeights, "DoRA computes the length of each row of the full weight"),
        (Lever::PruneMasks, "peft's adapters take the layers' place"),
        (Lever::Shard, "adapters are not sharded with the parameters"),
    ],
    brief: "DoRA adapters on frozen weights",
    docs: Docs::new(
        "rank",
        "DoRA: LoRA adapters with a trained magnitude for each output; needs the library peft; the full weight is computed in each forward pass, so activations grow",
    ),
    ..Declaration::new("dora", Stage::Model, Label::ChangesTraining)
};
