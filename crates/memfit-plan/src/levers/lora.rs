//! `lora`, `quantized-base`: small matrices are trained beside frozen weights, which then may be in 4 bits.
//!
//! They serve a model that goes on from trained weights. Beside weights that are random yet they would learn
//! next to nothing, so a training from scratch is not offered them.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn};
use crate::setting::Value;

/// The rank of the matrices.
const RANK: u64 = 16;

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::Lora, turn: Turn::WhereShort, sense: lora, instead_of: &[], with: &[] };

pub(super) const QUANTIZED: Entry = Entry {
    lever: Lever::QuantizedBase,
    turn: Turn::WhereShort,
    sense: quantized,
    instead_of: &[],
    with: &[(Lever::Lora, Value::Count(RANK))],
};

fn lora(asked: Asked<'_>) -> Sense {
    let training = asked.training;
    // Adapters are trained already where little of the model is.
    let trains_most = 2 * training.trained > training.parameters;
    // Gradients and moments of what is frozen go, and with codes most of the weights.
    if !training.optimizes || !trains_most || !asked.is_worth(training.linears + training.state) {
        return Sense::Nothing;
    }
    if !training.pretrained {
        return Sense::Against(
            "the weights are not loaded from anywhere: small matrices beside random weights would learn next to nothing"
                .to_owned(),
        );
    }
    if training.processes > 1 {
        return Sense::Against(
            "the processes that train together have exchanged their parameters already".to_owned(),
        );
    }
    Sense::Try(Value::Count(RANK))
}

fn quantized(asked: Asked<'_>) -> Sense {
    match lora(asked) {
        Sense::Try(_) => Sense::Try(Value::Word("4-bit".to_owned())),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Expected;
    use crate::search::Limits;
    use crate::trial::{Candidate, Training};

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
            let peak = Expected { device_upper: 1_000, ..Expected::default() };
            let asked = Asked { training, peak: &peak, limits: &Limits::default() };
            (lora(asked), quantized(asked))
        };
        assert_eq!(of(&tuned), (Sense::Try(Value::Count(RANK)), Sense::Try(Value::Word("4-bit".to_owned()))));
        let scratch = Training { pretrained: false, ..tuned.clone() };
        assert!(
            matches!(of(&scratch), (Sense::Against(why), Sense::Against(_)) if why.contains("random weights"))
        );
        // Adapters are trained already.
        let adapted = Training { trained: 2, state: 4, ..tuned.clone() };
        assert_eq!(of(&adapted), (Sense::Nothing, Sense::Nothing));
        let quantized = QUANTIZED.on(&Candidate::as_is(), Value::Word("4-bit".to_owned())).unwrap();
        assert_eq!(quantized.value(Lever::Lora), Some(&Value::Count(RANK)));
    }
}
