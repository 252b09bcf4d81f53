//! Linear layers multiply in float8.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::QuantizedBase, "a layer is replaced once"),
        (Lever::QuantizedWeights, "a layer is replaced once"),
        (Lever::TorchaoWeights, "a layer is replaced once"),
        (Lever::Lora, "a layer is replaced once"),
        (Lever::Dora, "a layer is replaced once"),
        (Lever::PeftQlora, "a layer is replaced once"),
        (Lever::PruneMasks, "a layer that is replaced loses the hook of its mask"),
        (Lever::Shard, "layers would be replaced after they were sharded"),
    ],
    brief: "products of linear layers in float8",
    docs: Docs::new(
        "",
        "linear layers multiply in float8; needs the library torchao; for speed on GPUs with float8, together with `compile`: weights, gradients and saved activations keep their types, so it saves hardly any memory",
    ),
    ..Declaration::new("float8-training", Stage::Model, Label::ChangesTraining)
};
