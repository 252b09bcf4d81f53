//! Optimizer state in 8 bits.

use crate::{
    Declaration, Docs, Framework, Keyword, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn,
};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[
        (Lever::Bf16OptimizerState, "optimizer state has one data type"),
        (Lever::HostOptimizerState, "optimizer state is in one place"),
    ],
    brief: "optimizer state in 8 bits",
    sentence: Sentence::Words("optimizer state in 8 bits"),
    search: Some(Search {
        instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
        ..Search::new(Turn::IfMemoryShort, 160, sense)
    }),
    keywords: &[Keyword::new(Framework::Transformers, "optim", "\"adamw_bnb_8bit\"")],
    saves: Some(|held| held.states / 100 * 74),
    docs: Docs::new(
        "",
        "optimizer state packed between steps and unpacked for a few parameters at a time; checkpoints store it in full; an update takes about seven times as long as fused AdamW's (a compiled 8-bit optimizer such as torchao's `AdamW8bit` is much faster)",
    ),
    ..Declaration::new("8-bit-optimizer", Stage::Optimizer, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.has_state())
}
