//! Weights that are not trained are quantized to 8 or 4 bits.

use crate::{Declaration, Docs, Label, Search, Sense, Sentence, Situation, Stage, Turn, Value};

pub(super) const LEVER: Declaration = Declaration {
    brief: "linear layers' weights quantized to 8 or 4 bits, dequantized where they are used",
    sentence: Sentence::Words("linear layers' weights quantized to 8 bits, dequantized where they are used"),
    search: Some(Search::new(Turn::IfMemoryShort, 220, sense)),
    docs: Docs::new("`\"8-bit\"`, `\"4-bit\"`", "linear layers of a model that is not trained, quantized"),
    ..Declaration::new("quantized-weights", Stage::Model, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    if situation.training.optimizes || !situation.is_worth(situation.training.linears) {
        return Sense::Nothing;
    }
    Sense::Try(Value::Word("8-bit".to_owned()))
}
