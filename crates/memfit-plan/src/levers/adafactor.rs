//! `adafactor`: another optimizer, whose second moments are rows and columns.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const ENTRY: Entry = Entry {
    lever: Lever::Adafactor,
    turn: Turn::WhereShort,
    sense,
    instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
    with: &[],
};

fn sense(asked: Asked<'_>) -> Sense {
    when(asked.has_state())
}
