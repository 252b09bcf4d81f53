//! What PyTorch's own `DataLoader` would take of the host's memory with given settings: a model.

/// Settings of a `DataLoader`, and what its samples are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataLoader {
    /// `num_workers`.
    pub workers: u64,
    /// `prefetch_factor`: batches that each worker is ahead.
    pub prefetch: u64,
    /// Bytes of a batch, as its samples are stacked.
    pub batch: u64,
    /// `pin_memory`.
    pub pinned: bool,
    /// What decoding the largest sample takes.
    pub decoding: u64,
}

/// What it takes, in bytes, at its most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// `/dev/shm`: batches that workers have finished and that were not taken.
    pub shared: u64,
    /// Pinned: batches behind the thread that pins them, each rounded up to a power of two.
    pub pinned: u64,
    /// In the workers: the samples of the batch that is being put together, and one image as it is decoded.
    pub workers: u64,
}

impl DataLoader {
    /// What it takes.
    pub fn host_memory(&self) -> HostMemory {
        // Batches that were asked for and not taken; it asks for no more than this.
        let ahead = self.workers * self.prefetch;
        let building = self.workers.max(1) * (self.batch + self.decoding);
        // What the thread has pinned waits in a queue without a bound; one more is in the user's hands.
        let pinned = if self.pinned { (ahead + 1) * self.batch.next_power_of_two() } else { 0 };
        let shared = if self.workers == 0 { 0 } else { (ahead + u64::from(!self.pinned)) * self.batch };
        HostMemory { shared, pinned, workers: building }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_what_is_ahead() {
        let one = DataLoader {
            workers: 4,
            prefetch: 2,
            batch: 64 * 3 * 224 * 224 * 4,
            pinned: true,
            decoding: 40 << 20,
        };
        let taken = one.host_memory();
        assert_eq!(taken.shared, 8 * one.batch);
        // 36.75 MiB become 64.
        assert_eq!(taken.pinned, 9 * (64 << 20));
        let alone = DataLoader { workers: 0, pinned: false, ..one }.host_memory();
        assert_eq!((alone.shared, alone.pinned), (0, 0));
        assert_eq!(alone.workers, one.batch + (40 << 20));
    }
}
