//! `tf32`: products of fp32 matrices on tensor cores. Beside autocast it acts on what stays in fp32.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::Tf32, turn: Turn::First, sense, instead_of: &[], with: &[] };

fn sense(asked: Asked<'_>) -> Sense {
    when(asked.limits.has_tf32 && !asked.training.half)
}
