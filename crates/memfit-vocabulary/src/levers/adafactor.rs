//! An optimizer whose second moments are factored into rows and columns.

use crate::{
    Declaration, Docs, Framework, Harm, Keyword, Label, Lever, Search, Sense, Sentence, Situation, Stage,
    Turn,
};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Rule,
    excludes: &[
        (Lever::FusedOptimizer, "Adafactor has no fused kernel"),
        (Lever::EightBitOptimizer, "rows and columns of moments are small already"),
        (Lever::Bf16OptimizerState, "rows and columns of moments are small already"),
        (Lever::HostOptimizerState, "rows and columns of moments are small already"),
        (Lever::PureBf16, "Adafactor's updates are not rounded by chance, and bf16 would lose most"),
    ],
    brief: "Adafactor in the optimizer's place",
    sentence: Sentence::Brief,
    search: Some(Search {
        instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
        ..Search::new(Turn::WhereShort, 170, sense)
    }),
    keywords: &[Keyword::new(Framework::Transformers, "optim", "\"adafactor\"")],
    docs: Docs::new("", "another optimizer, in the same object"),
    ..Declaration::new("adafactor", Stage::Optimizer, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.has_state())
}
