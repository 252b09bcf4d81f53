//! The model's layers are replaced by another network.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::Shard, "layers would be replaced after they were sharded"),
        (Lever::FewerBlocks, "the network is replaced"),
        (Lever::PruneChannels, "the network is replaced"),
        (Lever::LighterConvolutions, "the network is replaced"),
    ],
    brief: "the model's layers replaced by another network",
    docs: Docs::new(
        "name",
        "replaces the layers of an image classifier with a torchvision model (its name there) or a timm model (`\"timm/NAME\"`) with the same number of classes and random initial weights",
    ),
    ..Declaration::new("drop-in-network", Stage::Model, Label::ChangesTraining)
};
