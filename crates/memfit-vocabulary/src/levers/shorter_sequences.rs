//! Sequences of tokens are cut before they go to the GPU.

use crate::{Declaration, Docs, Harm, Label, Stage};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Samples,
    brief: "sequences are cut before they are copied to the GPU",
    docs: Docs::new(
        "tokens",
        "ids, labels and masks are cut on the host to at most that many tokens, through `step.over(loader)`",
    ),
    ..Declaration::new("shorter-sequences", Stage::Data, Label::ChangesTraining)
};
