//! Optimizer state in bf16.

use crate::{Declaration, Docs, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[(Lever::HostOptimizerState, "optimizer state is in one place")],
    brief: "optimizer state in bf16",
    sentence: Sentence::Words("optimizer state in bf16"),
    search: Some(Search {
        instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
        ..Search::new(Turn::IfMemoryShort, 150, sense)
    }),
    docs: Docs::new(
        "",
        "optimizer state packed between steps and unpacked for a few parameters at a time; checkpoints store it in full",
    ),
    ..Declaration::new("bf16-optimizer-state", Stage::Optimizer, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.has_state())
}
