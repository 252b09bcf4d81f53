//! Scaled dot-product attention (SDPA), which never materialises the attention matrix.

use crate::{Declaration, Docs, Label, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    brief: "memory-efficient attention (SDPA)",
    sentence: Sentence::Words(
        "memory-efficient attention (SDPA): the attention matrix is never materialised",
    ),
    search: Some(Search::new(Turn::Always, 30, sense)),
    docs: Docs::new(
        "",
        "sets `attn_implementation` of Hugging Face models; hand-written attention is recognised by its operations and replaced with `scaled_dot_product_attention`",
    ),
    ..Declaration::new("sdpa", Stage::Model, Label::Rounding)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.training.explicit_attention)
}
