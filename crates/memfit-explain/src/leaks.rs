//! Detection of memory that each step leaves behind.

use std::collections::{BTreeMap, HashMap};

use memfit_recording::{NEVER, TextId};
use memfit_vocabulary::Category;

use crate::origins::Site;
use crate::timeline::{Life, Timeline};

/// Live blocks of one line that were allocated in several steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leak {
    /// Allocating line, if known.
    pub site: Option<Site>,
    /// Module in whose call they were allocated, if known.
    pub module: TextId,
    /// Category.
    pub category: Category,
    /// Bytes left by each step; by one of several steps, an average.
    pub per_step: u64,
    /// One of this many steps leaves blocks.
    pub every: usize,
    /// Bytes live at the explained moment.
    pub bytes: u64,
    /// Number of steps that they are from.
    pub steps: u64,
    /// Step in which memory runs out if nothing else grows; `None` if the limit is unknown.
    pub dies_at: Option<u64>,
    /// `true` if one block is replaced by a larger one each time, as by `torch.cat`.
    pub rebuilt: bool,
    /// Blocks, as indices in the track.
    pub blocks: Vec<u32>,
}

/// Minimum number of steps with live blocks: with two, one block may be about to be freed.
const MIN_STEPS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Key {
    site: Option<Site>,
    module: TextId,
    category: Category,
}

/// Finds leaks, largest first.
pub(crate) fn leaks(timeline: &Timeline<'_>, limit: Option<u64>) -> Vec<Leak> {
    let now = timeline.period_of(timeline.trouble.moment);
    let mut by_key: HashMap<Key, Vec<(usize, &Life)>> = HashMap::new();
    // Memory in a private pool belongs to a captured graph and stays by design.
    let kept = |life: &&Life| !life.stays() && life.block.pool.0 == 0 && outlives_step(timeline, life);
    for life in timeline.live().filter(kept) {
        let key = Key { site: life.site, module: life.module(), category: life.category };
        by_key.entry(key).or_default().push((timeline.period_of(life.block.born), life));
    }
    let mut leaks = Vec::new();
    let mut others = BTreeMap::new();
    let full_collections = full_collections(timeline, by_key.keys().copied(), now);
    by_key.retain(|key, _| full_collections.get(key) != Some(&Full::Replaced));
    let share = if timeline.by_rounds { MIN_ROUND_SHARE } else { MIN_STEP_SHARE };
    for (key, lives) in by_key {
        let is_full = full_collections.contains_key(&key);
        match leak(key, &lives, now, (!is_full).then_some(share)) {
            Some(leak) => leaks.push(leak),
            None if is_full => {}
            None => {
                others.insert(key, lives);
            }
        }
    }
    leaks.extend(rebuilt_collections(timeline, &others, now));
    leaks.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.blocks.cmp(&other.blocks)));
    let per_step: u64 = leaks.iter().map(|leak| leak.per_step).sum();
    let room = limit.map(|limit| limit.saturating_sub(timeline.trouble.allocated));
    if let Some(room) = room.filter(|_| per_step > 0) {
        // The remaining steps fit, and the one after them does not.
        let dies_at = (now as u64 + 1).saturating_add(room / per_step).saturating_add(1);
        for leak in &mut leaks {
            leak.dies_at = Some(dies_at);
        }
    }
    leaks
}

/// Number of points in the run at which the size of replaced blocks is sampled.
const SAMPLES: usize = 16;
/// Minimum number of samples at which the size has grown.
const MIN_GROWTHS: usize = 3;

