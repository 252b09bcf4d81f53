//! Chunked cross-entropy: the full logits are never materialised.

use crate::{Declaration, Docs, Label, Search, Sense, Sentence, Situation, Stage, Turn};

/// A loss over at least so many classes is worth cutting.
const MANY_CLASSES: u64 = 4096;

pub(super) const LEVER: Declaration = Declaration {
    brief: "the loss over pieces of the logits",
    sentence: Sentence::Words("the loss in pieces, so that the logits are never there as a whole"),
    search: Some(Search::new(Turn::First, 80, sense)),
    docs: Docs::new(
        "tokens, or `head=NAME,tokens=N`",
        "the last layer's logits are made piece by piece inside `cross_entropy`, and the gradients with them (in fp16, again in the backward); whatever else asks for them gets them",
    ),
    ..Declaration::new("chunked-loss", Stage::Model, Label::Rounding)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.training.classes >= MANY_CLASSES)
}
