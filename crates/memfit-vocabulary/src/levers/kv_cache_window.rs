//! The KV cache keeps only the last tokens.

use crate::{Declaration, Docs, Harm, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn, Value};

/// Reciprocal of the share of the tokens that stay in the cache.
const PARTS: u64 = 2;

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[(Lever::KvCache8Bit, "a layer's cache is of one kind")],
    brief: "KV cache of the last N tokens only",
    sentence: Sentence::With(|moved| format!("KV cache of the last {} tokens only", moved.value)),
    search: Some(Search::new(Turn::IfMemoryShort, 240, sense)),
    docs: Docs::new("tokens", "the KV cache of transformers' models keeps only the last tokens"),
    ..Declaration::new("kv-cache-window", Stage::Model, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    let last = situation.training.tokens / PARTS;
    if last < 2 || !situation.is_worth(situation.training.cached) {
        return Sense::Nothing;
    }
    Sense::Try(Value::Count(last))
}
