//! Weights, gradients and moments in bf16.

use crate::{
    Declaration, Docs, Framework, Keyword, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn,
};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[(Lever::Shard, "a shard's updates are not rounded by chance, and bf16 would lose most")],
    brief: "weights, gradients and optimizer state in bf16",
    sentence: Sentence::Words("weights, gradients and the optimizer's state in bf16"),
    search: Some(Search {
        instead_of: &[Lever::AutocastBf16, Lever::AutocastFp16],
        ..Search::new(Turn::WhereShort, 180, sense)
    }),
    keywords: &[Keyword::new(Framework::Lightning, "precision", "\"bf16-true\"")],
    saves: Some(|held| (held.parameters + held.states + held.trained) / 2),
    docs: Docs::new(
        "",
        "weights, gradients and moments; updates are computed in fp32, and rounded up or down by chance, for PyTorch's own optimizers that update each number by itself; layers with running statistics stay in fp32, and so do buffers of a single dimension, such as frequencies of positions",
    ),
    ..Declaration::new("pure-bf16", Stage::Model, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    let training = situation.training;
    Sense::when(situation.has_bf16 && !training.half && situation.is_worth(training.trained))
}
