//! Gradient accumulation over micro-batches.

use crate::{Declaration, Docs, Label, Moved, Script, Sentence, Stage, counted};

pub(super) const LEVER: Declaration = Declaration {
    brief: "gradient accumulation over micro-batches",
    sentence: Sentence::With(sentence),
    script: Script::Accumulation,
    docs: Docs::new("samples", "gradient accumulation over micro-batches of at most this many samples"),
    ..Declaration::new("micro-batch", Stage::Step, Label::Rounding)
};

/// Inference accumulates nothing, and the text says so.
fn sentence(moved: Moved<'_>) -> String {
    let samples = counted(moved.value.count(), "sample");
    match moved.label {
        Label::Exact => format!("micro-batches of {samples}, {} per batch", moved.passes),
        _ => format!("gradient accumulation: micro-batches of {samples}, {} per step", moved.passes),
    }
}
