//! `foreach-off`: where there is no fused kernel, parameters one by one have the smallest temporaries.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::ForeachOff, turn: Turn::First, sense, instead_of: &[], with: &[] };

fn sense(asked: Asked<'_>) -> Sense {
    when(asked.training.foreach && !asked.training.fusible)
}
