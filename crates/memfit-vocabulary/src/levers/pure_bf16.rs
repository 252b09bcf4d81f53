//! Weights, gradients and optimizer state in bf16.

use crate::{
    Declaration, Docs, Framework, Keyword, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn,
};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[(
        Lever::Shard,
        "sharded updates have no stochastic rounding, and bf16 weights would lose most of them",
    )],
    brief: "weights, gradients and optimizer state in bf16",
    sentence: Sentence::Words("weights, gradients and optimizer state in bf16"),
    search: Some(Search {
        instead_of: &[Lever::AutocastBf16, Lever::AutocastFp16],
        ..Search::new(Turn::IfMemoryShort, 180, sense)
    }),
    keywords: &[Keyword::new(Framework::Lightning, "precision", "\"bf16-true\"")],
    saves: Some(|held| (held.parameters + held.states + held.trained) / 2),
    docs: Docs::new(
        "",
        "weights, gradients and optimizer state in bf16; updates are computed in fp32 with stochastic rounding, for PyTorch's element-wise optimizers; layers with running statistics and one-dimensional buffers (such as rotary frequencies) stay in fp32",
    ),
    ..Declaration::new("pure-bf16", Stage::Model, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    let training = situation.training;
    Sense::when(situation.has_bf16 && !training.half && situation.is_worth(training.trained))
}
