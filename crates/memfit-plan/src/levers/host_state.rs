//! `host-optimizer-state`: moments wait in the host's memory, and come over the link for each update.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const ENTRY: Entry = Entry {
    lever: Lever::HostOptimizerState,
    turn: Turn::WhereShort,
    sense,
    instead_of: &[Lever::FusedOptimizer, Lever::ForeachOff],
    with: &[],
};

fn sense(asked: Asked<'_>) -> Sense {
    when(asked.limits.link.is_some() && asked.has_state())
}
