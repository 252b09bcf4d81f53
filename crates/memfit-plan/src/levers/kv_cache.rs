//! `kv-cache-8-bit`, `kv-cache-window`: what a language model keeps of the tokens so far.

use memfit_vocabulary::Lever;

use super::{Asked, Entry, Sense, Turn, when};
use crate::setting::Value;

/// Of the tokens that were kept, the last of so many parts are.
const PARTS: u64 = 2;

pub(super) const EIGHT_BIT: Entry =
    Entry { lever: Lever::KvCache8Bit, turn: Turn::WhereShort, sense: eight_bit, instead_of: &[], with: &[] };

pub(super) const WINDOW: Entry =
    Entry { lever: Lever::KvCacheWindow, turn: Turn::WhereShort, sense: window, instead_of: &[], with: &[] };

fn eight_bit(asked: Asked<'_>) -> Sense {
    when(asked.is_worth(asked.training.cached))
}

fn window(asked: Asked<'_>) -> Sense {
    let last = asked.training.tokens / PARTS;
    if last < 2 || !asked.is_worth(asked.training.cached) {
        return Sense::Nothing;
    }
    Sense::Try(Value::Count(last))
}
