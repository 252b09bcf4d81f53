//! Who held the memory at a moment, as a tree that adds up: category, module, line.

use std::collections::BTreeMap;

use memfit_vocabulary::Category;

use crate::story::{Life, Story};

/// A branch of the tree. What its children hold is what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The category, the module or the line.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// How many blocks that is.
    pub blocks: u64,
    /// What it is made of, most first.
    pub children: Vec<Holder>,
}

/// Where nothing is known of a module or a line.
const NOT_KNOWN: &str = "(not known)";

/// What was reserved at the trouble, by category, module and line. The branches add up to it.
pub(crate) fn holders(story: &Story<'_>) -> Vec<Holder> {
    let mut tree: BTreeMap<(Category, String, String), (u64, u64)> = BTreeMap::new();
    let (mut in_blocks, mut rounding) = (0, 0);
    for life in story.live() {
        in_blocks += life.block.bytes;
        rounding += life.block.bytes - life.asked();
        let entry = tree.entry((life.category, module(story, life), line(story, life))).or_default();
        entry.0 += life.asked();
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
                let middle = branch(&mut top.children, NOT_KNOWN.to_owned(), bytes, 0);
                branch(&mut middle.children, NOT_KNOWN.to_owned(), bytes, 0);
            }
        }
    };
    rest(Category::Rounding, rounding);
    rest(Category::Unknown, story.trouble.allocated.saturating_sub(in_blocks));
    rest(
        Category::Fragmentation,
        story.trouble.reserved.saturating_sub(story.trouble.allocated.max(in_blocks)),
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

fn module(story: &Story<'_>, life: &Life) -> String {
    let name = story.track.texts.get(life.module());
    if name.is_empty() { NOT_KNOWN.to_owned() } else { name.to_owned() }
}

/// The line that asked for a block, as people write it.
pub(crate) fn line(story: &Story<'_>, life: &Life) -> String {
    life.site.map_or_else(|| NOT_KNOWN.to_owned(), |site| site.text(story.track))
}
