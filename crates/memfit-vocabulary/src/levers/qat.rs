//! Quantization-aware training: the forward pass computes as the quantized model will.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::QuantizedBase, "frozen weights learn nothing from being rounded"),
        (Lever::QuantizedWeights, "quantized weights are not trained"),
        (Lever::TorchaoWeights, "quantized weights are not trained"),
        (Lever::Lora, "a layer is replaced once"),
        (Lever::Dora, "a layer is replaced once"),
        (Lever::PeftQlora, "a layer is replaced once"),
        (Lever::Float8Training, "a layer is replaced once"),
        (Lever::PruneMasks, "a layer that is replaced loses the hook of its mask"),
        (Lever::Shard, "layers would be replaced after they were sharded"),
    ],
    brief: "linear layers trained for 4-bit weights (this takes memory)",
    docs: Docs::new(
        "`\"int4\"`",
        "quantization-aware training of linear layers: the forward pass rounds weights to 4 bits and activations to 8 bits, and the weights stay in full precision; needs the library torchao, and more memory",
    ),
    ..Declaration::new("qat", Stage::Model, Label::ChangesTraining)
};
