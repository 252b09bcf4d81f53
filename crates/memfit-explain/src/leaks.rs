//! What each step leaves behind.

use std::collections::HashMap;

use memfit_levers::Category;
use memfit_recording::{NEVER, TextId};

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
    /// The step in which memory runs out, if nothing else grows; absent where it is not known how much there is.
    pub dies_at: Option<u64>,
    /// The blocks, as indices in the track.
    pub blocks: Vec<u32>,
}

/// Blocks of so many steps have to be there: of two it may be that one is about to go.
const ENOUGH: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
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
    let mut leaks: Vec<Leak> = by_key.into_iter().filter_map(|(key, lives)| leak(key, &lives, now)).collect();
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

/// Whether a block was there when the part of the run that it was made in was over.
fn stays_long(story: &Story<'_>, life: &Life) -> bool {
    let born = story.period_of(life.block.born);
    let end = story.periods().get(born).copied();
    end.is_none_or(|end| life.block.freed == NEVER || life.block.freed > end)
}

fn leak(key: Key, lives: &[(usize, &Life)], now: usize) -> Option<Leak> {
    let mut per_period: HashMap<usize, u64> = HashMap::new();
    for (period, life) in lives {
        *per_period.entry(*period).or_default() += life.block.bytes;
    }
    let first = lives.iter().map(|(period, _)| *period).min()?;
    // Of most of the parts of the run since the first of them something has to be there.
    let whole = now - first;
    let old = per_period.keys().filter(|period| **period < now).count();
    let enough = per_period.len() >= ENOUGH && old >= ENOUGH - 1 && old * 5 >= whole * 3;
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
        blocks: lives.iter().map(|(_, life)| life.index).collect(),
    })
}
