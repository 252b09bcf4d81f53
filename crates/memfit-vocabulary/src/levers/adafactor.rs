//! Adafactor: an optimizer whose second moments are factored into rows and columns.

use crate::{
    Declaration, Docs, Framework, Harm, Keyword, Label, Lever, Search, Sense, Sentence, Situation, Stage,
    Turn,
};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Rule,
    excludes: &[
        (Lever::FusedOptimizer, "Adafactor has no fused kernel"),
        (Lever::EightBitOptimizer, "Adafactor's factored state is small already"),
        (Lever::Bf16OptimizerState, "Adafactor's factored state is small already"),
        (Lever::HostOptimizerState, "Adafactor's factored state is small already"),
        (Lever::PureBf16, "Adafactor has no stochastic rounding, and bf16 weights would lose most updates"),
    ],
    brief: "Adafactor instead of the script's optimizer",
    sentence: Sentence::Brief,
    search: Some(Search {
        instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
        ..Search::new(Turn::IfMemoryShort, 170, sense)
    }),
    keywords: &[Keyword::new(Framework::Transformers, "optim", "\"adafactor\"")],
    docs: Docs::new("", "replaces the optimizer with Adafactor, in the same object"),
    ..Declaration::new("adafactor", Stage::Optimizer, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.has_state())
}
