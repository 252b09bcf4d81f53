//! `sdpa`: attention without its matrix.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::Sdpa, turn: Turn::First, sense, instead_of: &[], with: &[] };

fn sense(asked: Asked<'_>) -> Sense {
    when(asked.training.explicit_attention)
}
