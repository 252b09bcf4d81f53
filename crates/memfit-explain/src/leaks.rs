//! What each step leaves behind.

use std::collections::{BTreeMap, HashMap, HashSet};

use memfit_recording::{NEVER, TextId};
use memfit_vocabulary::Category;

use crate::origins::Site;
use crate::story::{Life, Story};

/// Blocks of one line, some of each step, that are still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leak {
    /// The line that asked for them, where that is known.
    pub site: Option<Site>,
    /// The module that they were made in, where that is known.
    pub module: TextId,
    /// What they are.
    pub category: Category,
    /// Bytes that stay of each step.
    pub per_step: u64,
    /// Bytes that were there at the trouble.
    pub bytes: u64,
    /// Of how many steps.
    pub steps: u64,
    /// The step in which memory runs out, if nothing else grows; absent where it is not known how much there
    /// is.
    pub dies_at: Option<u64>,
    /// Whether it is made anew with more in it each time, the old going when the new is there.
    pub made_anew: bool,
    /// The blocks, as indices in the track.
    pub blocks: Vec<u32>,
}

/// Blocks of so many steps have to be there: of two it may be that one is about to go.
const ENOUGH: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    site: Option<Site>,
    module: TextId,
    category: Category,
}

/// What each step leaves behind, most first.
pub(crate) fn leaks(story: &Story<'_>, limit: Option<u64>) -> Vec<Leak> {
    let now = story.period_of(story.trouble.moment);
    let mut by_key: HashMap<Key, Vec<(usize, &Life)>> = HashMap::new();
    // What lies in a private pool, a captured graph put there for good.
    let kept = |life: &&Life| !life.stays() && life.block.pool.0 == 0 && stays_long(story, life);
    for life in story.live().filter(kept) {
        let key = Key { site: life.site, module: life.module(), category: life.category };
        by_key.entry(key).or_default().push((story.period_of(life.block.born), life));
    }
    let mut leaks = Vec::new();
    let mut others = BTreeMap::new();
    let full = full(story, by_key.keys().copied(), now);
    by_key.retain(|key, _| !full.contains(key));
    for (key, lives) in by_key {
        match leak(key, &lives, now, if story.by_rounds { OF_ROUNDS } else { OF_STEPS }) {
            Some(leak) => leaks.push(leak),
            None => {
                others.insert(key, lives);
            }
        }
    }
    leaks.extend(replaced(story, &others, now));
    leaks.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.blocks.cmp(&other.blocks)));
    let per_step: u64 = leaks.iter().map(|leak| leak.per_step).sum();
    let room = limit.map(|limit| limit.saturating_sub(story.trouble.allocated));
    if let Some(room) = room.filter(|_| per_step > 0) {
        // So many more steps fit, and the one behind them does not.
        let dies_at = (now as u64 + 1).saturating_add(room / per_step).saturating_add(1);
        for leak in &mut leaks {
            leak.dies_at = Some(dies_at);
        }
    }
    leaks
}

/// So many parts of the run before the trouble are looked at for what takes the place of itself and grows.
const LOOKED_AT: usize = 16;
/// How often it has to have grown.
const GROWN: usize = 3;

/// Lines of which nothing stays, and of which there is more at the end of each part of the run than at the
/// end of the one before: what is collected by making it anew, with more in it each time
/// (`torch.cat([everything, new])`).
fn replaced(story: &Story<'_>, live: &BTreeMap<Key, Vec<(usize, &Life)>>, now: usize) -> Vec<Leak> {
    let ends = &story.periods()[now.saturating_sub(LOOKED_AT)..now];
    if ends.len() <= GROWN {
        return Vec::new();
    }
    // Where lengths grow, so does what a step keeps until the next: that is the batch, and no collection.
    let of_batch = |category| matches!(category, Category::Activations | Category::Temporary);
    let keys = live.keys().filter(|key| story.by_rounds || !of_batch(key.category));
    let held = held_at(story, keys.copied(), ends);
    let leak = |(key, lives): (&Key, &Vec<(usize, &Life)>)| {
        let held = held.get(key)?;
        // From where it was begun, it never shrinks.
        let begun = held.iter().rposition(|bytes| *bytes == 0).map_or(0, |none| none + 1);
        let held = &held[begun..];
        let mut grown: Vec<u64> = Vec::new();
        for pair in held.windows(2) {
            grown.push(pair[1].checked_sub(pair[0])?);
        }
        let bytes: u64 = lives.iter().map(|(_, life)| life.block.bytes).sum();
        let times = grown.iter().filter(|bytes| **bytes > 0).count();
        if times < GROWN || times * 5 < grown.len() * 3 || bytes < *held.last()? {
            return None;
        }
        grown.sort_unstable();
        Some(Leak {
            site: key.site,
            module: key.module,
            category: key.category,
            per_step: grown[grown.len() / 2],
            bytes,
            steps: grown.len() as u64 + 1,
            dies_at: None,
            made_anew: true,
            blocks: lives.iter().map(|(_, life)| life.index).collect(),
        })
    };
    live.iter().filter_map(leak).collect()
}

