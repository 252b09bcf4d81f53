//! Memory that the arguments of a launch lead to.

use super::Arguments;
use crate::memory::{Memory, Reach};

/// Maximum addresses of a launch that are looked up.
const MAX_ADDRESSES: usize = 64;

/// Blocks of memory that the arguments of a launch lead to, each address once.
pub(crate) struct Operands(Vec<(u64, Reach)>);

impl Operands {
    /// Looks up every aligned word of every parameter, since structures hold addresses too. Words that are no
    /// device address are skipped.
    pub(crate) fn look_up(arguments: Arguments, memory: &dyn Memory) -> Self {
        let mut found: Vec<(u64, Reach)> = Vec::new();
        for index in 0..arguments.params().map_or(0, <[_]>::len) {
            for address in arguments.words(index) {
                if found.len() < MAX_ADDRESSES
                    && !found.iter().any(|(known, _)| *known == address)
                    && let Some(reach) = memory.reach(address)
                {
                    found.push((address, reach));
                }
            }
        }
        Self(found)
    }

    /// Bytes behind each address, at most `most`. An address inside a block may refer to a part of it, as
    /// with weights in one flat buffer: it counts at most as much as the largest whole block among the
    /// operands.
    pub(crate) fn bytes(&self, most: f64) -> Vec<f64> {
        let whole = self.0.iter().filter(|(_, reach)| reach.first).map(|(_, reach)| reach.bytes).max();
        let each = |reach: &Reach| match whole {
            Some(whole) if !reach.first => reach.bytes.min(whole),
            _ => reach.bytes,
        };
        self.0.iter().map(|(_, reach)| (each(reach) as f64).min(most)).collect()
    }
}
