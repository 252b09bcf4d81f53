//! The memory that the arguments of a launch lead to.

use super::Arguments;
use crate::memory::{Memory, Reach};

/// As many addresses of one launch are looked at.
const MOST_ADDRESSES: usize = 64;

/// The blocks of memory that the arguments of a launch lead to, each address once.
pub(crate) struct Operands(Vec<(u64, Reach)>);

impl Operands {
    /// Looks at every aligned word of every parameter: structures hold addresses too. What is no address of a
    /// card leads to nothing.
    pub(crate) fn of(arguments: Arguments, memory: &dyn Memory) -> Self {
        let mut found: Vec<(u64, Reach)> = Vec::new();
        for index in 0..arguments.params().map_or(0, <[_]>::len) {
            for address in arguments.words(index) {
                if found.len() < MOST_ADDRESSES
                    && !found.iter().any(|(known, _)| *known == address)
                    && let Some(reach) = memory.reach(address)
                {
                    found.push((address, reach));
                }
            }
        }
        Self(found)
    }

    /// Bytes that each address leads to, where none leads to more than `most`. An address inside of a block
    /// may be of a part of it, as weights in one flat buffer are: it counts for no more than the largest
    /// whole block beside it.
    pub(crate) fn bytes(&self, most: f64) -> Vec<f64> {
        let whole = self.0.iter().filter(|(_, reach)| reach.first).map(|(_, reach)| reach.bytes).max();
        let each = |reach: &Reach| match whole {
            Some(whole) if !reach.first => reach.bytes.min(whole),
            _ => reach.bytes,
        };
        self.0.iter().map(|(_, reach)| (each(reach) as f64).min(most)).collect()
    }
}
