//! Some of the repeated blocks are removed: a shallower model.

use crate::{Declaration, Docs, Harm, Label, Lever, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[(Lever::Shard, "blocks would be removed after they were sharded")],
    unit: "%",
    brief: "only some of the repeated blocks are kept",
    docs: Docs::new(
        "percent of the blocks to keep",
        "in each sequence of blocks with equal shapes, evenly spaced blocks are kept and the others removed; the model needs further training",
    ),
    ..Declaration::new("fewer-blocks", Stage::Model, Label::ChangesTraining)
};
