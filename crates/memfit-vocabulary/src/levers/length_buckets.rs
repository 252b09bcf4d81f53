//! Batches of samples with similar length, which need little padding.

use crate::{Declaration, Docs, Label, Stage};

pub(super) const LEVER: Declaration = Declaration {
    brief: "batches of samples of similar length: less padding",
    docs: Docs::new(
        "batches that are sorted together",
        "samples of similar length are batched together, through `step.over(loader)`",
    ),
    ..Declaration::new("length-buckets", Stage::Data, Label::ChangesTraining)
};
