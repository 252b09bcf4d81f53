//! `loader-workers`: enough workers to keep up with the GPU, within the host's memory and `/dev/shm`.
//!
//! Device memory does not depend on it, so it is not a candidate of the search: it follows from the load time
//! per item of the script's data set and the plan's step time.

use memfit_vocabulary::{Loading, format_milliseconds};

/// Resources of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Number of CPUs.
    pub processors: u64,
    /// Free bytes of `/dev/shm`, through which workers pass batches.
    pub shared_memory: u64,
    /// Available bytes of memory.
    pub memory: u64,
}

/// Loader settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loader {
    /// Number of workers.
    pub workers: u64,
    /// Batches that each worker prefetches.
    pub prefetch: u64,
    /// Reason, in figures.
    pub why: String,
}

/// PyTorch's default `prefetch_factor`.
pub(crate) const DEFAULT_PREFETCH: u64 = 2;
/// Divisor of the host's limits: half of each is used.
pub(crate) const LIMIT_DIVISOR: u64 = 2;
/// Maximum share of the step time that loading without workers may take.
pub(crate) const MAX_LOADING_SHARE: f64 = 0.05;
/// Memory of a worker: Python, torch and the data set, most of whose pages are shared.
const WORKER_BYTES: u64 = 300 << 20;

/// Best loader settings for a batch size and a step time; `None` if the current ones suffice.
pub fn loader(loading: &Loading, batch: u64, step_ms: f64, host: &Host) -> Option<Loader> {
    let making_ms = loading.item_ns as f64 * batch as f64 / 1e6;
    if batch == 0 || step_ms <= 0.0 || !making_ms.is_finite() {
        return None;
    }
    let wanted = (making_ms / step_ms).ceil() as u64;
    // Loading in parallel with the step does not delay it; without workers, all of it does.
    if loading.workers >= wanted.max(1) || (loading.workers == 0 && making_ms < MAX_LOADING_SHARE * step_ms) {
        return None;
    }
    let batch_bytes = loading.item_bytes.saturating_mul(batch).max(1);
    let of_shared = host.shared_memory / LIMIT_DIVISOR / (batch_bytes * DEFAULT_PREFETCH);
    let of_memory = host.memory / LIMIT_DIVISOR / (batch_bytes * DEFAULT_PREFETCH + WORKER_BYTES);
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
        "an item takes {} here ({} were measured), a batch of {batch} {}, and a step {}: {workers} worker{}, {limit}",
        format_milliseconds(loading.item_ns as f64 / 1e6),
        loading.items,
        format_milliseconds(making_ms),
        format_milliseconds(step_ms),
        if workers == 1 { "" } else { "s" }
    );
    Some(Loader { workers, prefetch: DEFAULT_PREFETCH, why })
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
        // 64 items of 10 ms for a step of 100 ms.
        assert_eq!(workers(loading(0, 10, 1 << 20), &host), Some(7));
        assert_eq!(workers(loading(7, 10, 1 << 20), &host), None);
        assert_eq!(workers(loading(4, 100, 1 << 20), &host), Some(16));
        // One GiB per batch: two batches per worker, within half of the memory.
        assert_eq!(workers(loading(0, 10, 16 << 20), &host), Some(2));
        let small = Host { memory: 2 * GIB, ..host };
        assert_eq!(workers(loading(0, 10, 1 << 20), &small), Some(2));
        // A loader that takes no time needs no workers.
        assert_eq!(workers(loading(0, 0, 1 << 20), &host), None);
        assert!(
            loader(&loading(0, 100, 1 << 20), 64, 100.0, &host).unwrap().why.contains("64 would keep up")
        );
        assert_eq!(loader(&loading(0, 10, 0), 0, 100.0, &host), None);
    }
}
