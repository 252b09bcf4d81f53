//! `quantized-weights`: the linear layers of a model that is not trained, in 8 bits.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn};
use crate::setting::Value;

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::QuantizedWeights, turn: Turn::WhereShort, sense, instead_of: &[], with: &[] };

fn sense(asked: Asked<'_>) -> Sense {
    if asked.training.optimizes || !asked.is_worth(asked.training.linears) {
        return Sense::Nothing;
    }
    Sense::Try(Value::Word("8-bit".to_owned()))
}