/// Finds lines whose blocks are freed, but whose live bytes grow from sample to sample: collections that are
/// rebuilt with more elements each time (`torch.cat([everything, new])`).
fn rebuilt_collections(
    timeline: &Timeline<'_>,
    live: &BTreeMap<Key, Vec<(usize, &Life)>>,
    now: usize,
) -> Vec<Leak> {
    let ends = &timeline.periods()[now.saturating_sub(SAMPLES)..now];
    if ends.len() <= MIN_GROWTHS {
        return Vec::new();
    }
    // With growing sequence lengths, activations grow too: they belong to the batch and are not a collection.
    let of_batch = |category| matches!(category, Category::Activations | Category::Temporary);
    let keys = live.keys().filter(|key| timeline.by_rounds || !of_batch(key.category));
    let held = live_bytes_at(timeline, keys.map(|key| rebuilt_key(*key)), ends, rebuilt_key);
    let leak = |(key, lives): (&Key, &Vec<(usize, &Life)>)| {
        let held = held.get(&rebuilt_key(*key))?;
        // It never shrinks after it was first allocated.
        let begun = held.iter().rposition(|bytes| *bytes == 0).map_or(0, |none| none + 1);
        let held = &held[begun..];
        let mut grown: Vec<u64> = Vec::new();
        for pair in held.windows(2) {
            grown.push(pair[1].checked_sub(pair[0])?);
        }
        let bytes: u64 = lives.iter().map(|(_, life)| life.block.bytes).sum();
        let requested: u64 = lives.iter().map(|(_, life)| life.requested_bytes()).sum();
        let times = grown.iter().filter(|bytes| **bytes > 0).count();
        if times < MIN_GROWTHS || times * 5 < grown.len() * 3 || requested < *held.last()? {
            return None;
        }
        grown.sort_unstable();
        Some(Leak {
            site: key.site,
            module: key.module,
            category: key.category,
            per_step: grown[grown.len() / 2],
            every: 1,
            bytes,
            steps: grown.len() as u64 + 1,
            dies_at: None,
            rebuilt: true,
            blocks: lives.iter().map(|(_, life)| life.index).collect(),
        })
    };
    live.iter().filter_map(leak).collect()
}

/// Divisor of the request: what it adds to the tensor that it would have replaced is at most an eighth of it.
const ADDED_SHARE_DIVISOR: u64 = 8;

/// Finds the tensor that the failed request would have replaced by a slightly larger one, whatever it counts
/// as and however few steps were recorded: the only live one of the same line. Whether the line puts the old
/// one into the new one, only the source shows.
pub(crate) fn replaced(timeline: &Timeline<'_>) -> Option<Leak> {
    let trouble = timeline.trouble;
    let requested = trouble.requested?;
    let site = timeline.origins.get(trouble.stack).site()?;
    let mut live = timeline.live().filter(|life| life.site == Some(site));
    let (old, None) = (live.next()?, live.next()) else { return None };
    let added = requested.checked_sub(old.requested_bytes()).filter(|added| *added > 0)?;
    let made = timeline.lives.iter().filter(|life| life.site == Some(site));
    (added <= requested / ADDED_SHARE_DIVISOR).then(|| Leak {
        site: Some(site),
        module: old.module(),
        category: old.category,
        per_step: added,
        every: 1,
        bytes: old.block.bytes,
        steps: made.count() as u64,
        dies_at: None,
        rebuilt: true,
        blocks: vec![old.index],
    })
}

/// Key of a collection that is rebuilt. Without a backward pass, the newest copy counts as an activation,
/// since it is live, and each earlier one as temporary, since its successor replaced it.
const fn rebuilt_key(key: Key) -> Key {
    match key.category {
        Category::Temporary => Key { category: Category::Activations, ..key },
        _ => key,
    }
}

/// Requested bytes of each line that are live at these moments. The allocator may hand out a larger block for
/// a smaller tensor.
fn live_bytes_at(
    timeline: &Timeline<'_>,
    keys: impl Iterator<Item = Key>,
    ends: &[u32],
    key_of: impl Fn(Key) -> Key,
) -> BTreeMap<Key, Vec<u64>> {
    let mut held: BTreeMap<Key, Vec<u64>> = keys.map(|key| (key, vec![0; ends.len()])).collect();
    for life in &timeline.lives {
        let key = key_of(Key { site: life.site, module: life.module(), category: life.category });
        let Some(held) = held.get_mut(&key).filter(|_| !life.stays() && life.block.pool.0 == 0) else {
            continue;
        };
        let first = ends.partition_point(|end| *end <= life.block.born);
        let behind = ends.partition_point(|end| *end < life.block.freed);
        for at_end in &mut held[first..behind.max(first)] {
            *at_end = at_end.saturating_add(life.requested_bytes());
        }
    }
    held
}

/// A collection that holds no more than many steps ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    /// New blocks replace old ones.
    Replaced,
    /// No block came or went: it is complete, or only one of many steps adds to it.
    Unchanged,
}

