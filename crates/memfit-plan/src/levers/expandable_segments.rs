//! `expandable-segments`: segments that grow, where much of what is reserved lies in no block.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

/// From this share of what is reserved on, what lies in no block is worth a setting.
const FRAGMENTED: f64 = 0.03;

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::ExpandableSegments, turn: Turn::First, sense, instead_of: &[], with: &[] };

fn sense(asked: Asked<'_>) -> Sense {
    let idle = asked.peak.reserved.saturating_sub(asked.peak.allocated) as f64;
    when(idle > FRAGMENTED * asked.peak.reserved as f64)
}
