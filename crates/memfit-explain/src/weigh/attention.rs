//! Attention that is written out, and so materialises its matrices of scores and weights.

use std::cmp::Reverse;
use std::collections::HashMap;

use memfit_patch::RecordedFacts;
use memfit_vocabulary::{Category, Lever};

use crate::analysis::{Analysis, modelled_fix};
use crate::explanation::{Apply, Fix};
use crate::origins::Site;
use crate::timeline::Life;

/// Maximum number of lines that are searched for attention, those with the most memory first.
const MAX_LINES: usize = 8;

/// Remedy for the attention that holds the most memory.
pub(super) fn remedy(analysis: &Analysis<'_>) -> Option<Fix> {
    let timeline = &analysis.timeline;
    let of_step = |life: &&Life| matches!(life.category, Category::Activations | Category::Temporary);
    // By line: all bytes, and the largest block.
    let mut by_site: HashMap<Site, (u64, u64)> = HashMap::new();
    for life in timeline.live().filter(of_step) {
        let Some(site) = life.site else { continue };
        let (bytes, largest) = by_site.entry(site).or_default();
        *bytes += life.block.bytes;
        *largest = life.block.bytes.max(*largest);
    }
    let mut sites: Vec<_> = by_site.into_iter().collect();
    sites.sort_by_key(|(site, (bytes, _))| (Reverse(*bytes), *site));
    sites.into_iter().take(MAX_LINES).find_map(|(site, (_, largest))| {
        // Queries, keys and values of the same function are smaller than the matrices.
        let is_matrix = |life: &&Life| {
            let same_code =
                life.site.is_some_and(|own| (own.file, own.function) == (site.file, site.function));
            same_code && life.block.bytes * 2 >= largest
        };
        let saves = timeline.live().filter(of_step).filter(is_matrix).map(|life| life.block.bytes).sum();
        remedy_at(analysis, &[site], saves)
    })
}

/// Remedy for attention at one of these lines; `None` if there is none.
pub(super) fn remedy_at(analysis: &Analysis<'_>, sites: &[Site], saves: u64) -> Option<Fix> {
    let how = "`F.scaled_dot_product_attention(q, k, v)` computes the same without materialising the attention matrix";
    match analysis.change(Lever::Sdpa, sites, RecordedFacts::Nothing) {
        // The source has no attention at these lines.
        Apply::ByHand(None) => None,
        apply => Some(modelled_fix(analysis, Lever::Sdpa, saves, how.to_owned(), apply)),
    }
}
