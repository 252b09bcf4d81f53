//! Matrix products of fp32 in TF32.

use crate::{
    Declaration, Docs, Framework, Keyword, Label, Script, Search, Sense, Sentence, Situation, Stage, Turn,
};

pub(super) const LEVER: Declaration = Declaration {
    brief: "TF32 for fp32 matrix products",
    sentence: Sentence::Brief,
    search: Some(Search::new(Turn::Always, 60, sense)),
    script: Script::Statements(&[
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cudnn.allow_tf32 = True",
    ]),
    keywords: &[Keyword::new(Framework::Transformers, "tf32", "True")],
    docs: Docs::new("", "as `precision=\"tf32\"`"),
    ..Declaration::new("tf32", Stage::Step, Label::Precision)
};

/// With autocast, it affects the operations that stay in fp32.
fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.has_tf32 && !situation.training.half)
}