/// What there is of each line at these moments.
fn held_at(story: &Story<'_>, keys: impl Iterator<Item = Key>, ends: &[u32]) -> BTreeMap<Key, Vec<u64>> {
    let mut held: BTreeMap<Key, Vec<u64>> = keys.map(|key| (key, vec![0; ends.len()])).collect();
    for life in &story.lives {
        let key = Key { site: life.site, module: life.module(), category: life.category };
        let Some(held) = held.get_mut(&key).filter(|_| !life.stays() && life.block.pool.0 == 0) else {
            continue;
        };
        let first = ends.partition_point(|end| *end <= life.block.born);
        let behind = ends.partition_point(|end| *end < life.block.freed);
        for at_end in &mut held[first..behind.max(first)] {
            *at_end = at_end.saturating_add(life.block.bytes);
        }
    }
    held
}

/// Lines of which there is no more than many parts of the run ago: what they collect is full, and each that
/// comes takes another's place.
fn full(story: &Story<'_>, keys: impl Iterator<Item = Key>, now: usize) -> HashSet<Key> {
    let Some(from) = now.checked_sub(LOOKED_AT) else { return HashSet::new() };
    let held = held_at(story, keys, &story.periods()[from..now]);
    let is_full =
        |held: &[u64]| held.first().zip(held.last()).is_some_and(|(then, last)| *then > 0 && last <= then);
    held.into_iter().filter(|(_, held)| is_full(held)).map(|(key, _)| key).collect()
}

/// Whether a block was there when the part of the run that it was made in was over.
fn stays_long(story: &Story<'_>, life: &Life) -> bool {
    let born = story.period_of(life.block.born);
    let end = story.periods().get(born).copied();
    end.is_none_or(|end| life.block.freed == NEVER || life.block.freed > end)
}

/// The share of the steps since the first that left something of which something has to be there, and of
/// forward passes.
const OF_STEPS: (usize, usize) = (1, 3);
const OF_ROUNDS: (usize, usize) = (3, 5);

fn leak(key: Key, lives: &[(usize, &Life)], now: usize, share: (usize, usize)) -> Option<Leak> {
    let mut per_period: HashMap<usize, u64> = HashMap::new();
    for (period, life) in lives {
        *per_period.entry(*period).or_default() += life.block.bytes;
    }
    let first = lives.iter().map(|(period, _)| *period).min()?;
    // Where two or three models take turns, each has a step of its own, and only one of them leaves
    // something.
    let whole = now - first;
    let old = per_period.keys().filter(|period| **period < now).count();
    let enough = per_period.len() >= ENOUGH && old >= ENOUGH - 1 && old * share.1 >= whole * share.0;
    let mut sizes: Vec<u64> =
        per_period.iter().filter(|(period, _)| **period < now).map(|(_, bytes)| *bytes).collect();
    sizes.sort_unstable();
    let per_step = *sizes.get(sizes.len() / 2)?;
    enough.then(|| Leak {
        site: key.site,
        module: key.module,
        category: key.category,
        per_step,
        bytes: lives.iter().map(|(_, life)| life.block.bytes).sum(),
        steps: per_period.len() as u64,
        dies_at: None,
        made_anew: false,
        blocks: lives.iter().map(|(_, life)| life.index).collect(),
    })
}
