//! With DistributedDataParallel, gradients are views of the communication buckets.

use crate::{Declaration, Docs, Label, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    brief: "gradients are views of DDP's buckets",
    sentence: Sentence::Words(
        "gradients are views of DDP's buckets (`gradient_as_bucket_view=True`), so they are stored once",
    ),
    search: Some(Search::new(Turn::Always, 100, sense)),
    docs: Docs::new("", "gradients are views of DistributedDataParallel's buckets"),
    ..Declaration::new("gradient-as-bucket-view", Stage::Model, Label::Exact)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.training.replicated)
}
