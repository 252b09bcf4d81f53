//! Parameters are updated one by one.

use crate::{Declaration, Docs, Label, Script, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    brief: "parameters are updated one at a time (`foreach=False`)",
    sentence: Sentence::Words("the optimizer updates one parameter at a time (`foreach=False`)"),
    search: Some(Search::new(Turn::Always, 20, sense)),
    script: Script::OptimizerKeyword { keyword: "foreach=False", name: "foreach", instead_of: "fused" },
    docs: Docs {
        value: "",
        effect: "parameters are updated one by one, with temporaries of one parameter at a time",
        label: "rounding for NAdam, RAdam, ASGD and Adafactor",
    },
    ..Declaration::new("foreach-off", Stage::Optimizer, Label::Exact)
};

/// Without a fused kernel, updating one parameter at a time has the smallest temporaries.
fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.training.foreach && !situation.training.fusible)
}
