//! Frozen weights under LoRA adapters are quantized to 8 or 4 bits.

use super::lora;
use crate::{Declaration, Docs, Harm, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn, Value};

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::QuantizedWeights, "a weight has one data type"),
        (Lever::PureBf16, "a weight has one data type"),
        (Lever::Shard, "quantized weights cannot be sharded"),
    ],
    needs: Some(Lever::Lora),
    brief: "frozen weights under LoRA adapters quantized to 8 or 4 bits (QLoRA)",
    sentence: Sentence::Words("frozen weights quantized to 4 bits (QLoRA)"),
    search: Some(Search {
        with: &[(Lever::Lora, Value::Count(lora::RANK))],
        ..Search::new(Turn::IfMemoryShort, 210, sense)
    }),
    docs: Docs::new("`\"8-bit\"`, `\"4-bit\"`", "the frozen weights under `lora`, quantized"),
    ..Declaration::new("quantized-base", Stage::Model, Label::ChangesTraining)
};

fn sense(situation: &Situation<'_>) -> Sense {
    match lora::sense(situation) {
        Sense::Try(_) => Sense::Try(Value::Word("4-bit".to_owned())),
        other => other,
    }
}
