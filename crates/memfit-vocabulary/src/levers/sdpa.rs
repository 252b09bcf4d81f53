//! Attention whose matrix is never materialised (SDPA).

use crate::{Declaration, Docs, Label, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    brief: "attention without its matrix",
    sentence: Sentence::Words("attention without its matrix (SDPA)"),
    search: Some(Search::new(Turn::First, 30, sense)),
    docs: Docs::new(
        "",
        "Hugging Face models are told; attention that is written out is recognised by its operations, and becomes `scaled_dot_product_attention`",
    ),
    ..Declaration::new("sdpa", Stage::Model, Label::Rounding)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.training.explicit_attention)
}
