//! Only a part of the model is trained; the rest is frozen.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::Lora, "`lora` selects the trained parameters itself"),
        (Lever::Shard, "parameters frozen before they are sharded would be gathered for nothing"),
    ],
    brief: "only a part of the model is trained",
    docs: Docs::new(
        "`\"head\"`, `\"last-2-blocks\"`, `\"biases\"`, `\"norms\"`",
        "all other parameters are frozen: they have neither gradients nor optimizer state, and activations before the first trained layer are not saved",
    ),
    ..Declaration::new("train-only", Stage::Model, Label::ChangesTraining)
};
