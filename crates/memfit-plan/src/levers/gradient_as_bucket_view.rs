//! `gradient-as-bucket-view`: under DistributedDataParallel, gradients are not there twice.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::GradientAsBucketView, turn: Turn::First, sense, instead_of: &[], with: &[] };

fn sense(asked: Asked<'_>) -> Sense {
    when(asked.training.replicated)
}
