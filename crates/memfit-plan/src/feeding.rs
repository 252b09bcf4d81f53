//! `memfit data --loader`: which settings of a script's own `DataLoader` keep up with the card, of those that
//! were measured on this host.

use crate::Host;

/// The pace of a number of workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Given {
    /// The number.
    pub workers: u64,
    /// Milliseconds in which it makes a batch.
    pub batch_ms: f64,
    /// Milliseconds to the first batch.
    pub start_ms: f64,
    /// Bytes of the workers' own memory.
    pub memory: u64,
}

/// The script's batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batches {
    /// Bytes of one.
    pub bytes: u64,
    /// Milliseconds in which one process made the slowest of them.
    pub slowest_ms: f64,
    /// They lie on the card already.
    pub on_card: bool,
}

/// A card that is fed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fed {
    /// Milliseconds from one batch to the next.
    pub period_ms: f64,
    /// The share of that time in which the card waits.
    pub waits: f64,
}

/// The settings that keep up with the least, or, if none does, those that come closest.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// `num_workers`.
    pub workers: u64,
    /// `prefetch_factor`; nothing without workers.
    pub prefetch: Option<u64>,
    /// `pin_memory`.
    pub pinned: bool,
    /// `persistent_workers`.
    pub persistent: bool,
    /// The card would not wait; nothing where its time is not known.
    pub keeps_up: Option<bool>,
    /// Why, in one sentence.
    pub why: String,
}

/// How much faster than the card a loader has to be, so that an uneven batch does not show.
const MARGIN: f64 = 1.1;
/// Two rates that differ by less are taken for the same.
const SAME: f64 = 1.05;
/// Loading between the steps is borne up to this share of them.
const BORNE: f64 = 0.05;
/// The share of a limit of the host that is taken, as one over this.
const SHARE: u64 = 2;
/// Batches that a worker is ahead, as PyTorch has it, and the most that is proposed.
const PREFETCH: (u64, u64) = (2, 8);

/// How a card that takes so long for a batch is fed: without workers, loading comes between the steps.
pub fn expected(given: &Given, card_ms: f64) -> Fed {
    let period_ms = if given.workers == 0 { given.batch_ms + card_ms } else { given.batch_ms.max(card_ms) };
    Fed { period_ms, waits: 1.0 - card_ms / period_ms }
}

/// Settings for a card that takes so long for a batch, where that is known; nothing where nothing was
/// measured.
pub fn propose(given: &[Given], batches: &Batches, card_ms: Option<f64>, host: &Host) -> Option<Proposal> {
    let usable: Vec<&Given> =
        given.iter().filter(|one| one.batch_ms.is_finite() && one.batch_ms > 0.0).collect();
    if batches.on_card {
        let one = usable.iter().find(|one| one.workers == 0)?;
        return Some(Proposal {
            keeps_up: card_ms.map(|card| keeps_up(one, card)),
            ..of(
                one,
                batches,
                card_ms,
                "batches are on the GPU already, and worker processes cannot share that".to_owned(),
            )
        });
    }
    let mut borne: Vec<&Given> = usable.iter().copied().filter(|one| bears(one, batches, host)).collect();
    borne.sort_by_key(|one| one.workers);
    let best = borne.iter().copied().min_by(|a, b| a.batch_ms.total_cmp(&b.batch_ms))?;
    let enough = card_ms.and_then(|card| borne.iter().copied().find(|one| keeps_up(one, card)));
    let closest = borne.iter().copied().find(|one| one.batch_ms <= best.batch_ms * SAME).unwrap_or(best);
    let (chosen, why) = match (enough, card_ms) {
        (Some(one), Some(_)) if one.workers == 0 => {
            (one, "loading takes almost no time compared with a step".to_owned())
        }
        (Some(one), Some(card)) => (
            one,
            format!(
                "the fewest workers that loaded a batch well within the {} ms that the GPU takes for it",
                figure(card)
            ),
        ),
        (_, Some(card)) => (
            closest,
            format!(
                "no setting keeps up with the GPU's {} ms per batch; this comes closest, with {} ms",
                figure(card),
                figure(closest.batch_ms)
            ),
        ),
        (_, None) => (closest, "the fewest workers that were as fast as more".to_owned()),
    };
    let left_out = usable.len() > borne.len();
    let why =
        if left_out { format!("{why}; more would not fit this host's memory or /dev/shm") } else { why };
    Some(Proposal { keeps_up: card_ms.map(|_| enough.is_some()), ..of(chosen, batches, card_ms, why) })
}

