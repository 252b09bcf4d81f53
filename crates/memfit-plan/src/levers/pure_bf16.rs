//! `pure-bf16`: weights, gradients and moments in bf16, and nothing in fp32 beside them.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const ENTRY: Entry = Entry {
    lever: Lever::PureBf16,
    turn: Turn::WhereShort,
    sense,
    instead_of: &[Lever::AutocastBf16, Lever::AutocastFp16],
    with: &[],
};

fn sense(asked: Asked<'_>) -> Sense {
    when(asked.limits.has_bf16 && !asked.training.half && asked.is_worth(asked.training.trained))
}