/// Lines that hold no more than many steps ago.
fn full_collections(
    timeline: &Timeline<'_>,
    keys: impl Iterator<Item = Key>,
    now: usize,
) -> HashMap<Key, Full> {
    let Some(from) = now.checked_sub(SAMPLES) else { return HashMap::new() };
    let ends = &timeline.periods()[from..now];
    let held = live_bytes_at(timeline, keys, ends, |key| key);
    let is_full =
        |held: &[u64]| held.first().zip(held.last()).is_some_and(|(then, last)| *then > 0 && last <= then);
    let full = held.into_iter().filter(|(_, held)| is_full(held));
    let mut full: HashMap<Key, Full> = full.map(|(key, _)| (key, Full::Unchanged)).collect();
    let began = ends.first().copied().unwrap_or(0);
    let freed = |life: &&Life| {
        life.block.freed > began
            && life.block.freed <= timeline.trouble.moment
            && outlives_step(timeline, life)
    };
    for life in timeline.lives.iter().filter(freed) {
        let key = Key { site: life.site, module: life.module(), category: life.category };
        full.entry(key).and_modify(|full| *full = Full::Replaced);
    }
    full
}

/// Returns `true` if a block was live after the end of the step that allocated it.
fn outlives_step(timeline: &Timeline<'_>, life: &Life) -> bool {
    let born = timeline.period_of(life.block.born);
    let end = timeline.periods().get(born).copied();
    end.is_none_or(|end| life.block.freed == NEVER || life.block.freed > end)
}

/// Minimum share of the steps since the first leak that must have live blocks.
const MIN_STEP_SHARE: (usize, usize) = (1, 3);
const MIN_ROUND_SHARE: (usize, usize) = (3, 5);
/// Number of forward passes with live blocks that suffice with the smaller share: of two networks that are
/// called in turn, one may leave them.
const MANY_ROUNDS: usize = 16;
/// Minimum number of steps with live blocks if only some steps, at regular intervals, leave some: a picture
/// each 50 steps, a copy of the weights each epoch.
const MIN_INTERVALS: usize = 5;
/// Maximum length of an interval between such steps, in medians of the intervals.
const INTERVAL_FACTOR: usize = 3;

/// Returns the typical interval between these periods if they follow each other at similar intervals, up to
/// now.
pub(crate) fn interval(periods: impl Iterator<Item = usize>, now: usize) -> Option<usize> {
    let mut periods: Vec<usize> = periods.collect();
    periods.sort_unstable();
    let mut intervals: Vec<usize> = periods.windows(2).map(|pair| pair[1] - pair[0]).collect();
    intervals.sort_unstable();
    let (typical, last) = (*intervals.get(intervals.len() / 2)?, *periods.last()?);
    let most = typical * INTERVAL_FACTOR;
    let regular = periods.len() >= MIN_INTERVALS
        && intervals.iter().all(|interval| *interval <= most)
        && now - last <= most;
    regular.then_some(typical)
}

/// Leak of a line, if it left blocks in this share of the steps, or at intervals.
fn leak(key: Key, lives: &[(usize, &Life)], now: usize, share: Option<(usize, usize)>) -> Option<Leak> {
    let mut per_period: HashMap<usize, u64> = HashMap::new();
    for (period, life) in lives {
        *per_period.entry(*period).or_default() += life.block.bytes;
    }
    let first = lives.iter().map(|(period, _)| *period).min()?;
    // If two or three models are trained alternately, only one of their steps may leave a block.
    let whole = now - first;
    let old = per_period.keys().filter(|period| **period < now).count();
    let share = share.map(|share| if old >= MANY_ROUNDS { MIN_STEP_SHARE } else { share });
    if per_period.len() < MIN_STEPS || old < MIN_STEPS - 1 {
        return None;
    }
    let often = share.filter(|share| old * share.1 >= whole * share.0).map(|_| 1);
    let every = often.or_else(|| interval(per_period.keys().copied(), now))?;
    let mut sizes: Vec<u64> =
        per_period.iter().filter(|(period, _)| **period < now).map(|(_, bytes)| *bytes).collect();
    sizes.sort_unstable();
    let per_step = *sizes.get(sizes.len() / 2)? / every.max(1) as u64;
    Some(Leak {
        site: key.site,
        module: key.module,
        category: key.category,
        per_step,
        every,
        bytes: lives.iter().map(|(_, life)| life.block.bytes).sum(),
        steps: per_period.len() as u64,
        dies_at: None,
        rebuilt: false,
        blocks: lives.iter().map(|(_, life)| life.index).collect(),
    })
}
