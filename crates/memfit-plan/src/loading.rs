//! `loader-workers`: as many processes as keep up with the card, as far as the host's memory and `/dev/shm`
//! bear them.
//!
//! Memory on the card does not depend on it, so it is no candidate of the search: it follows from how long an
//! item of the script's own data set takes and how long the plan's step does.

use memfit_vocabulary::Loading;

/// What the host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Processors.
    pub processors: u64,
    /// Bytes that are free of `/dev/shm`, through which workers hand batches over.
    pub shared_memory: u64,
    /// Bytes of memory that are available.
    pub memory: u64,
}

/// How batches are to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loader {
    /// Processes.
    pub workers: u64,
    /// Batches that each is ahead.
    pub prefetch: u64,
    /// Why, in figures.
    pub why: String,
}

/// Batches that a worker is ahead, as PyTorch has it.
const PREFETCH: u64 = 2;
/// What of a limit is taken.
const SHARE: u64 = 2;
/// A worker's own memory: Python, torch and the data set's object, of which most pages are shared.
const OF_A_WORKER: u64 = 300 << 20;

/// How a training's batches of so many samples are best loaded, for steps that take so long; nothing where it
/// is well as it is.
pub fn loader(loading: &Loading, batch: u64, step_ms: f64, host: &Host) -> Option<Loader> {
    let making_ms = loading.item_ns as f64 * batch as f64 / 1e6;
    if batch == 0 || step_ms <= 0.0 || !making_ms.is_finite() {
        return None;
    }
    let wanted = (making_ms / step_ms).ceil() as u64;
    // What is made beside the step does not delay it; without workers everything does.
    if loading.workers >= wanted.max(1) || (loading.workers == 0 && making_ms < 0.05 * step_ms) {
        return None;
    }
    let batch_bytes = loading.item_bytes.saturating_mul(batch).max(1);
    let of_shared = host.shared_memory / SHARE / (batch_bytes * PREFETCH);
    let of_memory = host.memory / SHARE / (batch_bytes * PREFETCH + OF_A_WORKER);
    let workers = wanted.min(host.processors).min(of_shared).min(of_memory);
    if workers <= loading.workers {
        return None;
    }
    let limit = match workers {
        _ if workers == wanted => "enough to keep up with it".to_owned(),
        _ if workers == host.processors => {
            format!("as many as this machine has CPUs; {wanted} would keep up")
        }
        _ if workers == of_shared => format!("as many as fit in /dev/shm; {wanted} would keep up"),
        _ => format!("as many as fit in this machine's memory; {wanted} would keep up"),
    };
    let why = format!(
        "an item takes {:.2} ms here ({} were measured), a batch of {batch} {making_ms:.0} ms, and a step {step_ms:.0} ms: {workers} worker{}, {limit}",
        loading.item_ns as f64 / 1e6,
        loading.items,
        if workers == 1 { "" } else { "s" }
    );
    Some(Loader { workers, prefetch: PREFETCH, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_keep_up_within_what_the_host_has() {
        const GIB: u64 = 1 << 30;
        let host = Host { processors: 16, shared_memory: 8 * GIB, memory: 64 * GIB };
        let loading = |workers: u64, item_ms: u64, item_bytes: u64| Loading {
            workers,
            pinned: false,
            item_ns: item_ms * 1_000_000,
            item_bytes,
            items: 100,
        };
        let workers =
            |loading: Loading, host: &Host| loader(&loading, 64, 100.0, host).map(|loader| loader.workers);
        // 64 items of 10 ms beside a step of 100 ms.
        assert_eq!(workers(loading(0, 10, 1 << 20), &host), Some(7));
        assert_eq!(workers(loading(7, 10, 1 << 20), &host), None);
        assert_eq!(workers(loading(4, 100, 1 << 20), &host), Some(16));
        // A GiB a batch: two of them for each worker, in half of what is there.
        assert_eq!(workers(loading(0, 10, 16 << 20), &host), Some(2));
        let small = Host { memory: 2 * GIB, ..host };
        assert_eq!(workers(loading(0, 10, 1 << 20), &small), Some(2));
        // What takes nothing needs nobody.
        assert_eq!(workers(loading(0, 0, 1 << 20), &host), None);
        assert!(
            loader(&loading(0, 100, 1 << 20), 64, 100.0, &host).unwrap().why.contains("64 would keep up")
        );
        assert_eq!(loader(&loading(0, 10, 0), 0, 100.0, &host), None);
    }
}
