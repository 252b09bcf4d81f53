//! `fused-optimizer`: one kernel updates the parameters, without temporaries.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const ENTRY: Entry = Entry {
    lever: Lever::FusedOptimizer,
    turn: Turn::First,
    sense,
    instead_of: &[Lever::ForeachOff],
    with: &[],
};

fn sense(asked: Asked<'_>) -> Sense {
    when(asked.training.fusible)
}
