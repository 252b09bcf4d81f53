//! Chunked cross-entropy: the full logits are never materialised.

use crate::{Declaration, Docs, Label, Search, Sense, Sentence, Situation, Stage, Turn};

/// Minimum number of classes for which chunked cross-entropy is worth a try.
const MANY_CLASSES: u64 = 4096;

pub(super) const LEVER: Declaration = Declaration {
    brief: "chunked cross-entropy: the full logits are never materialised",
    sentence: Sentence::Words("chunked cross-entropy: the full logits are never materialised"),
    search: Some(Search::new(Turn::Always, 80, sense)),
    docs: Docs::new(
        "tokens, or `head=NAME,tokens=N`",
        "chunked cross-entropy: the last layer's logits and their gradients are computed chunk by chunk (in fp16, once more in the backward pass); other uses of the logits still materialise them in full",
    ),
    ..Declaration::new("chunked-loss", Stage::Model, Label::Rounding)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.training.classes >= MANY_CLASSES)
}
