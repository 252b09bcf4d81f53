//! Model of the host memory that PyTorch's own `DataLoader` needs with given settings.

/// Settings of a `DataLoader`, and sizes of its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataLoader {
    /// `num_workers`.
    pub workers: u64,
    /// `prefetch_factor`: batches that each worker prefetches.
    pub prefetch: u64,
    /// Bytes of a batch.
    pub batch: u64,
    /// `pin_memory`.
    pub pinned: bool,
    /// Bytes needed to decode the largest sample.
    pub decoding: u64,
}

/// Peak memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// `/dev/shm`: finished batches that were not taken yet.
    pub shared: u64,
    /// Pinned memory: batches pinned by the pinning thread, each rounded up to a power of two.
    pub pinned: u64,
    /// Memory in the workers: samples of the batch being collated, and one image being decoded.
    pub workers: u64,
}

impl DataLoader {
    /// Computes the peak memory.
    pub fn host_memory(&self) -> HostMemory {
        // Outstanding batches; the loader requests no more than this.
        let ahead = self.workers * self.prefetch;
        let building = self.workers.max(1) * (self.batch + self.decoding);
        // The queue of the pinning thread is unbounded; one more batch is held by the user.
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
        // 36.75 MiB are rounded up to 64 MiB.
        assert_eq!(taken.pinned, 9 * (64 << 20));
        let alone = DataLoader { workers: 0, pinned: false, ..one }.host_memory();
        assert_eq!((alone.shared, alone.pinned), (0, 0));
        assert_eq!(alone.workers, one.batch + (40 << 20));
    }
}
