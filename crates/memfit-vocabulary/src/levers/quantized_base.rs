//! Frozen weights beside LoRA adapters in 8 or 4 bits.

use super::lora;
use crate::{Declaration, Docs, Harm, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn, Value};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::QuantizedWeights, "a weight has one type"),
        (Lever::PureBf16, "a weight has one type"),
        (Lever::Shard, "packed weights cannot be sharded"),
    ],
    needs: Some(Lever::Lora),
    brief: "frozen weights beside LoRA adapters in 8 or 4 bits",
    sentence: Sentence::Words("the frozen weights in 4 bits"),
    search: Some(Search {
        with: &[(Lever::Lora, Value::Count(lora::RANK))],
        ..Search::new(Turn::WhereShort, 210, sense)
    }),
    docs: Docs::new("`\"8-bit\"`, `\"4-bit\"`", "the frozen weights beside `lora` in codes"),
    ..Declaration::new("quantized-base", Stage::Model, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    match lora::sense(situation) {
        Sense::Try(_) => Sense::Try(Value::Word("4-bit".to_owned())),
        other => other,
    }
}
