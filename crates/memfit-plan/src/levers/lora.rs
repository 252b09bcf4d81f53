//! `lora`, `quantized-base`: small matrices are trained beside frozen weights, which then may be in 4 bits.
//!
//! They serve a model that goes on from trained weights. Beside weights that are random yet they would learn next to nothing, so a
//! training from scratch is not offered them.

use memfit_levers::Lever;

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
    if !training.optimizes || !trains_most || !asked.is_worth(training.linears) {
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
