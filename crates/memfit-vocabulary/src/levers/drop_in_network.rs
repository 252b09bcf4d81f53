//! Another network in the place of the model's layers.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::Shard, "layers would be replaced after they were sharded"),
        (Lever::FewerBlocks, "the network is replaced"),
        (Lever::PruneChannels, "the network is replaced"),
        (Lever::LighterConvolutions, "the network is replaced"),
    ],
    brief: "another network in the place of the model's layers",
    docs: Docs::new(
        "name",
        "the layers of a classifier of images are replaced by a network of torchvision, by its name there, or of timm, as `\"timm/NAME\"`, with as many classes; its weights begin random",
    ),
    ..Declaration::new("drop-in-network", Stage::Model, Label::ChangesTraining)
};
