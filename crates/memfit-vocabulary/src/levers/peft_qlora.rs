//! LoRA adapters by peft on frozen weights in bitsandbytes' NF4.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::Lora, "a layer has one kind of adapter"),
        (Lever::Dora, "a layer has one kind of adapter"),
        (Lever::TrainOnly, "`peft-qlora` selects the trained parameters itself"),
        (Lever::QuantizedBase, "a weight has one data type"),
        (Lever::QuantizedWeights, "a weight has one data type"),
        (Lever::TorchaoWeights, "a weight has one data type"),
        (Lever::PruneMasks, "peft's adapters take the layers' place"),
        (Lever::Shard, "adapters are not sharded with the parameters"),
    ],
    brief: "peft's LoRA adapters on weights in NF4 of bitsandbytes",
    docs: Docs::new(
        "rank",
        "LoRA adapters on frozen weights in the 4-bit format NF4; needs the libraries peft and bitsandbytes",
    ),
    ..Declaration::new("peft-qlora", Stage::Model, Label::ChangesTraining)
};
