//! Gradient accumulation over micro-batches.

use crate::{Declaration, Docs, Label, Moved, Script, Sentence, Stage, counted};

pub(super) const LEVER: Declaration = Declaration {
    brief: "the batch in pieces, gradients added up",
    sentence: Sentence::With(sentence),
    script: Script::Accumulation,
    docs: Docs::new("samples", "gradient accumulation over micro-batches of at most so many samples"),
    ..Declaration::new("micro-batch", Stage::Step, Label::Rounding)
};

/// Where there is no training, nothing is added up, and the label says so.
fn sentence(moved: Moved<'_>) -> String {
    let samples = counted(moved.value.count(), "sample");
    match moved.label {
        Label::Exact => format!("{samples} at a time, {} passes for each batch", moved.passes),
        _ => format!("{samples} at a time, {} times a step, gradients added up", moved.passes),
    }
}
