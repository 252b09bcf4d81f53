//! Structured pruning: whole channels are removed from the layers.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::PruneMasks, "channels would be removed from under the masks"),
        (Lever::Shard, "the layers of a shard do not hold whole channels"),
    ],
    unit: "%",
    brief: "channels with the smallest weights removed from the layers",
    docs: Docs::new(
        "percent of the channels to remove",
        "structured pruning: all layers but the output layer get fewer channels; needs the library torch-pruning; the model needs further training",
    ),
    ..Declaration::new("prune-channels", Stage::Model, Label::ChangesTraining)
};
