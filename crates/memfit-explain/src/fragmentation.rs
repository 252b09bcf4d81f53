//! Fragmentation at the explained moment.

use std::collections::BTreeMap;

use crate::explanation::Fragmentation;
use crate::timeline::Timeline;

/// Measures the gaps between blocks at the explained moment.
pub(crate) fn fragmentation(timeline: &Timeline<'_>) -> Fragmentation {
    let trouble = timeline.trouble;
    let unused = trouble.reserved.saturating_sub(trouble.allocated);
    let share = if trouble.reserved == 0 { 0.0 } else { unused as f64 / trouble.reserved as f64 };
    let mut figures = Fragmentation { unused, share, ..Fragmentation::default() };
    let spans: Vec<_> = timeline
        .track
        .spans
        .iter()
        .filter(|span| span.device == timeline.device && span.is_live_at(trouble.moment))
        .collect();
    if spans.is_empty() {
        return figures;
    }
    let blocks: BTreeMap<u64, u64> =
        timeline.live().map(|life| (life.block.address, life.block.bytes)).collect();
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
