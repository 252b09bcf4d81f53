//! Detection of live memory that grows from step to step.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Number of steps examined.
const MAX_STEPS: usize = 24;
/// Minimum number of steps for a result.
const MIN_STEPS: usize = 8;
/// Consecutive growing steps after which the owners of memory should be examined.
const MIN_SUSPECT_STEPS: usize = 3;
/// Minimum growth of a step in bytes.
const MIN_GROWTH_BYTES: i64 = 64 << 10;

/// Live bytes after each of the last steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    live: VecDeque<u64>,
}

/// Memory leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    /// Growth in bytes for each step.
    pub per_step: u64,
    /// Steps until a budget is exhausted, if there is one.
    pub steps_left: Option<u64>,
}

impl Growth {
    /// Records the live bytes after a step.
    pub fn after_step(&mut self, live: u64) {
        if self.live.len() == MAX_STEPS {
            self.live.pop_front();
        }
        self.live.push_back(live);
    }

    /// Returns `true` if each of the last few steps grew: too few for a result, enough for a closer look.
    pub fn suspects(&self) -> bool {
        let newer = self.live.iter().rev();
        let pairs = newer.clone().zip(newer.skip(1)).take(MIN_SUSPECT_STEPS);
        pairs.clone().count() == MIN_SUSPECT_STEPS
            && pairs.into_iter().all(|(new, old)| new.cast_signed() - old.cast_signed() >= MIN_GROWTH_BYTES)
    }

    /// Detects a leak: nearly every step increased the live memory, and none released it.
    pub fn leak(&self, budget: Option<u64>) -> Option<Leak> {
        if self.live.len() < MIN_STEPS {
            return None;
        }
        let mut differences: Vec<i64> = self
            .live
            .iter()
            .zip(self.live.iter().skip(1))
            .map(|(a, b)| b.cast_signed() - a.cast_signed())
            .collect();
        let growing = differences.iter().filter(|&&difference| difference > 0).count();
        differences.sort_unstable();
        let median = differences[differences.len() / 2];
        // A step that released much memory is an emptied cache or the end of an evaluation, not a leak.
        let gave_back = differences.first().is_some_and(|&least| least < -2 * median.max(MIN_GROWTH_BYTES));
        if median < MIN_GROWTH_BYTES || growing * 5 < differences.len() * 4 || gave_back {
            return None;
        }
        let per_step = median.cast_unsigned();
        let last = self.live.back().copied().unwrap_or(0);
        Some(Leak { per_step, steps_left: budget.map(|budget| budget.saturating_sub(last) / per_step) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(live: impl IntoIterator<Item = u64>) -> Growth {
        let mut growth = Growth::default();
        live.into_iter().for_each(|bytes| growth.after_step(bytes));
        growth
    }

    #[test]
    fn steady_growth_is_a_leak_and_its_end_is_told() {
        let growth = after((0..10).map(|step| (100 + step) << 20));
        let leak = growth.leak(Some(209 << 20)).expect("it grows");
        assert_eq!((leak.per_step, leak.steps_left), (1 << 20, Some(100)));
    }

    /// Live memory after steps that changed it by these MiB.
    fn changes(mib: &[i64]) -> impl Iterator<Item = u64> {
        mib.iter().scan(1_000i64 << 20, |live, change| {
            *live += change << 20;
            Some(live.cast_unsigned())
        })
    }

    #[test]
    fn uneven_growth_is_a_leak_of_the_median_step() {
        let leak = after(changes(&[0, 9, 1, 8, 2, 7, 3, 6, 4, 5])).leak(None).expect("it grows");
        assert_eq!(leak.per_step, 5 << 20);
    }

    #[test]
    fn a_step_may_release_twice_the_growth_of_a_step() {
        assert!(after(changes(&[0, 1, 1, 1, 1, -2, 1, 1, 1, 1, 1])).leak(None).is_some());
        assert!(after(changes(&[0, 1, 1, 1, 1, -3, 1, 1, 1, 1, 1])).leak(None).is_none());
    }

    #[test]
    fn the_smallest_leak_is_64_kib_in_four_fifths_of_the_steps() {
        let kib = |changes: &[i64]| {
            after(changes.iter().scan(1_000i64 << 20, |live, change| {
                *live += change << 10;
                Some(live.cast_unsigned())
            }))
        };
        let grows = |change: i64, others: &[i64]| {
            let changes: Vec<i64> = std::iter::repeat_n(change, 9).chain(others.iter().copied()).collect();
            kib(&changes).leak(None).map(|leak| leak.per_step)
        };
        // The first value is where it begins: eight of ten steps grow, then eight of eleven.
        assert_eq!(grows(64, &[0, 0]), Some(64 << 10));
        assert_eq!(grows(63, &[0, 0]), None);
        assert_eq!(grows(64, &[0, 0, 0]), None);
    }

    #[test]
    fn growth_is_suspected_before_it_is_told() {
        assert!(!after((0..3).map(|step| step << 20)).suspects());
        assert!(after((0..4).map(|step| step << 20)).suspects());
        assert_eq!(after((0..4).map(|step| step << 20)).leak(None), None);
        assert!(!after([4, 5, 6, 6].map(|step: u64| step << 20)).suspects());
    }

    #[test]
    fn irregular_growth_is_not_reported() {
        for (name, live) in [
            ("flat", vec![100 << 20; 20]),
            ("too early", (0..7).map(|step| step << 20).collect()),
            ("first steps only", (0..20).map(|step: u64| step.min(3) << 20).collect()),
            ("up and down", (0..20).map(|step: u64| (100 + step % 2) << 20).collect()),
            ("given back now and then", (0..20).map(|step: u64| (100 + step % 8) << 20).collect()),
            ("bytes", (0..20).map(|step: u64| 1_000 * step).collect()),
        ] {
            assert_eq!(after(live).leak(None), None, "{name}");
        }
    }
}
