//! Most operations in bf16 (autocast).

use crate::{
    Declaration, Docs, Framework, Keyword, Label, Lever, Script, Search, Sense, Sentence, Situation, Stage,
    Turn,
};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[
        (Lever::AutocastFp16, "an operation runs in one data type"),
        (Lever::PureBf16, "everything is in bf16 already"),
    ],
    brief: "most operations in bf16",
    sentence: Sentence::Words("most operations in bf16 (autocast)"),
    search: Some(Search::new(Turn::Always, 40, sense)),
    script: Script::Autocast { dtype: "bfloat16", scaled: false },
    keywords: &[
        Keyword::new(Framework::Transformers, "bf16", "True"),
        Keyword::new(Framework::Lightning, "precision", "\"bf16-mixed\""),
        Keyword::new(Framework::Accelerate, "mixed_precision", "\"bf16\""),
    ],
    saves: Some(|held| held.sample / 10 * 3),
    docs: Docs::new("", "as `precision=\"bf16\"`"),
    ..Declaration::new("autocast-bf16", Stage::Step, Label::Precision)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.has_bf16 && !situation.training.reduced)
}
