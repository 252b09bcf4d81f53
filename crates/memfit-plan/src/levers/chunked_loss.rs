//! `chunked-loss`: a loss over many classes in pieces, so that the logits are never there as a whole.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

/// From so many classes on, what a loss is computed from is worth cutting.
const MANY_CLASSES: u64 = 4096;

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::ChunkedLoss, turn: Turn::First, sense, instead_of: &[], with: &[] };

fn sense(asked: Asked<'_>) -> Sense {
    when(asked.training.classes >= MANY_CLASSES)
}
