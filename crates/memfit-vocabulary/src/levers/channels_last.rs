//! Images and filters in the `channels_last` memory format.

use crate::{Declaration, Docs, Label, ModelChange, Script, Search, Sense, Sentence, Situation, Stage, Turn};

pub(super) const LEVER: Declaration = Declaration {
    brief: "`channels_last` memory format",
    sentence: Sentence::Brief,
    search: Some(Search::new(Turn::Always, 70, sense)),
    script: Script::Model(&[ModelChange::Each {
        statement: "{model}.to(memory_format=torch.channels_last)",
        imports: &["torch"],
    }]),
    docs: Docs::new("", "convolution filters and images in the `channels_last` memory format"),
    ..Declaration::new("channels-last", Stage::Model, Label::Rounding)
};

fn sense(situation: &Situation<'_>) -> Sense {
    Sense::when(situation.training.convolves)
}
