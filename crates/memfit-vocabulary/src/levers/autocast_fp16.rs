//! Most operations in fp16 (autocast), with loss scaling.

use crate::{
    Declaration, Docs, Framework, Keyword, Label, Lever, Script, Search, Sense, Sentence, Situation, Stage,
    Turn,
};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[(Lever::PureBf16, "an operation runs in one data type")],
    brief: "most operations in fp16, with loss scaling",
    sentence: Sentence::Words("most operations in fp16 (autocast) with loss scaling"),
    search: Some(Search::new(Turn::Always, 50, sense)),
    script: Script::Autocast { dtype: "float16", scaled: true },
    keywords: &[
        Keyword::new(Framework::Transformers, "fp16", "True"),
        Keyword::new(Framework::Lightning, "precision", "\"16-mixed\""),
        Keyword::new(Framework::Accelerate, "mixed_precision", "\"fp16\""),
    ],
    docs: Docs::new("", "as `precision=\"fp16\"`"),
    ..Declaration::new("autocast-fp16", Stage::Step, Label::Precision)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(!situation.has_bf16 && !situation.training.reduced)
}
