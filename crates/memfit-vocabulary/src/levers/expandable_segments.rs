//! Expandable segments: segments that grow, instead of many of fixed size.

use crate::{Declaration, Docs, Label, Lever, Script, Search, Sense, Sentence, Situation, Stage, Turn};

/// Minimum share of unallocated reserved memory for which the setting is worth a try.
const FRAGMENTED: f64 = 0.03;

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[(Lever::AllocatorSettings, "`allocator-settings` sets the whole variable")],
    brief: "expandable segments: less fragmentation",
    sentence: Sentence::Words("expandable segments (`expandable_segments:True`): less fragmentation"),
    search: Some(Search::new(Turn::Always, 110, sense)),
    script: Script::Environment {
        name: "PYTORCH_CUDA_ALLOC_CONF",
        value: "expandable_segments:True",
        comment: "All PyTorch releases read this name; 2.9 added the name PYTORCH_ALLOC_CONF.",
    },
    docs: Docs::new(
        "",
        "sets `expandable_segments:True` in the environment; warns if CUDA is already initialised",
    ),
    ..Declaration::new("expandable-segments", Stage::Environment, Label::Exact)
};

fn sense(situation: &Situation<'_>) -> Sense {
    let idle = situation.reserved.saturating_sub(situation.allocated) as f64;
    Sense::when(idle > FRAGMENTED * situation.reserved as f64)
}
