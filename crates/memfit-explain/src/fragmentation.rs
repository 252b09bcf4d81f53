//! How much is reserved and cannot be used.

use std::collections::BTreeMap;

use crate::explanation::Fragmentation;
use crate::story::Story;

/// The gaps between blocks, at the moment that is explained.
pub(crate) fn fragmentation(story: &Story<'_>) -> Fragmentation {
    let trouble = story.trouble;
    let unused = trouble.reserved.saturating_sub(trouble.allocated);
    let share = if trouble.reserved == 0 { 0.0 } else { unused as f64 / trouble.reserved as f64 };
    let mut figures = Fragmentation { unused, share, ..Fragmentation::default() };
    let spans: Vec<_> = story
        .track
        .spans
        .iter()
        .filter(|span| span.device == story.device && span.is_live_at(trouble.moment))
        .collect();
    if spans.is_empty() {
        return figures;
    }
    let blocks: BTreeMap<u64, u64> =
        story.live().map(|life| (life.block.address, life.block.bytes)).collect();
    let (mut largest, mut count) = (0, 0);
    for span in spans {
        let end = span.address.saturating_add(span.bytes);
        let mut at = span.address;
        let mut gap = |from: u64, to: u64| {
            if to > from {
                largest = largest.max(to - from);
                count += 1;
                if span.pool.0 != 0 {
                    figures.in_private_pools += to - from;
                }
            }
        };
        for (&address, &bytes) in blocks.range(span.address..end) {
            gap(at, address);
            at = at.max(address.saturating_add(bytes));
        }
        gap(at, end);
    }
    figures.largest_free = Some(largest);
    figures.free_blocks = Some(count);
    figures
}
