//! One fused kernel updates the parameters, without temporaries.

use crate::{
    Declaration, Docs, Framework, Keyword, Label, Lever, Script, Search, Sense, Sentence, Situation, Stage,
    Turn,
};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[(Lever::ForeachOff, "one kernel for all, or one parameter at a time")],
    brief: "fused optimizer kernel, without temporaries",
    sentence: Sentence::Words("fused optimizer kernel, which needs no temporaries"),
    search: Some(Search { instead_of: &[Lever::ForeachOff], ..Search::new(Turn::Always, 10, sense) }),
    script: Script::OptimizerKeyword { keyword: "fused=True", name: "fused", instead_of: "foreach" },
    keywords: &[Keyword::new(Framework::Transformers, "optim", "\"adamw_torch_fused\"")],
    docs: Docs::new("", "the optimizer's `fused=True` kernel, which needs no temporaries"),
    ..Declaration::new("fused-optimizer", Stage::Optimizer, Label::Rounding)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.training.fusible)
}
