//! The statistics that `torch.cuda.memory_stats()` shows, kept by the same rules.

/// One figure over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// What it is now.
    pub current: i64,
    /// The most it has been.
    pub peak: i64,
    /// The sum of all that was added.
    pub allocated: i64,
    /// The sum of all that was taken away.
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

    /// Adds or takes away, as the sign says. Nothing is counted for zero.
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

/// One figure, for all pools together and for small and large blocks apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerPool {
    /// All.
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

/// All statistics of one device. Names are PyTorch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks handed out.
    pub allocation: PerPool,
    /// Segments got from the device in one call each; expandable ones are not counted.
    pub segment: PerPool,
    /// Blocks handed out, or waiting for another stream.
    pub active: PerPool,
    /// Free blocks that are part of a segment with others.
    pub inactive_split: PerPool,
    /// Bytes of blocks handed out, unsplit rests included.
    pub allocated_bytes: PerPool,
    /// Bytes held from the device.
    pub reserved_bytes: PerPool,
    /// Bytes of active blocks.
    pub active_bytes: PerPool,
    /// Bytes of free blocks that are part of a segment with others; expandable ones are not counted.
    pub inactive_split_bytes: PerPool,
    /// Bytes that active blocks were asked for.
    pub requested_bytes: PerPool,
    /// Times that everything cached was released to try once more.
    pub num_alloc_retries: u64,
    /// Requests that failed.
    pub num_ooms: u64,
    /// Requests that were refused before the device was asked.
    pub num_oom_rejections: u64,
    /// Times that all events of other streams were waited for.
    pub num_sync_all_streams: u64,
    /// Segments got, and ranges mapped.
    pub num_device_alloc: u64,
    /// Segments given back, and ranges unmapped.
    pub num_device_free: u64,
    /// Blocks handed out that are too large to be split.
    pub oversize_allocations: Counter,
    /// Segments that are too large to be split.
    pub oversize_segments: Counter,
}

impl Stats {
    /// Every figure under the name that `torch.cuda.memory_stats()` has for it.
    pub fn named(&self) -> Vec<(String, i64)> {
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

    /// Sets every peak to what is current.
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
