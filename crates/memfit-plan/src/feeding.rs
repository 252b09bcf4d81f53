//! `memfit data --loader`: selects settings of a script's own `DataLoader` that keep up with the GPU, from
//! measurements on this host.

use crate::Host;
use crate::loading::{DEFAULT_PREFETCH, LIMIT_DIVISOR, MAX_LOADING_SHARE};

/// Measurement with a number of workers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Given {
    /// Number of workers.
    pub workers: u64,
    /// Milliseconds for a batch.
    pub batch_ms: f64,
    /// Milliseconds until the first batch.
    pub start_ms: f64,
    /// Bytes of the workers' own memory.
    pub memory: u64,
}

/// Batches of the script.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batches {
    /// Bytes of a batch.
    pub bytes: u64,
    /// Milliseconds of the slowest batch in one process.
    pub slowest_ms: f64,
    /// `true` if they are already on the GPU.
    pub on_card: bool,
}

/// Expected data supply of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fed {
    /// Milliseconds from one batch to the next.
    pub period_ms: f64,
    /// Share of that time in which the GPU waits.
    pub waits: f64,
}

/// Cheapest settings that keep up, or otherwise those that come closest.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// `num_workers`.
    pub workers: u64,
    /// `prefetch_factor`; `None` without workers.
    pub prefetch: Option<u64>,
    /// `pin_memory`.
    pub pinned: bool,
    /// `persistent_workers`.
    pub persistent: bool,
    /// `true` if the GPU would not wait; `None` if its time is unknown.
    pub keeps_up: Option<bool>,
    /// Reason in one sentence.
    pub why: String,
}

/// Factor by which a loader must be faster than the GPU, as a reserve for uneven batches.
const MIN_SPEED_FACTOR: f64 = 1.1;
/// Factor below which two rates count as equal.
const EQUAL_RATE_FACTOR: f64 = 1.05;
/// PyTorch's default `prefetch_factor`, and the maximum that is proposed.
const PREFETCH_RANGE: (u64, u64) = (DEFAULT_PREFETCH, 8);

/// Data supply of a GPU that takes `card_ms` for a batch. Without workers, loading runs between the steps.
pub fn expected(given: &Given, card_ms: f64) -> Fed {
    let period_ms = if given.workers == 0 { given.batch_ms + card_ms } else { given.batch_ms.max(card_ms) };
    Fed { period_ms, waits: 1.0 - card_ms / period_ms }
}

/// Proposes settings for a GPU that takes `card_ms` for a batch, if known. Returns `None` without
/// measurements.
pub fn propose(given: &[Given], batches: &Batches, card_ms: Option<f64>, host: &Host) -> Option<Proposal> {
    let usable: Vec<&Given> =
        given.iter().filter(|one| one.batch_ms.is_finite() && one.batch_ms > 0.0).collect();
    if batches.on_card {
        let one = usable.iter().find(|one| one.workers == 0)?;
        return Some(Proposal {
            keeps_up: card_ms.map(|card| keeps_up(one, card)),
            ..proposal(
                one,
                batches,
                card_ms,
                "batches are on the GPU already, and worker processes cannot share that".to_owned(),
            )
        });
    }
    let mut borne: Vec<&Given> = usable.iter().copied().filter(|one| fits_host(one, batches, host)).collect();
    borne.sort_by_key(|one| one.workers);
    let best = borne.iter().copied().min_by(|a, b| a.batch_ms.total_cmp(&b.batch_ms))?;
    let enough = card_ms.and_then(|card| borne.iter().copied().find(|one| keeps_up(one, card)));
    let closest =
        borne.iter().copied().find(|one| one.batch_ms <= best.batch_ms * EQUAL_RATE_FACTOR).unwrap_or(best);
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
    Some(Proposal { keeps_up: card_ms.map(|_| enough.is_some()), ..proposal(chosen, batches, card_ms, why) })
}

fn proposal(one: &Given, batches: &Batches, card_ms: Option<f64>, why: String) -> Proposal {
    let workers = one.workers;
    Proposal {
        workers,
        prefetch: (workers > 0).then(|| prefetch(workers, batches, one.batch_ms.max(card_ms.unwrap_or(0.0)))),
        // Without workers, the training itself would copy each batch to pinned memory.
        pinned: !batches.on_card && workers > 0,
        persistent: workers > 0,
        keeps_up: None,
        why,
    }
}

fn keeps_up(one: &Given, card_ms: f64) -> bool {
    if one.workers == 0 {
        one.batch_ms <= MAX_LOADING_SHARE * card_ms
    } else {
        one.batch_ms * MIN_SPEED_FACTOR <= card_ms
    }
}

/// Batches to prefetch per worker, so that the finished ones last until the slowest one is complete.
fn prefetch(workers: u64, batches: &Batches, period_ms: f64) -> u64 {
    let meanwhile = (batches.slowest_ms / period_ms.max(0.001)).ceil() as u64;
    (1 + meanwhile.div_ceil(workers)).clamp(PREFETCH_RANGE.0, PREFETCH_RANGE.1)
}

/// Returns `true` if the host's memory, and its shared memory, hold the batches that the workers load ahead.
fn fits_host(one: &Given, batches: &Batches, host: &Host) -> bool {
    let ahead = one.workers * PREFETCH_RANGE.0 * batches.bytes;
    one.workers == 0
        || (ahead <= host.shared_memory / LIMIT_DIVISOR && ahead + one.memory <= host.memory / LIMIT_DIVISOR)
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
        // With the reserve, 100 ms with four workers do not fit into 105 ms.
        assert_eq!(workers(Some(105.0), &HOST), (8, Some(true)));
        assert_eq!(workers(Some(10_000.0), &HOST), (0, Some(true)));
        assert_eq!(workers(Some(20.0), &HOST), (8, Some(false)));
        assert_eq!(workers(None, &HOST), (8, None));
    }

    #[test]
    fn settings_that_the_host_cannot_bear_are_left_out() {
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
    fn it_is_said_why_so_many_workers() {
        let why = |card_ms: Option<f64>| propose(&shared(400.0), &BATCHES, card_ms, &HOST).unwrap().why;
        assert!(why(Some(10_000.0)).contains("almost no time"));
        assert!(why(Some(500.0)).contains("within the 500 ms"));
        assert!(why(Some(9.96)).contains("the GPU's 10.0 ms per batch; this comes closest, with 50 ms"));
        assert!(why(Some(10.0)).contains("the GPU's 10 ms per batch"));
        assert!(why(None).contains("as fast as more"));
    }

    #[test]
    fn batches_on_the_card_have_no_workers_and_are_not_pinned() {
        let batches = Batches { on_card: true, ..BATCHES };
        let found = propose(&shared(400.0), &batches, Some(100.0), &HOST).unwrap();
        assert_eq!((found.workers, found.pinned, found.prefetch), (0, false, None));
        assert_eq!(propose(&[], &BATCHES, None, &HOST), None);
    }
}
