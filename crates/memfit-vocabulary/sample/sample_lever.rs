//! A lever that exists in one test only: every other tensor is freed.
//!
//! `crates/memfit-report/tests/sample_lever.rs` builds with it, and checks that it appears wherever levers
//! are listed. Its Python part is `tests/python/sample/sample_lever.py`.

use crate::{
    Declaration, Docs, Label, Lever, ModelChange, Script, Search, Sense, Sentence, Situation, Stage, Turn,
};

pub(super) const LEVER: Declaration = Declaration {
    excludes: &[(Lever::Compile, "a compiler forgets nothing")],
    brief: "every other tensor is forgotten",
    sentence: Sentence::With(|moved| format!("{} tensors are forgotten", moved.value)),
    search: Some(Search::new(Turn::IfMemoryShort, 999, sense)),
    script: Script::Model(&[ModelChange::Each { statement: "{model}.forget()", imports: &["torch"] }]),
    docs: Docs::new("tensors", "so many tensors are forgotten"),
    ..Declaration::new("sample-lever", Stage::Model, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.training.optimizes)
}
