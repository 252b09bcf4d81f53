//! `8-bit-optimizer`: moments in a quarter of the bits.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const ENTRY: Entry = Entry {
    lever: Lever::EightBitOptimizer,
    turn: Turn::WhereShort,
    sense,
    instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
    with: &[],
};

fn sense(asked: Asked<'_>) -> Sense {
    when(asked.has_state())
}
