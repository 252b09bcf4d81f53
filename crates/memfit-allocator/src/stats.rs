//! Statistics of `torch.cuda.memory_stats()`, maintained by the same rules.

/// Figure over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Current value.
    pub current: i64,
    /// Maximum value.
    pub peak: i64,
    /// Sum of all increases.
    pub allocated: i64,
    /// Sum of all decreases.
    pub freed: i64,
}

impl Counter {
    pub(crate) fn add(&mut self, amount: u64) {
        self.current += amount as i64;
        self.peak = self.peak.max(self.current);
        self.allocated += amount as i64;
    }

    pub(crate) fn take(&mut self, amount: u64) {
        self.current -= amount as i64;
        debug_assert!(self.current >= 0, "more was taken away than there was");
        self.freed += amount as i64;
    }

    /// Adds a signed amount. Zero is not counted.
    pub(crate) fn change(&mut self, amount: i64) {
        match amount {
            0 => {}
            1.. => self.add(amount.unsigned_abs()),
            _ => self.take(amount.unsigned_abs()),
        }
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }
}

/// Figure for all pools together, and for small and large blocks separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerPool {
    /// All blocks.
    pub all: Counter,
    /// Blocks of at most 1 MiB, and their segments.
    pub small_pool: Counter,
    /// Larger blocks, and their segments.
    pub large_pool: Counter,
}

impl PerPool {
    fn part(&mut self, small: bool) -> &mut Counter {
        if small { &mut self.small_pool } else { &mut self.large_pool }
    }

    pub(crate) fn add(&mut self, small: bool, amount: u64) {
        self.all.add(amount);
        self.part(small).add(amount);
    }

    pub(crate) fn take(&mut self, small: bool, amount: u64) {
        self.all.take(amount);
        self.part(small).take(amount);
    }

    pub(crate) fn change(&mut self, small: bool, amount: i64) {
        self.all.change(amount);
        self.part(small).change(amount);
    }

    fn reset_peak(&mut self) {
        self.all.reset_peak();
        self.small_pool.reset_peak();
        self.large_pool.reset_peak();
    }
}

/// All statistics of one device, with PyTorch's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Allocated blocks.
    pub allocation: PerPool,
    /// Segments allocated on the device by one call each, without expandable ones.
    pub segment: PerPool,
    /// Blocks that are allocated, or wait for another stream.
    pub active: PerPool,
    /// Free blocks that share a segment with others.
    pub inactive_split: PerPool,
    /// Bytes of allocated blocks, including unsplit remainders.
    pub allocated_bytes: PerPool,
    /// Bytes reserved on the device.
    pub reserved_bytes: PerPool,
    /// Bytes of active blocks.
    pub active_bytes: PerPool,
    /// Bytes of free blocks that share a segment with others, without expandable segments.
    pub inactive_split_bytes: PerPool,
    /// Requested bytes of active blocks.
    pub requested_bytes: PerPool,
    /// Number of retries after all cached memory was released.
    pub num_alloc_retries: u64,
    /// Number of failed requests.
    pub num_ooms: u64,
    /// Number of requests rejected before the device was asked.
    pub num_oom_rejections: u64,
    /// Number of times that all events of other streams were waited for.
    pub num_sync_all_streams: u64,
    /// Number of allocated segments and mapped ranges.
    pub num_device_alloc: u64,
    /// Number of released segments and unmapped ranges.
    pub num_device_free: u64,
    /// Allocated blocks that are too large to be split.
    pub oversize_allocations: Counter,
    /// Segments that are too large to be split.
    pub oversize_segments: Counter,
}

impl Stats {
    /// All figures with their names in `torch.cuda.memory_stats()`.
    pub fn entries(&self) -> Vec<(String, i64)> {
        let mut named = Vec::new();
        let mut counter = |name: &str, counter: &Counter| {
            for (part, value) in [
                ("current", counter.current),
                ("peak", counter.peak),
                ("allocated", counter.allocated),
                ("freed", counter.freed),
            ] {
                named.push((format!("{name}.{part}"), value));
            }
        };
        for (name, figure) in [
            ("allocation", &self.allocation),
            ("segment", &self.segment),
            ("active", &self.active),
            ("inactive_split", &self.inactive_split),
            ("allocated_bytes", &self.allocated_bytes),
            ("reserved_bytes", &self.reserved_bytes),
            ("active_bytes", &self.active_bytes),
            ("inactive_split_bytes", &self.inactive_split_bytes),
            ("requested_bytes", &self.requested_bytes),
        ] {
            counter(&format!("{name}.all"), &figure.all);
            counter(&format!("{name}.small_pool"), &figure.small_pool);
            counter(&format!("{name}.large_pool"), &figure.large_pool);
        }
        counter("oversize_allocations", &self.oversize_allocations);
        counter("oversize_segments", &self.oversize_segments);
        for (name, value) in [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_oom_rejections", self.num_oom_rejections),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
        ] {
            named.push((name.to_owned(), value as i64));
        }
        named
    }

    /// Sets every peak to the current value.
    pub fn reset_peaks(&mut self) {
        for figure in [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ] {
            figure.reset_peak();
        }
        self.oversize_allocations.reset_peak();
        self.oversize_segments.reset_peak();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_remembers_its_peak_and_both_sums() {
        let mut counter = Counter::default();
        counter.add(5);
        counter.take(3);
        counter.change(4);
        counter.change(-6);
        counter.change(0);
        assert_eq!(counter, Counter { current: 0, peak: 6, allocated: 9, freed: 9 });
    }

    #[test]
    fn resetting_peaks_keeps_the_rest() {
        let mut stats = Stats::default();
        stats.reserved_bytes.add(true, 10);
        stats.reserved_bytes.take(true, 4);
        stats.reset_peaks();
        assert_eq!(stats.reserved_bytes.all, Counter { current: 6, peak: 6, allocated: 10, freed: 4 });
        assert_eq!(stats.reserved_bytes.small_pool.peak, 6);
        assert_eq!(stats.reserved_bytes.large_pool, Counter::default());
    }
}
