//! Optimizer state in host memory, brought over for each update.

use crate::{Declaration, Docs, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    brief: "optimizer state in the host's memory",
    sentence: Sentence::Words("the optimizer's state in the host's memory"),
    search: Some(Search {
        instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
        ..Search::new(Turn::WhereShort, 140, sense)
    }),
    saves: Some(|held| held.states),
    docs: Docs::new(
        "",
        "moments wait in host memory between steps, and come over for a few parameters at a time; a checkpoint has them in full",
    ),
    ..Declaration::new("host-optimizer-state", Stage::Optimizer, Label::Exact)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.link.is_some() && situation.has_state())
}
