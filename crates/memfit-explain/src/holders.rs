//! Memory at a moment as a tree of category, module and line.

use std::collections::BTreeMap;

use memfit_vocabulary::Category;

use crate::timeline::{Life, Timeline};

/// Node of the tree. The bytes of its children, if it has any, sum to its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Category, module or line.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Children, largest first.
    pub children: Vec<Holder>,
}

/// Name for an unknown module or line.
const UNKNOWN_NAME: &str = "(not known)";

/// Builds the tree of the reserved memory at the moment that `memfit explain` describes: that of the failed
/// request, or of the peak. The leaves sum to the total.
pub(crate) fn holders(timeline: &Timeline<'_>) -> Vec<Holder> {
    let mut tree: BTreeMap<(Category, String, String), (u64, u64)> = BTreeMap::new();
    let (mut in_blocks, mut rounding) = (0, 0);
    for life in timeline.live() {
        in_blocks += life.block.bytes;
        rounding += life.block.bytes - life.requested_bytes();
        let entry = tree.entry((life.category, module(timeline, life), line(timeline, life))).or_default();
        entry.0 += life.requested_bytes();
        entry.1 += 1;
    }
    let mut holders: Vec<Holder> = Vec::new();
    for ((category, module, line), (bytes, blocks)) in tree {
        let top = branch(&mut holders, category.name().to_owned(), bytes, blocks);
        let middle = branch(&mut top.children, module, bytes, blocks);
        branch(&mut middle.children, line, bytes, blocks);
    }
    let mut rest = |category: Category, bytes: u64| {
        if bytes > 0 {
            let top = branch(&mut holders, category.name().to_owned(), bytes, 0);
            if !top.children.is_empty() {
                let middle = branch(&mut top.children, UNKNOWN_NAME.to_owned(), bytes, 0);
                branch(&mut middle.children, UNKNOWN_NAME.to_owned(), bytes, 0);
            }
        }
    };
    rest(Category::Rounding, rounding);
    rest(Category::Unknown, timeline.trouble.allocated.saturating_sub(in_blocks));
    rest(
        Category::Fragmentation,
        timeline.trouble.reserved.saturating_sub(timeline.trouble.allocated.max(in_blocks)),
    );
    sort(&mut holders);
    holders
}

fn branch(of: &mut Vec<Holder>, name: String, bytes: u64, blocks: u64) -> &mut Holder {
    let place = of.iter().position(|holder| holder.name == name).unwrap_or_else(|| {
        of.push(Holder { name, bytes: 0, blocks: 0, children: Vec::new() });
        of.len() - 1
    });
    let holder = &mut of[place];
    holder.bytes += bytes;
    holder.blocks += blocks;
    holder
}

fn sort(holders: &mut [Holder]) {
    holders.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.name.cmp(&other.name)));
    for holder in holders {
        sort(&mut holder.children);
    }
}

fn module(timeline: &Timeline<'_>, life: &Life) -> String {
    let name = timeline.track.texts.get(life.module());
    if name.is_empty() { UNKNOWN_NAME.to_owned() } else { name.to_owned() }
}

/// Line that allocated a block, formatted for people.
pub(crate) fn line(timeline: &Timeline<'_>, life: &Life) -> String {
    life.site.map_or_else(|| UNKNOWN_NAME.to_owned(), |site| site.text(timeline.track))
}
