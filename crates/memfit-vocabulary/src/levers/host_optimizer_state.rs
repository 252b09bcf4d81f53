//! Optimizer state is kept in host memory, and copied to the GPU for each update.

use crate::{Declaration, Docs, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    brief: "optimizer state in host memory",
    sentence: Sentence::Words("optimizer state offloaded to host memory"),
    search: Some(Search {
        instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
        ..Search::new(Turn::IfMemoryShort, 140, sense)
    }),
    saves: Some(|held| held.states),
    docs: Docs::new(
        "",
        "optimizer state stays in host memory between steps and is copied over for a few parameters at a time; checkpoints store it in full",
    ),
    ..Declaration::new("host-optimizer-state", Stage::Optimizer, Label::Exact)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.link.is_some() && situation.has_state())
}
