//! `channels-last`: pictures as the tensor cores of convolutions want them.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};

pub(super) const ENTRY: Entry =
    Entry { lever: Lever::ChannelsLast, turn: Turn::First, sense, instead_of: &[], with: &[] };

fn sense(asked: Asked<'_>) -> Sense {
    when(asked.training.convolves)
}
