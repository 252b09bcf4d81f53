//! LoRA adapters are trained on frozen weights.

use crate::{Declaration, Docs, Harm, Label, Lever, Search, Sense, Sentence, Situation, Stage, Turn, Value};

/// The rank of the adapters.
pub(super) const RANK: u64 = 16;

pub(super) const LEVER: Declaration = Declaration {
    harm: Harm::Model,
    excludes: &[
        (Lever::QuantizedWeights, "with LoRA adapters, the lever for quantized weights is `quantized-base`"),
        (Lever::Shard, "adapters are not sharded with the parameters"),
    ],
    brief: "LoRA adapters on frozen weights",
    sentence: Sentence::Words("LoRA adapters on frozen weights"),
    search: Some(Search::new(Turn::IfMemoryShort, 200, sense)),
    saves: Some(|held| (held.states + held.trained) / 10 * 9),
    docs: Docs::new("rank", "LoRA adapters on frozen weights, merged on `close()`"),
    ..Declaration::new("lora", Stage::Model, Label::ChangesTraining)
};

/// Adapters are for fine-tuning. On random weights they would learn hardly anything, so they are not offered
/// for training from scratch.
pub(super) fn sense(situation: &Situation<'_>) -> Sense {
    let training = situation.training;
    // If only a small part of the model is trained, adapters are already in use.
    let trains_most = 2 * training.trained > training.parameters;
    // Frozen weights need neither gradients nor optimizer state; quantized ones also shrink.
    if !training.optimizes || !trains_most || !situation.is_worth(training.linears + training.state) {
        return Sense::Nothing;
    }
    if !training.pretrained {
        return Sense::against(
            "no pretrained weights are loaded: LoRA adapters on random weights would learn next to nothing",
        );
    }
    if training.processes > 1 {
        return Sense::against("DDP has broadcast the parameters already, before adapters could be added");
    }
    Sense::Try(Value::Count(RANK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Training;

    #[test]
    fn adapters_are_for_weights_that_were_trained() {
        let tuned = Training {
            optimizes: true,
            pretrained: true,
            processes: 1,
            trained: 100,
            parameters: 100,
            linears: 90,
            state: 200,
            ..Training::default()
        };
        let of = |training: &Training| {
            let situation = Situation { device_upper: 1_000, ..Situation::new(training) };
            let quantized = Lever::QuantizedBase.declaration().search.unwrap();
            (sense(&situation), (quantized.sense)(&situation))
        };
        assert_eq!(of(&tuned), (Sense::Try(Value::Count(RANK)), Sense::Try(Value::Word("4-bit".to_owned()))));
        let scratch = Training { pretrained: false, ..tuned.clone() };
        assert!(
            matches!(of(&scratch), (Sense::Against(why), Sense::Against(_)) if why.contains("random weights"))
        );
        // Adapters are already in use.
        let adapted = Training { trained: 2, state: 4, ..tuned };
        assert_eq!(of(&adapted), (Sense::Nothing, Sense::Nothing));
    }
}
