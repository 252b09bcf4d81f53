//! Samples of like length go together, so that little is padded.

use crate::{Declaration, Docs, Label, Stage};

pub(super) const LEVER: Declaration = Declaration {
    brief: "samples of similar length in one batch: less padding",
    docs: Docs::new("batches", "samples of similar length in one batch, through `step.over(loader)`"),
    ..Declaration::new("length-buckets", Stage::Data, Label::ChangesTraining)
};
