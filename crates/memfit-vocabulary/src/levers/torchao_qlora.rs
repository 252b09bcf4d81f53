//! LoRA adapters by peft on frozen weights in torchao's int8.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::Lora, "a layer has one kind of adapter"),
        (Lever::Dora, "a layer has one kind of adapter"),
        (Lever::PeftQlora, "a layer has one kind of adapter"),
        (Lever::TrainOnly, "`torchao-qlora` selects the trained parameters itself"),
        (Lever::LowRankGradients, "adapters have a low rank already"),
        (Lever::QuantizedBase, "a weight has one data type"),
        (Lever::QuantizedWeights, "a weight has one data type"),
        (Lever::TorchaoWeights, "a weight has one data type"),
        (Lever::SemiStructured, "a weight has one data type"),
        (Lever::Qat, "a layer is replaced once"),
        (Lever::Float8Training, "a layer is replaced once"),
        (Lever::PruneMasks, "peft's adapters take the layers' place"),
        (Lever::Shard, "adapters are not sharded with the parameters"),
    ],
    brief: "peft's LoRA adapters on weights in int8 of torchao",
    docs: Docs::new(
        "rank",
        "LoRA adapters on frozen weights in torchao's int8; needs the libraries peft and torchao",
    ),
    ..Declaration::new("torchao-qlora", Stage::Model, Label::ChangesTraining)
};
