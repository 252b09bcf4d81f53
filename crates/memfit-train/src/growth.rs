//! Whether live memory grows from step to step.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// How many steps are looked at.
const SPAN: usize = 24;
/// Below so many steps nothing is said.
const LEAST: usize = 8;
/// Steps in a row that add something, after which it is worth to look at who holds it.
const SUSPECTED: usize = 3;
/// Less than this a step is not worth a word.
const NOTICED: i64 = 64 << 10;

/// Live bytes after each of the last steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Growth {
    live: VecDeque<u64>,
}

/// Memory that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    /// Bytes that come with each step.
    pub per_step: u64,
    /// Steps that are left until a budget is spent, if there is one.
    pub steps_left: Option<u64>,
}

impl Growth {
    /// So many bytes are live after a step, outside of it.
    pub fn after_step(&mut self, live: u64) {
        if self.live.len() == SPAN {
            self.live.pop_front();
        }
        self.live.push_back(live);
    }

    /// Whether the last few steps each added something: too few to speak of, enough to begin to look.
    pub fn suspects(&self) -> bool {
        let newer = self.live.iter().rev();
        let pairs = newer.clone().zip(newer.skip(1)).take(SUSPECTED);
        pairs.clone().count() == SUSPECTED
            && pairs.into_iter().all(|(new, old)| new.cast_signed() - old.cast_signed() >= NOTICED)
    }

    /// Whether there is a leak: nearly every step added to what was live, and none took it back.
    pub fn leak(&self, budget: Option<u64>) -> Option<Leak> {
        if self.live.len() < LEAST {
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
        // A step that gave a lot back is a cache that was emptied, or an evaluation that ended: no leak.
        let gave_back = differences.first().is_some_and(|&least| least < -2 * median.max(NOTICED));
        if median < NOTICED || growing * 5 < differences.len() * 4 || gave_back {
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

    #[test]
    fn growth_is_suspected_before_it_is_told() {
        assert!(!after((0..3).map(|step| step << 20)).suspects());
        assert!(after((0..4).map(|step| step << 20)).suspects());
        assert_eq!(after((0..4).map(|step| step << 20)).leak(None), None);
        assert!(!after([4, 5, 6, 6].map(|step: u64| step << 20)).suspects());
    }

    #[test]
    fn what_does_not_grow_steadily_is_none() {
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