fn of(one: &Given, batches: &Batches, card_ms: Option<f64>, why: String) -> Proposal {
    let workers = one.workers;
    Proposal {
        workers,
        prefetch: (workers > 0).then(|| prefetch(workers, batches, one.batch_ms.max(card_ms.unwrap_or(0.0)))),
        pinned: !batches.on_card,
        persistent: workers > 0,
        keeps_up: None,
        why,
    }
}

fn keeps_up(one: &Given, card_ms: f64) -> bool {
    if one.workers == 0 { one.batch_ms <= BORNE * card_ms } else { one.batch_ms * MARGIN <= card_ms }
}

/// Batches that each worker has to be ahead, so that what is ready lasts while the slowest one is made.
fn prefetch(workers: u64, batches: &Batches, period_ms: f64) -> u64 {
    let meanwhile = (batches.slowest_ms / period_ms.max(0.001)).ceil() as u64;
    (1 + meanwhile.div_ceil(workers)).clamp(PREFETCH.0, PREFETCH.1)
}

fn bears(one: &Given, batches: &Batches, host: &Host) -> bool {
    let ahead = one.workers * PREFETCH.0 * batches.bytes;
    one.workers == 0 || (ahead <= host.shared_memory / SHARE && ahead + one.memory <= host.memory / SHARE)
}

fn figure(milliseconds: f64) -> String {
    if milliseconds < 10.0 { format!("{milliseconds:.1}") } else { format!("{milliseconds:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const HOST: Host = Host { processors: 8, shared_memory: 8 * GIB, memory: 64 * GIB };
    const BATCHES: Batches = Batches { bytes: 32 << 20, slowest_ms: 400.0, on_card: false };

    /// A loader whose workers share the work evenly.
    fn shared(whole_ms: f64) -> Vec<Given> {
        let one = |workers: u64| Given {
            workers,
            batch_ms: whole_ms / workers.max(1) as f64,
            start_ms: 100.0,
            memory: workers * (100 << 20),
        };
        [0, 1, 2, 4, 8].map(one).to_vec()
    }

    fn workers(card_ms: Option<f64>, host: &Host) -> (u64, Option<bool>) {
        let found = propose(&shared(400.0), &BATCHES, card_ms, host).unwrap();
        (found.workers, found.keeps_up)
    }

    #[test]
    fn the_fewest_workers_that_keep_up_are_proposed() {
        assert_eq!(workers(Some(500.0), &HOST), (1, Some(true)));
        assert_eq!(workers(Some(150.0), &HOST), (4, Some(true)));
        // A margin is left: 100 ms with four workers are not within 105.
        assert_eq!(workers(Some(105.0), &HOST), (8, Some(true)));
        assert_eq!(workers(Some(10_000.0), &HOST), (0, Some(true)));
        assert_eq!(workers(Some(20.0), &HOST), (8, Some(false)));
        assert_eq!(workers(None, &HOST), (8, None));
    }

    #[test]
    fn what_the_host_does_not_bear_is_left_out() {
        let small = Host { shared_memory: 300 << 20, ..HOST };
        let found = propose(&shared(400.0), &BATCHES, Some(60.0), &small).unwrap();
        assert_eq!((found.workers, found.keeps_up), (2, Some(false)));
        assert!(found.why.contains("would not fit this host"), "{}", found.why);
    }

    #[test]
    fn without_workers_loading_comes_between_the_steps() {
        let given = shared(300.0);
        let alone = expected(&given[0], 100.0);
        assert_eq!(alone, Fed { period_ms: 400.0, waits: 0.75 });
        let one = expected(&Given { batch_ms: 200.0, ..given[1] }, 100.0);
        assert_eq!(one, Fed { period_ms: 200.0, waits: 0.5 });
        assert_eq!(expected(&given[3], 100.0), Fed { period_ms: 100.0, waits: 0.0 });
    }

    #[test]
    fn slow_batches_are_made_up_for_by_batches_that_are_ready() {
        let with = |slowest_ms: f64| {
            let batches = Batches { slowest_ms, ..BATCHES };
            propose(&shared(400.0), &batches, Some(150.0), &HOST).unwrap().prefetch
        };
        assert_eq!(with(400.0), Some(2));
        assert_eq!(with(1500.0), Some(4));
        assert_eq!(with(60_000.0), Some(8));
    }

    #[test]
    fn batches_on_the_card_have_no_workers_and_are_not_pinned() {
        let batches = Batches { on_card: true, ..BATCHES };
        let found = propose(&shared(400.0), &batches, Some(100.0), &HOST).unwrap();
        assert_eq!((found.workers, found.pinned, found.prefetch), (0, false, None));
        assert_eq!(propose(&[], &BATCHES, None, &HOST), None);
    }
}
