//! KV cache in 8 bits.

use crate::{Declaration, Docs, Label, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    brief: "8-bit KV cache",
    sentence: Sentence::Brief,
    search: Some(Search::new(Turn::IfMemoryShort, 230, sense)),
    docs: Docs::new("", "the KV cache of transformers' models in 8 bits"),
    ..Declaration::new("kv-cache-8-bit", Stage::Model, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.is_worth(situation.training.cached))
}
