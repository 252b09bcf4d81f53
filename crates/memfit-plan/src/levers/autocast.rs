//! `autocast-bf16`, `autocast-fp16`: most operations in 16 bits, of the type that the card computes fast
//! with.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const BF16: Entry =
    Entry { lever: Lever::AutocastBf16, turn: Turn::First, sense: bf16, instead_of: &[], with: &[] };

pub(super) const FP16: Entry =
    Entry { lever: Lever::AutocastFp16, turn: Turn::First, sense: fp16, instead_of: &[], with: &[] };

fn bf16(asked: Asked<'_>) -> Sense {
    when(asked.limits.has_bf16 && !asked.training.reduced)
}

fn fp16(asked: Asked<'_>) -> Sense {
    when(!asked.limits.has_bf16 && !asked.training.reduced)
}
