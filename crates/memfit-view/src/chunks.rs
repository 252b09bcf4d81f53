//! Levels of detail for blocks: sorted by lifetime, so that a page that shows a long time only loads blocks
//! wide enough to be visible.

use std::ops::Range;

use serde::Serialize;

use crate::Piece;
use crate::columns::Columns;

/// Maximum lifetime in ticks of the first level's blocks; each further level's is four times as long.
pub const FIRST_LEVEL_MAX_LIFE: u32 = 64;
/// Blocks in a chunk.
pub const CHUNK_BLOCKS: usize = 16_384;

/// Chunk of blocks of one level, with its time range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chunk {
    /// Level of lifetime.
    pub level: u8,
    /// Number of blocks.
    pub count: usize,
    /// Tick of the first allocation.
    pub from: u32,
    /// Tick of the last allocation.
    pub to: u32,
    /// First tick at which all blocks are freed.
    pub gone: u32,
    /// Number of its section.
    pub section: usize,
}

/// Level of a lifetime.
pub fn life_level(life: u32) -> u8 {
    let mut level = 0;
    let mut longest = FIRST_LEVEL_MAX_LIFE;
    while life > longest {
        longest = longest.saturating_mul(4);
        level += 1;
    }
    level
}

/// Order in which the page receives the blocks (indices of `pieces`, which are sorted by birth), and the
/// range of each chunk in it. Sections are numbered from zero.
pub fn blocks_in_chunks(pieces: &[Piece]) -> (Vec<u32>, Vec<(Chunk, Range<usize>)>) {
    let levels: Vec<u8> = pieces.iter().map(|piece| life_level(piece.life())).collect();
    let mut order: Vec<u32> = (0..pieces.len() as u32).collect();
    // Stable: within a level, blocks stay sorted by birth.
    order.sort_by_key(|place| levels[*place as usize]);
    let mut chunks = Vec::new();
    let mut start = 0;
    while start < order.len() {
        let level = levels[order[start] as usize];
        let same =
            order[start..].iter().take(CHUNK_BLOCKS).take_while(|place| levels[**place as usize] == level);
        let range = start..start + same.count();
        let of_chunk = order[range.clone()].iter().map(|place| &pieces[*place as usize]);
        let chunk = Chunk {
            level,
            count: range.len(),
            from: of_chunk.clone().map(|piece| piece.born).min().unwrap_or_default(),
            to: of_chunk.clone().map(|piece| piece.born).max().unwrap_or_default(),
            gone: of_chunk.map(|piece| piece.freed.max(piece.reusable)).max().unwrap_or_default(),
            section: chunks.len(),
        };
        start = range.end;
        chunks.push((chunk, range));
    }
    (order, chunks)
}

/// Section of a chunk.
pub(crate) fn section(pieces: &[Piece], order: &[u32]) -> Vec<u8> {
    let of_chunk = || order.iter().map(|place| &pieces[*place as usize]);
    let mut columns = Columns::default();
    columns.deltas(of_chunk().map(|piece| u64::from(piece.born)));
    columns.numbers(of_chunk().map(|piece| u64::from(piece.freed - piece.born)));
    columns.numbers(of_chunk().map(|piece| u64::from(piece.reusable.saturating_sub(piece.freed))));
    columns.numbers(of_chunk().map(|piece| piece.asked));
    columns.numbers(of_chunk().map(|piece| piece.rounding));
    columns.deltas(of_chunk().map(|piece| piece.address));
    columns.numbers(of_chunk().map(|piece| u64::from(piece.category.code())));
    columns.numbers(of_chunk().map(|piece| u64::from(piece.stack)));
    columns.numbers(of_chunk().map(|piece| u64::from(piece.module)));
    columns.pack()
}

#[cfg(test)]
mod tests {
    use memfit_vocabulary::Category;
    use proptest::prelude::*;

    use super::*;

    /// A block that is freed after `life` ticks, and reusable `wait` ticks later.
    fn piece(born: u32, life: u32, wait: u32) -> Piece {
        Piece {
            address: 0,
            asked: 1,
            rounding: 0,
            born,
            freed: born + life,
            reusable: born + life + wait,
            stack: 0,
            module: 0,
            category: Category::Unknown,
        }
    }

    #[test]
    fn levels_of_lives_are_four_times_as_long_each() {
        let cases = [(0, 0), (64, 0), (65, 1), (256, 1), (257, 2), (1024, 2), (u32::MAX, 13)];
        for (life, level) in cases {
            assert_eq!(life_level(life), level, "a life of {life}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Each block is in one chunk, and the chunks' bounds alone lead to every block that was not reusable
        /// at a tick.
        #[test]
        fn nothing_is_lost(lives in proptest::collection::vec((0..50_u32, 0..100_000_u32, 0..1_000_u32), 0..3000)) {
            let mut born = 0;
            let pieces: Vec<Piece> = lives.iter().map(|(gap, life, wait)| { born += gap; piece(born, *life, *wait) }).collect();
            let (order, chunks) = blocks_in_chunks(&pieces);
            let mut seen = order.clone();
            seen.sort_unstable();
            prop_assert!(seen.iter().copied().eq(0..pieces.len() as u32));
            let mut next = 0;
            for (chunk, range) in &chunks {
                prop_assert_eq!(range.start, next);
                next = range.end;
                prop_assert!(chunk.count <= CHUNK_BLOCKS);
                for place in &order[range.clone()] {
                    let piece = &pieces[*place as usize];
                    prop_assert_eq!(life_level(piece.life()), chunk.level);
                    prop_assert!(chunk.from <= piece.born && piece.born <= chunk.to);
                    prop_assert!(piece.freed.max(piece.reusable) <= chunk.gone);
                }
            }
            prop_assert_eq!(next, pieces.len());
        }
    }
}
